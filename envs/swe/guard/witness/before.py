# A part of the witness: see __init__.py.
# mypy: ignore-errors
def make_before(root):
    """What an earlier step left: (survivors, git_steered)."""
    import os

    open_file = open

    def survivors():
        def stat(pid):
            with open_file("/proc/" + pid + "/stat", encoding="utf-8", errors="replace") as file:
                head, _, rest = file.read().rpartition(") ")
            words = rest.split()
            return words[1], words[3], int(words[19]), head.partition("(")[2]

        known = {}
        for pid in os.listdir("/proc"):
            if pid.isdigit():
                try:
                    known[pid] = stat(pid)
                except (OSError, IndexError, ValueError):
                    pass
        pid, chain, since = str(os.getpid()), set(), 0
        session = known[pid][1]
        while pid in known:
            chain.add(pid)
            since = known[pid][2] if known[pid][1] == session else since
            pid = known[pid][0]
        roots = {each for each in chain if known[each][1] != session} | {"0", "1"}
        return [
            facts[3]
            for pid, facts in known.items()
            if pid not in chain and facts[0] in roots and facts[1] != known.get("1", facts)[1] and facts[2] >= since
        ]

    def git_steered():
        """What of the repository's git would run at the script's own git commands."""
        found = []
        try:
            found += ["hooks/" + name for name in os.listdir(root + ".git/hooks") if not name.endswith(".sample")]
        except OSError:
            pass
        for path in (root + ".git/config", os.path.expanduser("~/.gitconfig"), root + ".git/info/attributes"):
            try:
                with open_file(path, encoding="utf-8", errors="replace") as file:
                    text = file.read().lower()
            except OSError:
                continue
            found += [word for word in ("hookspath", "fsmonitor", "filter", "textconv", "alias") if word in text]
        return found

    return survivors, git_steered
