# The last part of the witness: what its others make is put together here. See __init__.py.
# `settings`: secret, descriptor, root, judged (path, or folder with a final slash -> git's blob id), ends (whether what
# earlier steps left running is ended), installs (whether an earlier step runs code of the repository).
# mypy: ignore-errors
# ruff: noqa: F821
def watch(settings):
    import os
    import sys
    from types import CodeType

    root, judged, ends = settings["root"] + "/", {}, settings["ends"]
    for path, expected in settings["judged"].items():
        if not path.endswith("/"):
            judged[path] = expected
            continue
        for folder, _, files in os.walk(root + path):  # hidden tests that the row names by their folder alone
            judged.update({folder[len(root) :].rstrip("/") + "/" + each: "" for each in files if each.endswith(".py")})
    installs = settings["installs"]
    frameworks = ("unittest", "_pytest", "pytest", "pluggy", "doctest")
    depth, early = [0], []

    def all_codes(code):
        yield code
        for const in code.co_consts:
            if isinstance(const, CodeType):
                yield from all_codes(const)

    parts = (
        watch,
        make_voice,
        make_acts,
        make_objects,
        make_clean,
        make_tests,
        make_before,
        make_unittest,
        make_pytest,
    )
    witness = [
        code for part in parts for code in all_codes(part.__code__)
    ]  # kept, so that no other code gets their ids
    own_codes = frozenset(id(code) for code in witness)
    say, quietly, hear, quiet = make_voice(settings["secret"].encode(), os.dup(settings["descriptor"]), own_codes)
    os.close(settings["descriptor"])
    settings.clear()
    hook, find_inodes, ran, own = make_acts(root, judged, say, hear, quiet)
    keep, changed, source_of = make_objects()
    expect, unlike = make_clean(root, installs, own)
    other_bytes, Tests, rewriters = make_tests(root, judged, source_of)
    survivors, git_steered = make_before(root, ends)

    builtin = dict(vars(sys.modules["builtins"]))

    def loaded():
        found, names = set(), set()
        for module in list(sys.modules.values()):
            try:
                file = module.__file__
            except Exception:
                continue
            if isinstance(file, str) and (file.startswith(root) or not file.startswith("/")):
                found.add(file)
        for file in found | ran:
            names.add(file[len(root) :] if file.startswith(root) else file)
        return sorted(name for name in names if not name.startswith(("/", "<")))

    def end(tests, more):
        now = vars(sys.modules["builtins"])
        facts = {
            "outcomes": tests.outcomes,
            "where": tests.where,
            "made_of": tests.made_of,
            "strange": tests.strange[:20],
            "changed": changed() + [["builtins." + name, ""] for name in builtin if now.get(name) is not builtin[name]],
            "unlike": (quietly(unlike) or [])[:20],
            "other_bytes": other_bytes(),
            "loaded": loaded(),
        }
        facts.update(more)
        say("end", facts)

    def begin(runner):
        find_inodes()
        left = quietly(survivors) or []  # first: what is looked at afterwards nobody changes
        other = early + other_bytes()
        say("began", {"runner": runner, "other_bytes": other, "bytes": dict(judged), "survivors": left,
                      "git": quietly(git_steered) or []})  # fmt: skip

    def stop():
        """From here on code of the repository runs: nothing of the witness is left where it can be found cheaply."""
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    hooks = {
        "unittest.runner": make_unittest(depth, Tests, stop, begin, end, quietly),
        "_pytest.main": make_pytest(root, depth, Tests, rewriters, source_of, stop, begin, end, quietly),
    }

    class Finder:
        busy = False

        def find_spec(self, name, path=None, target=None):
            if self.busy or name.partition(".")[0] not in frameworks:
                return None
            import importlib.util

            self.busy = True
            try:
                spec = importlib.util.find_spec(name)
            finally:
                self.busy = False
            if spec is None or spec.loader is None:
                return None
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                hook = hooks.pop(name, None)
                if hook is not None:
                    early.extend(quietly(other_bytes) or ())
                    hook(module)
                keep(module)
                expect(module, spec)

            spec.loader.exec_module = exec_module
            return spec

    finder = Finder()

    find_inodes()
    sys.meta_path.insert(0, finder)
    if hasattr(sys, "addaudithook"):
        sys.addaudithook(hook)
