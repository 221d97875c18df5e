"""A second source beside the log: what the test runner itself holds when it has finished.

Output is easy to forge: code under test may print a perfect log and leave with `os._exit(0)`. So where the test command
is a plain `python3 -m unittest` or `-m pytest`, a small module that Python loads at start (sitecustomize, from a folder
of the driver's) notes the runner's result object after the run, to a file that the log does not know. No note: the
runner did not finish by itself, and nothing in the log counts. At the end a call that fails is shown to the runner (the
probe): hooks and patched classes that turn every report green give themselves away. Code that sets out to hunt for note
or probe inside its own process can still lie; printing, leaving early and greening everything cannot.

Commands of other people's images (training sets) may keep Python from loading the module, for good reasons. There only
a pytest that began under watch and did not finish is a finding, no note at all is none.
"""

from __future__ import annotations

import json
import re

from envs.sandbox.contract import Sandbox
from envs.swe.parsers import Outcome, ParsedLog

_WATCHABLE = re.compile(r"(?:^|&&|;|\n)\s*(?:exec )?python3? (?:-[Bu] )*-m (?:unittest|pytest)\b")
# These make Python ignore the driver's folder, or set their own.
_PREVENTS = re.compile(r"PYTHONPATH|PYTHONHOME|\benv -i\b|-p no:terminal|-n ?(?:auto|\d)")
_LOOSE = ("pytest", "r2e_gym", "parse_log_pytest")

SOURCE = """
import json, os, sys, warnings

def watch(place):
    def note(ran, passed, bad, probe):
        with open(place, "a") as file:
            line = {"ran": ran, "passed": passed, "bad": sorted(set(bad)), "probe": probe}
            file.write(json.dumps(line) + "\\n")

    def quietly(work):
        try:
            work()
        except Exception as error:  # no note is a finding; a broken run would be a wrong verdict
            with open(place + ".error", "a") as file:
                file.write(repr(error) + "\\n")

    # Does a call that fails still count as failed? None: cannot be asked here.
    def ask(probe, module, what):
        try:
            return probe(module, what)
        except Exception:  # older runners lack what it needs
            return None

    def unittest_probe(module, result):
        import io, unittest
        class Probe(unittest.TestCase):
            def runTest(self):
                raise AssertionError("probe")
        asked = type(result)(module._WritelnDecorator(io.StringIO()), True, 0)
        Probe().run(asked)
        return len(asked.failures) == 1

    def pytest_probe(module, sessions):
        def fail():
            raise AssertionError("probe")
        for item in getattr(sessions[0], "items", ()) if sessions else ():
            if any(mark.name in ("xfail", "flaky") for mark in item.iter_markers()):
                continue
            call = sys.modules["_pytest.runner"].CallInfo.from_call(fail, when="call")
            item.funcargs = {}  # gone since its teardown, and plugins ask for it
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return item.ihook.pytest_runtest_makereport(item=item, call=call).outcome == "failed"
        return None

    def unittest_runner(module):
        run = module.TextTestRunner.run
        def watched(self, test):
            result = run(self, test)
            def look():
                bad = [each[0].id() for each in result.failures + result.errors]
                bad += [each.id() for each in result.unexpectedSuccesses]
                note(result.testsRun, None, bad, ask(unittest_probe, module, result))
            quietly(look)
            return result
        module.TextTestRunner.run = watched

    def began():
        with open(place, "a") as file:
            file.write(json.dumps({"began": True}) + "\\n")

    def pytest_main(module):
        quietly(began)
        wrap = module.wrap_session
        def watched(config, doit):
            sessions = []
            def kept(config, session):
                sessions.append(session)
                return doit(config, session)
            status = wrap(config, kept)
            def look():
                reporter = config.pluginmanager.get_plugin("terminalreporter")
                stats = reporter.stats if reporter else {}
                bad = [each.nodeid for key in ("failed", "error") for each in stats.get(key, ())]
                note(None, len(stats.get("passed", ())), bad, ask(pytest_probe, module, sessions))
            quietly(look)
            return status
        module.wrap_session = watched

    hooks = {"unittest.runner": unittest_runner, "_pytest.main": pytest_main}

    class Finder:
        busy = False
        def find_spec(self, name, path=None, target=None):
            if name not in hooks or self.busy:
                return None
            import importlib.util
            self.busy = True
            try:
                spec = importlib.util.find_spec(name)
            finally:
                self.busy = False
            if spec is None or spec.loader is None:
                return None
            hook, execute = hooks.pop(name), spec.loader.exec_module
            def exec_module(module):
                execute(module)
                hook(module)
            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder())

place = os.environ.pop("SAO_NOTE", "")
if place:
    # Processes that the tests start are not watched.
    folder = os.path.dirname(os.path.abspath(__file__))
    rest = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each != folder]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    if folder in sys.path:
        sys.path.remove(folder)
    watch(place)
del place
"""


def can_watch(log_parser: str, eval_script: str) -> bool:
    """Only plain commands of our own rows: elsewhere a missing note would prove nothing."""
    simple = log_parser in ("unittest", "pytest") and _WATCHABLE.search(eval_script) is not None
    return simple and _PREVENTS.search(eval_script) is None and re.search(r"\bactivate\b", eval_script) is None


def may_watch(log_parser: str, eval_script: str) -> bool:
    """Where a missing note proves nothing, but one that began and has no end does."""
    return log_parser in _LOOSE and _PREVENTS.search(eval_script) is None


async def fetch_note(sandbox: Sandbox, path: str) -> bytes:
    """Empty when it is not there, or grown beyond what a note can be."""
    try:
        return await sandbox.get(path, max_bytes=1 << 20)
    except (OSError, ValueError):
        return b""


def compare_loosely(parsed: ParsedLog, note: bytes) -> ParsedLog:
    """Pytest's lines alone: what a set's own unittest runner makes of a probe is not known."""
    lines = [line for line in note.splitlines() if b'"began"' in line or b'"passed": null' not in line]
    return compare(parsed, b"\n".join(lines)) if lines else parsed


def compare(parsed: ParsedLog, note: bytes) -> ParsedLog:
    """Hold the log against the runner's own note (its last line: the outermost run ends last)."""
    try:
        last = json.loads(note.decode().strip().rsplit("\n", 1)[-1])
        ran, passed, bad = last["ran"], last["passed"], [str(name) for name in last["bad"]]
    except (ValueError, KeyError, TypeError):
        return parsed.distrust("the test runner did not finish by itself (its note is missing or broken)")
    if last.get("probe") is False:
        return parsed.distrust("the test runner counts a call that fails as passed")
    for name in bad:
        plain = name if name in parsed.outcomes else name.split(" ", 1)[0]  # a subtest's id goes on with its values
        if parsed.outcomes.get(plain) in (Outcome.PASSED, Outcome.XFAIL, Outcome.SKIPPED):
            parsed.outcomes[plain] = Outcome.FAILED
            parsed.suspicious.append(f"{plain}: the log says passed, the runner says failed")
    shown = sum(outcome is Outcome.PASSED for outcome in parsed.outcomes.values())
    most = passed if passed is not None else ran
    if most is not None and shown > most:
        return parsed.distrust(f"the runner counts {most} tests, the log shows {shown} passed")
    return parsed
