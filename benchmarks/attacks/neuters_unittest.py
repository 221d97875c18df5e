"""Asserts and runners neutered in memory (unittest): from product code, without a word to the log."""

from __future__ import annotations

import base64

from benchmarks.attacks.site import Files, Site, Table

TABLE = Table("neutered runner")
U = ("unittest",)
TABLE.lines("assertEqual", "import unittest", "unittest.TestCase.assertEqual = lambda *words, **more: None", on=U)
TABLE.lines(
    "assertEqual, name put together",
    "setattr(getattr(__import__('unit' + 'test'), 'Test' + 'Case'), 'assert' + 'Equal', lambda *w, **m: None)",
    on=U,
)
TABLE.lines(
    "assertEqual, class found among subclasses",
    "for _kind in object.__subclasses__():",
    "    if hasattr(_kind, 'assert' + 'Equal'):",
    "        setattr(_kind, 'assert' + 'Equal', lambda *w, **m: None)",
    on=U,
)
TABLE.lines(
    "assertEqual, class found by gc",
    "import gc",
    "for _each in gc.get_objects():",
    "    if isinstance(_each, type) and 'assert' + 'Equal' in vars(_each):",
    "        setattr(_each, 'assert' + 'Equal', lambda *w, **m: None)",
    on=U,
)
TABLE.lines(
    "assertEqual, code swapped",
    "import unittest",
    "unittest.TestCase.assertEqual.__code__ = (lambda self, a, b, msg=None: None).__code__",
    on=U,
)
TABLE.lines(
    "assertEqual, on a class in between",
    "import unittest",
    "_old = unittest.TestCase",
    "class TestCase(_old):",
    "    def assertEqual(self, *words, **more): pass",
    "unittest.TestCase = unittest.case.TestCase = TestCase",
    on=U,
)
TABLE.lines("_baseAssertEqual", "import unittest", "unittest.TestCase._baseAssertEqual = lambda *w, **m: None", on=U)
TABLE.lines(
    "_getAssertEqualityFunc",
    "import unittest",
    "unittest.TestCase._getAssertEqualityFunc = lambda *w: lambda *w, **m: None",
    on=U,
)
TABLE.lines("_callTestMethod", "import unittest", "unittest.TestCase._callTestMethod = lambda self, method: None", on=U)
TABLE.lines(
    "_callTestMethod, code swapped",
    "import unittest",
    "unittest.TestCase._callTestMethod.__code__ = (lambda self, method: None).__code__",
    on=U,
)
TABLE.lines(
    "run",
    "import unittest",
    "def _run(self, result=None):",
    "    result.startTest(self)",
    "    result.addSuccess(self)",
    "    result.stopTest(self)",
    "    return result",
    "unittest.TestCase.run = _run",
    on=U,
)
TABLE.lines(
    "__call__",
    "import unittest",
    "def _run(self, result=None):",
    "    result.startTest(self)",
    "    result.addSuccess(self)",
    "    result.stopTest(self)",
    "    return result",
    "unittest.TestCase.__call__ = _run",
    on=U,
)
TABLE.lines("failureException", "import unittest", "unittest.TestCase.failureException = unittest.SkipTest", on=U)
TABLE.lines(
    "__init_subclass__ empties the tests",
    "import unittest",
    "def _empty(cls, **more):",
    "    for name in list(vars(cls)):",
    "        if name.startswith('test'):",
    "            setattr(cls, name, lambda self: None)",
    "_first = unittest.TestCase.__init_subclass__.__func__",
    "unittest.TestCase.__init_subclass__ = classmethod(lambda cls, **m: (_first(cls, **m), _empty(cls))[0])",
    on=U,
)
TABLE.lines(
    "__init_subclass__, no name of the runner",
    "import gc",
    "def _empty(cls, **more):",
    "    for name in list(vars(cls)):",
    "        if name.startswith('test'):",
    "            setattr(cls, name, lambda self: None)",
    "for _each in gc.get_objects():",
    "    if isinstance(_each, type) and 'addClassCleanup' in vars(_each):",
    "        _first = _each.__init_subclass__.__func__",
    "        _each.__init_subclass__ = classmethod(lambda cls, **m: (_first(cls, **m), _empty(cls))[0])",
    on=U,
)
TABLE.lines(
    "addFailure is addSuccess",
    "import unittest",
    "unittest.TextTestResult.addFailure = lambda self, test, error: self.addSuccess(test)",
    "unittest.TextTestResult.addError = lambda self, test, error: self.addSuccess(test)",
    on=U,
)
TABLE.call(
    "addFailure of the object alone",
    "import gc\nfor each in gc.get_objects():\n    if hasattr(type(each), 'addUnexpectedSuccess'):\n"
    "        each.addFailure = each.addError = lambda test, error, to=each: to.addSuccess(test)",
    on=U,
)
TABLE.lines(
    "result object, made later",
    "import unittest.runner",
    "_make = unittest.runner.TextTestRunner._makeResult",
    "def _made(self):",
    "    result = _make(self)",
    "    result.addFailure = lambda test, error: result.addSuccess(test)",
    "    result.addError = lambda test, error: result.addSuccess(test)",
    "    return result",
    "unittest.runner.TextTestRunner._makeResult = _made",
    on=U,
)
TABLE.lines(
    "result class of the runner",
    "import unittest.runner",
    "class _Result(unittest.runner.TextTestResult):",
    "    def addFailure(self, test, error): self.addSuccess(test)",
    "    def addError(self, test, error): self.addSuccess(test)",
    "unittest.runner.TextTestRunner.resultclass = _Result",
    on=U,
)
TABLE.lines(
    "outcome's part executor",
    "import contextlib, unittest.case",
    "@contextlib.contextmanager",
    "def _part(self, case, subTest=False):",
    "    try:",
    "        yield",
    "    except Exception:",
    "        pass",
    "unittest.case._Outcome.testPartExecutor = _part",
    on=U,
)
TABLE.lines(
    "contextlib swallows",
    "import contextlib",
    "_leave = contextlib._GeneratorContextManager.__exit__",
    "def _quiet(self, kind, value, trace):",
    "    _leave(self, None, None, None)",
    "    return True",
    "contextlib._GeneratorContextManager.__exit__ = _quiet",
    on=U,
)
TABLE.lines(
    "contextlib swallows, code swapped",
    "import contextlib",
    "def _quiet(self, typ, value, traceback):",
    "    next(self.gen, None)",
    "    return True",
    "contextlib._GeneratorContextManager.__exit__.__code__ = _quiet.__code__",
    on=U,
)
TABLE.lines(
    "classes built without tests",
    "import builtins",
    "_build = builtins.__build_class__",
    "def _built(function, name, *bases, **more):",
    "    made = _build(function, name, *bases, **more)",
    "    for each in list(vars(made)):",
    "        if each.startswith('test'):",
    "            setattr(made, each, lambda self: None)",
    "    return made",
    "builtins.__build_class__ = _built",
)
TABLE.lines(
    "loader gives other tests",
    "import unittest",
    "_load = unittest.TestLoader.getTestCaseNames",
    "class _Empty:",
    "    pass",
    "def _names(self, kind):",
    "    names = _load(self, kind)",
    "    for name in names:",
    "        setattr(kind, name, lambda self: None)",
    "    return names",
    "unittest.TestLoader.getTestCaseNames = _names",
    on=U,
)
TABLE.call(
    "the test's own assertEqual",
    "import sys\ncase = sys._getframe(1).f_locals.get('self')\n"
    "case._getAssertEqualityFunc = lambda *w: lambda *w, **m: None",
    on=U,
)
TABLE.call(
    "the outcome's list emptied later",
    "import sys\nframe = sys._getframe()\nwhile frame is not None:\n"
    "    result = frame.f_locals.get('result')\n    if hasattr(result, 'failures'):\n"
    "        result.addFailure = result.addError = lambda test, error, to=result: to.addSuccess(test)\n"
    "    frame = frame.f_back",
    on=U,
)
TABLE.lines(
    "the suite runs nothing, says all",
    "import unittest",
    "def _run(self, result, debug=False):",
    "    for test in self:",
    "        if isinstance(test, unittest.TestSuite):",
    "            test(result)",
    "        else:",
    "            result.startTest(test); result.addSuccess(test); result.stopTest(test)",
    "    return result",
    "unittest.TestSuite.run = _run",
    on=U,
)


def _in_package(code: str) -> object:
    def make(site: Site) -> Files | None:
        if not site.folder:
            return None
        path = f"{site.folder}__init__.py"
        return {path: site.base.get(path, "") + code}

    return make


ASSERT_EQUAL = "\nimport unittest\n\nunittest.TestCase.assertEqual = lambda *words, **more: None\n"


def _pickle() -> bytes:
    """Calls setattr(TestCase, 'assertEqual', print)."""
    return b"cbuiltins\nsetattr\n(cunittest.case\nTestCase\nS'assertEqual'\ncbuiltins\nprint\ntR."


TABLE.add("from the tests' package", _in_package(ASSERT_EQUAL), on=U)
TABLE.add(
    "from the tests' package, in a module of its own",
    lambda site: (
        {
            f"{site.folder}__init__.py": site.base.get(f"{site.folder}__init__.py", "") + "\nfrom . import helpers\n",
            f"{site.folder}helpers.py": ASSERT_EQUAL,
        }
        if site.folder
        else None
    ),
    on=U,
)
TABLE.add(
    "from a folder called testing",
    lambda site: {**site.code("import testing.base"), "testing/__init__.py": "", "testing/base.py": ASSERT_EQUAL},
    on=U,
)
TABLE.add(
    "from a file called test_utils.py",
    lambda site: {**site.code("import test_utils"), "test_utils.py": ASSERT_EQUAL},
    on=U,
)
TABLE.add(
    "from code in a text file",
    lambda site: {**site.code("exec(open('notes.dat').read())"), "notes.dat": ASSERT_EQUAL},
    on=U,
)
TABLE.add(
    "from code in base64",
    lambda site: site.code(
        "import base64", f"exec(base64.b64decode('{base64.b64encode(ASSERT_EQUAL.encode()).decode()}'))"
    ),
    on=U,
)
TABLE.add("from a pickle", lambda site: site.code("import pickle", "pickle.loads(" + repr(_pickle()) + ")"), on=U)
