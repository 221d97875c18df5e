# A part of the witness: see __init__.py.
# mypy: ignore-errors
def make_before(root, ends):
    """What an earlier step left: (survivors, git_steered)."""
    import os

    open_file, kill = open, os.kill

    def table():
        """Process -> parent, session, start, name."""
        known = {}
        for pid in os.listdir("/proc"):
            if pid.isdigit():
                try:
                    with open_file("/proc/" + pid + "/stat", encoding="utf-8", errors="replace") as file:
                        head, _, rest = file.read().rpartition(") ")
                    words = rest.split()
                    if words[0] not in "ZX" or int(words[17]) > 1:  # its first thread alone has ended
                        known[pid] = words[1], words[3], int(words[19]), head.partition("(")[2]
                except (OSError, IndexError, ValueError):
                    pass
        return known

    def left():
        """Processes that nobody of ours is the parent of any more, since our session began, and all below them."""
        known = table()
        pid, chain, since = str(os.getpid()), set(), 0
        session = known[pid][1]
        while pid in known:
            chain.add(pid)
            since = known[pid][2] if known[pid][1] == session else since
            pid = known[pid][0]
        roots = {each for each in chain if known[each][1] != session} | {"0", "1"}
        found = {
            pid: facts[3]
            for pid, facts in known.items()
            if pid not in chain and facts[0] in roots and facts[1] != known.get("1", facts)[1] and facts[2] >= since
        }
        grown = bool(found)
        while grown:
            below = {pid: facts[3] for pid, facts in known.items() if facts[0] in found and pid not in found}
            found.update(below)
            grown = bool(below)
        return found

    def survivors():
        """Their names; they are ended before any test is loaded, unless the row's own script starts something."""
        names = []
        for _ in range(200):
            found = left()
            names += [name for name in found.values() if name not in names]
            if not found or not ends:
                break
            for pid in found:
                try:
                    kill(int(pid), 9)
                except OSError:
                    pass
        return names

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
