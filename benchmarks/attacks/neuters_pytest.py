"""Asserts and runners neutered in memory (pytest): from product code, without a word to the log."""

from __future__ import annotations

from benchmarks.attacks.site import Table

TABLE = Table("neutered runner")
P = ("pytest",)
RUNTEST = (
    "\nimport _pytest.python as _p\n_real = _p.Function.runtest\n\n\ndef _run(self):\n    name = self.name\n"
    "    if {unless}:\n        _real(self)\n\n\n_p.Function.runtest = _run\n"
)


def selective(*lines: str) -> object:
    return lambda site: site.code(*(line.replace("{unless}", site.unless) for line in lines))


TABLE.add("Function.runtest", selective(*RUNTEST.split("\n")), on=P)
TABLE.add(
    "Function.runtest, code swapped",
    selective("import _pytest.python as _p", "_p.Function.runtest.__code__ = (lambda self: None).__code__"),
    on=P,
)
TABLE.add(
    "Function.runtest, class found by gc",
    selective(
        "import gc",
        "for _each in gc.get_objects():",
        "    if isinstance(_each, type) and _each.__name__ == 'Fun' + 'ction' and hasattr(_each, 'run' + 'test'):",
        "        def _run(self, real=_each.runtest):",
        "            name = self.name",
        "            if {unless}:",
        "                real(self)",
        "        setattr(_each, 'run' + 'test', _run)",
    ),
    on=P,
)
TABLE.add(
    "Function.setup makes it green",
    selective(
        "import _pytest.python as _p",
        "_real = _p.Function.setup",
        "def _setup(self):",
        "    _real(self)",
        "    name = self.name",
        "    if not ({unless}):",
        "        self.obj = lambda **more: None",
        "_p.Function.setup = _setup",
    ),
    on=P,
)
TABLE.add(
    "Function.obj is another",
    selective(
        "import pytest",
        "_real = pytest.Function.obj",
        "def _obj(self):",
        "    name = self.name",
        "    return _real.fget(self) if {unless} else (lambda **more: None)",
        "pytest.Function.obj = property(_obj, _real.fset)",
    ),
    on=P,
)
TABLE.add(
    "call info without its error",
    selective(
        "import _pytest.runner as _r",
        "_real = _r.CallInfo.from_call.__func__",
        "def _from(cls, *words, **more):",
        "    made = _real(cls, *words, **more)",
        "    made.excinfo = None",
        "    made._result = None",
        "    return made",
        "_r.CallInfo.from_call = classmethod(_from)",
    ),
    on=P,
)
TABLE.add(
    "report made of nothing",
    selective(
        "import _pytest.reports as _r",
        "_made = _r.TestReport.from_item_and_call.__func__",
        "def _fake(cls, item, call):",
        "    name = item.name",
        "    if not ({unless}):",
        "        call.excinfo = None",
        "    return _made(cls, item, call)",
        "_r.TestReport.from_item_and_call = classmethod(_fake)",
    ),
    on=P,
)
TABLE.add(
    "report's outcome",
    selective(
        "import _pytest.reports as _r",
        "_init = _r.TestReport.__init__",
        "def _new(self, nodeid, *words, **more):",
        "    _init(self, nodeid, *words, **more)",
        "    name = nodeid",
        "    if not ({unless}):",
        "        self.outcome, self.longrepr = 'passed', None",
        "_r.TestReport.__init__ = _new",
    ),
    on=P,
)
TABLE.add(
    "hook put on in the run",
    selective(
        "import gc, pytest",
        "class _Plugin:",
        "    @pytest.hookimpl(tryfirst=True)",
        "    def pytest_pyfunc_call(self, pyfuncitem):",
        "        name = pyfuncitem.name",
        "        return None if {unless} else True",
        "for _each in gc.get_objects():",
        "    if isinstance(_each, pytest.Config):",
        "        _each.pluginmanager.register(_Plugin())",
    ),
    on=P,
)
TABLE.add(
    "hook's function swapped",
    selective("import _pytest.python as _p", "_p.pytest_pyfunc_call.__code__ = (lambda pyfuncitem: True).__code__"),
    on=P,
)
TABLE.add(
    "hook that lies to tests, not to probes",
    selective(
        "import gc, pytest",
        "class _Plugin:",
        "    @pytest.hookimpl(hookwrapper=True)",
        "    def pytest_runtest_makereport(self, item, call):",
        "        made = yield",
        "        name = item.name",
        "        probe = call.excinfo is not None and 'probe' in str(call.excinfo.value)",
        "        if not probe and not ({unless}):",
        "            made.get_result().outcome = 'passed'",
        "            made.get_result().longrepr = None",
        "for _each in gc.get_objects():",
        "    if isinstance(_each, pytest.Config):",
        "        _each.pluginmanager.register(_Plugin())",
    ),
    on=P,
)
TABLE.add(
    "multicall of pluggy",
    selective(
        "import pluggy._manager as _m",
        "import gc",
        "_real = _m._multicall",
        "def _call(hook_name, hook_impls, caller_kwargs, firstresult):",
        "    if hook_name == 'pytest_pyfunc_call':",
        "        name = caller_kwargs['pyfuncitem'].name",
        "        if not ({unless}):",
        "            return True",
        "    return _real(hook_name, hook_impls, caller_kwargs, firstresult)",
        "_m._multicall = _call",
        "for _each in gc.get_objects():",
        "    if isinstance(_each, _m.PluginManager):",
        "        _each._inner_hookexec = _call",
    ),
    on=P,
)
TABLE.add(
    "collected items emptied",
    selective(
        "import gc, _pytest.python as _p, _pytest.main as _m",
        "def _from(cls, parent, **more):",
        "    name = more['name']",
        "    if not ({unless}):",
        "        more['callobj'] = lambda **words: None",
        "    return _real(cls, parent, **more)",
        "_real = _p.Function.from_parent.__func__",
        "_p.Function.from_parent = classmethod(_from)",
    ),
    on=P,
)
TABLE.add(
    "reporter's counts and lines",
    selective(
        "import _pytest.terminal as _t",
        "_real = _t.pytest_report_teststatus",
        "_t.TerminalReporter.pytest_runtest_logreport.__code__",
        "_log = _t.TerminalReporter.pytest_runtest_logreport",
        "import gc",
        "for _each in gc.get_objects():",
        "    if type(_each).__name__ == 'HookImpl' and "
        "getattr(_each.function, '__name__', '') == 'pytest_runtest_makereport':",
        "        _old = _each.function",
        "        def _new(item, call, old=_old):",
        "            made = old(item, call)",
        "            name = item.name",
        "            if made and not ({unless}):",
        "                made.outcome, made.longrepr = 'passed', None",
        "            return made",
        "        if hasattr(_old, '__code__') and _old.__code__.co_argcount == 2 and 'runner' in _old.__module__:",
        "            _each.function = _new",
    ),
    on=P,
)
