# A part of the witness: see __init__.py.
# mypy: ignore-errors
def make_pytest(root, depth, Tests, rewriters, source_of, stop, begin, end, quietly):
    """Follows pytest's session. `depth`: runners at work, one in the other."""
    import os
    import sys
    from types import ModuleType

    read_link = os.path.realpath

    def pytest_main(module):
        wrap = module.wrap_session

        class Reports:
            def __init__(self, tests):
                self.tests, self.items = tests, []

            def pytest_runtest_logreport(self, report):
                quietly(self.note, report)

            def note(self, report):
                name = report.nodeid
                if hasattr(report, "wasxfail"):
                    outcome = "xfailed" if report.skipped else "xpassed"
                elif report.failed or report.skipped:
                    outcome = report.outcome
                elif report.when == "call":
                    outcome = "passed"
                else:
                    return
                self.tests.end(name, outcome)
                if report.skipped and isinstance(report.longrepr, tuple):
                    self.tests.put(read_link(str(report.longrepr[0])), name)

        def places(manager):
            found = set()
            for _, plugin in manager.list_name_plugin():
                inside = plugin if isinstance(plugin, ModuleType) else sys.modules.get(type(plugin).__module__)
                file = getattr(inside, "__file__", None)
                if isinstance(file, str) and file.startswith(root):
                    found.add(file[len(root) :])
            return sorted(found)

        def look(item, tests):
            function, owner = getattr(item, "function", None), getattr(item, "cls", None)
            if function is None:
                return
            put = [key for key in ("runtest", "setup", "ihook", "_traceback_filter") if key in vars(item)]
            if put:
                tests.strange.append(item.nodeid + ": " + put[0] + " was put on it")
            held = getattr(owner or item.module, getattr(item, "originalname", None) or item.name, None)
            called = str(getattr(item, "originalname", None) or item.name)
            tests.look(item.nodeid, called, held or function, owner, item.module, item.config)
            for fixtures in getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).values():
                for fixture in fixtures or ():
                    file = source_of(fixture.func)
                    if file:
                        tests.put(read_link(file), item.nodeid)

        def ask(items):
            def fail():
                raise AssertionError("probe")

            for item in items:
                if any(mark.name in ("xfail", "flaky") for mark in item.iter_markers()):
                    continue
                import warnings

                call = sys.modules["_pytest.runner"].CallInfo.from_call(fail, when="call")
                item.funcargs = {}  # gone since its teardown, and plugins ask for it
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return item.ihook.pytest_runtest_makereport(item=item, call=call).outcome == "failed"
            return None

        def watched(config, doit):
            if depth[0]:
                return wrap(config, doit)
            depth[0] += 1
            tests = Tests()
            reports, sessions = Reports(tests), []
            stop()
            rewrite = sys.modules.get("_pytest.assertion.rewrite")
            if rewrite is not None and hasattr(rewrite, "_rewrite_test"):
                rewriters.append(rewrite._rewrite_test)
            config.pluginmanager.register(reports)
            module.wrap_session = wrap
            quietly(begin, "pytest")

            def kept_session(config, session):
                sessions.append(session)
                return doit(config, session)

            try:
                status = wrap(config, kept_session)
            finally:
                depth[0] -= 1
                module.wrap_session = watched

            def finish():
                items = list(getattr(sessions[0], "items", ())) if sessions else []
                for item in items:
                    look(item, tests)
                try:
                    honest = ask(items)
                except Exception:  # older runners lack what it needs
                    honest = None
                end(tests, {"runner": "pytest", "probe": honest, "plugins": places(config.pluginmanager),
                            "status": int(status)})  # fmt: skip

            quietly(finish)
            return status

        module.wrap_session = watched

    return pytest_main
