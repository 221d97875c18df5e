# A part of the witness: see __init__.py.
# mypy: ignore-errors
def make_clean(root, installs, own):
    """Code that decides outcomes, held against what a clean import of its own file makes: (expect, unlike). What was
    done to it before the witness first saw it, or by whoever loaded it, shows here. Looked at where code of the
    repository ran earlier: in a step before this (`installs`) or in this process (`own`)."""
    import marshal
    import os
    import sys
    from types import CodeType, FunctionType

    judges = {
        "unittest": ("case", "result", "runner", "suite", "loader", "main", "async_case", "_log"),
        "_pytest": ("runner", "python", "main", "reports", "skipping", "unittest", "outcomes", "python_api", "raises",
                    "terminal", "nodes"),
        "pluggy": ("_callers", "_hooks", "_manager", "_result", "callers", "hooks", "manager"),
    }  # fmt: skip
    few = ("case.py", "result.py", "runner.py", "suite.py", "reports.py", "outcomes.py", "_callers.py")
    judges = {package + "." + name for package, names in judges.items() for name in names}
    loads, open_file, compiled, stat = marshal.loads, open, compile, os.stat
    library = os.path.dirname(os.__file__) + "/"
    modules = []

    def expect(module, spec):
        if installs or own:
            modules.append((module, str(spec.origin), str(spec.cached)))

    def codes(code, into):
        into.add(code)
        for const in code.co_consts:
            if isinstance(const, CodeType):
                codes(const, into)
        return into

    def number(part):
        return int.from_bytes(part, "little")

    def made_of(origin, cached):
        """As the interpreter takes it: from the compiled file where that is the source's, else from the source; None
        where that would take long."""
        try:
            with open_file(cached, "rb") as file:
                data = file.read()
            seen, at = stat(origin), 8 if sys.version_info >= (3, 7) else 4
            dated = number(data[at : at + 4]) == int(seen.st_mtime) & 0xFFFFFFFF
            dated = dated and number(data[at + 4 : at + 8]) == seen.st_size & 0xFFFFFFFF
            if (at == 8 and number(data[4:8]) & 1) or dated:
                return codes(loads(memoryview(data)[at + 8 :]), set())
        except (OSError, ValueError, EOFError, TypeError):
            pass
        if origin.rpartition("/")[2] not in few:
            return None
        with open_file(origin, "rb") as file:
            return codes(compiled(file.read(), origin, "exec", 0, True), set())

    def functions(module):
        for owner in [module] + [value for value in list(vars(module).values()) if isinstance(value, type)]:
            if owner is module or owner.__module__ == module.__name__:
                for name, value in list(vars(owner).items()):
                    value = (
                        getattr(value, "__func__", value) if isinstance(value, (staticmethod, classmethod)) else value
                    )
                    value = value.fget if isinstance(value, property) else value
                    if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                        yield name, value.__code__

    def unlike():
        found = []
        for module, origin, cached in modules:
            name = module.__name__
            if origin.startswith(root) or (name.startswith("unittest") and not origin.startswith(library)):
                found.append([name, origin])
            if name not in judges:
                continue
            known = made_of(origin, cached)
            if known is None:
                continue
            for each, code in functions(module):
                file = code.co_filename
                made = file.startswith("<") and each.startswith("__")  # by attrs, dataclasses and their kin
                if not made and (code not in known if file == origin else file.startswith(("<", root))):
                    found.append([name + "." + each, file])
        return found

    return expect, unlike
