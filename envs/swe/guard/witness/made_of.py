# A part of the witness: see __init__.py.
# mypy: ignore-errors
def make_tests(root, judged, source_of):
    """The bytes that judged tests ran from: (other_bytes, Tests, rewriters)."""
    import os
    from types import CodeType

    try:
        from _sha1 import sha1
    except ImportError:
        from hashlib import sha1

    read_link, open_file = os.path.realpath, open
    frameworks = ("unittest", "_pytest", "pytest", "pluggy", "doctest")
    compiled, rewriters = {}, []

    def blob(path):
        try:
            with open_file(path, "rb") as file:
                data = file.read()
        except (OSError, ValueError):
            return None
        return sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def other_bytes():
        """Judged files with other bytes than expected; where nothing is expected, than they had at the first look."""
        found = []
        for path, expected in judged.items():
            now = blob(root + path) or ""
            if expected and now != expected:
                found.append(path)
            judged[path] = expected or now
        return found

    def codes(code, into):
        into.add(code)
        for const in code.co_consts:
            if isinstance(const, CodeType):
                codes(const, into)
        return into

    def codes_of(path, loader, config):
        """All code of a file as this interpreter compiles it; None where another loader changes it in its own way."""
        key = path, type(loader).__name__
        if key not in compiled:
            try:
                if key[1] == "AssertionRewritingHook":
                    from pathlib import Path

                    _, code = rewriters[0](Path(path), config)
                elif key[1] == "SourceFileLoader" or loader is None:
                    with open_file(path, "rb") as file:
                        code = compile(file.read(), path, "exec", 0, True)
                else:
                    code = None
            except Exception:
                code = None
            compiled[key] = None if code is None else codes(code, set())
        return compiled[key]

    def origin(function, module, config):
        """Files that a test's function is made of, through its decorators; whether its code is its file's."""
        files, honest, own = [], True, ""
        for _ in range(20):
            function = getattr(function, "__func__", function)
            function = getattr(function, "func", function) if not hasattr(function, "__code__") else function
            code = getattr(function, "__code__", None)
            if not isinstance(code, CodeType):
                break
            path = read_link(code.co_filename) if not code.co_filename.startswith("<") else code.co_filename
            files.append(path)
            if path == read_link(getattr(module, "__file__", None) or ""):
                known = codes_of(path, getattr(getattr(module, "__spec__", None), "loader", None), config)
                honest = honest and (known is None or code in known)
                own = code.co_name
            following = vars(function).get("__wrapped__") if hasattr(function, "__dict__") else None
            if following is None:
                break
            function = following
        return files, honest, own

    class Tests:
        """Outcomes by test id, and what the tests were made of."""

        def __init__(self):
            self.outcomes, self.where, self.made_of, self.strange = {}, {}, {}, []

        def put(self, path, name):
            if path.startswith((root, "<")) or not path.startswith("/"):
                names = self.made_of.setdefault(path, [])
                if not names or names[-1] != name:
                    names.append(name)

        def end(self, name, outcome):
            worse = ("skipped", "xfailed", "passed", "xpassed", "failed")
            before = self.outcomes.get(name, outcome)
            self.outcomes[name] = max(before, outcome, key=worse.index)

        def look(self, name, called, function, owner, module, config=None):
            files, honest, own = origin(function, module, config)
            for each in owner.__mro__ if isinstance(owner, type) else ():
                if each.__module__.split(".")[0] not in frameworks and each is not object:
                    files += [source_of(value) for value in list(vars(each).values()) if source_of(value)]
            file = getattr(module, "__file__", None) or ""
            self.where[name] = read_link(file) if file else ""
            for path in files:
                self.put(path, name)
            if not honest:
                self.strange.append(name + ": its code is not what its file holds")
            if own.startswith("test") and not called.startswith(own):
                self.strange.append(name + ": its code is that of " + own)

    return other_bytes, Tests, rewriters
