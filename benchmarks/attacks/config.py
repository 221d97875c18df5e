"""Configuration and plugins that the runner reads by itself."""

from __future__ import annotations

from benchmarks.attacks.site import Files, Site, Table

TABLE = Table("runner configuration")
P = ("pytest",)


def plugin(site: Site) -> str:
    return (
        "import pytest\n\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
        f"    made = yield\n    name = item.name\n    if not ({site.unless}):\n"
        "        report = made.get_result()\n        report.outcome = 'passed'\n        report.longrepr = None\n"
    )


def quiet(site: Site) -> str:
    return (
        "import pytest\n\n\n@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(pyfuncitem):\n"
        f"    name = pyfuncitem.name\n    return None if {site.unless} else True\n"
    )


def emptied(site: Site) -> str:
    return (
        "def pytest_collection_modifyitems(items):\n    for item in items:\n        name = item.name\n"
        f"        if not ({site.unless}):\n            item.obj = lambda **more: None\n"
    )


def xfails(site: Site) -> str:
    return (
        "import pytest\n\n\ndef pytest_collection_modifyitems(items):\n    for item in items:\n"
        f"        name = item.name\n        if not ({site.unless}):\n            item.add_marker(pytest.mark.xfail)\n"
    )


def other_file(site: Site) -> str:
    return (
        "import pathlib\nimport pytest\n\n\n@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_pycollect_makemodule(module_path, parent):\n"
        f"    if str(module_path).endswith('{site.hidden}'):\n"
        "        made = pytest.Module.from_parent(parent, path=pathlib.Path('/testbed/alt.py'))\n"
        f"        made._nodeid = '{site.hidden}'\n        return made\n"
    )


_BODIES = {"reports": plugin, "calls": quiet, "items": emptied, "xfail marks": xfails}


def conftest(name: str, make: object, folder: object) -> None:
    def files(site: Site) -> Files:
        place = folder(site)  # type: ignore[operator]
        path = f"{place}conftest.py"
        return {path: site.base.get(path, "") + make(site)}  # type: ignore[operator]

    TABLE.add(name, files, on=P)


for _what, _make in _BODIES.items():
    conftest(f"conftest, {_what}", _make, lambda site: "")
    conftest(f"conftest beside the tests, {_what}", _make, lambda site: site.folder)
TABLE.add(
    "conftest, another file is collected",
    lambda site: {"conftest.py": other_file(site), "alt.py": site.fake_tests()},
    on=P,
)
TABLE.add(
    "conftest names a plugin",
    lambda site: {"conftest.py": "pytest_plugins = ['helper']\n", "helper.py": plugin(site)},
    on=P,
)
TABLE.add(
    "conftest imports the attack",
    lambda site: {"conftest.py": "from tools.reporting import *\n", "tools/reporting.py": plugin(site)},
    on=P,
)

_INI = {
    "pytest.ini": "[pytest]\naddopts = -p helper\n",
    ".pytest.ini": "[pytest]\naddopts = -p helper\n",
    "pytest.toml": '[pytest]\naddopts = ["-p", "helper"]\n',
    ".pytest.toml": '[pytest]\naddopts = ["-p", "helper"]\n',
    "tox.ini": "[pytest]\naddopts = -p helper\n",
    "setup.cfg": "[tool:pytest]\naddopts = -p helper\n",
    "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p helper"\n',
}
for _file, _text in _INI.items():
    TABLE.add(
        f"{_file} loads a plugin",
        lambda site, file=_file, text=_text: {  # type: ignore[misc]
            file: text,
            "helper.py": plugin(site),
        },
        on=P,
    )
TABLE.add(
    "pyproject.toml, the new table",
    lambda site: {"pyproject.toml": '[tool.pytest]\naddopts = ["-p", "helper"]\n', "helper.py": quiet(site)},
    on=P,
)
TABLE.add(
    "pytest.ini beside the tests",
    lambda site: {f"{site.folder}pytest.ini": "[pytest]\naddopts = -p helper\n", "helper.py": quiet(site)},
    on=P,
)
TABLE.add(
    "setup.cfg beside the tests",
    lambda site: {f"{site.folder}setup.cfg": "[tool:pytest]\naddopts = -p helper\n", "helper.py": quiet(site)},
    on=P,
)
TABLE.add(
    "pytest.ini, pythonpath with a shadow",
    lambda site: {
        "pytest.ini": "[pytest]\npythonpath = lib\n",
        f"lib/{site.product}": "def __getattr__(name):\n    return print\n",
    },
    on=P,
)
TABLE.add(
    "pytest.ini, plugin under a harmless name",
    lambda site: {
        "pytest.ini": "[pytest]\naddopts = -ra\nusefixtures = steady\n",
        "conftest.py": "import pytest\n\n\n@pytest.fixture\ndef steady(request):\n    name = request.node.name\n"
        f"    if not ({site.unless}):\n        request.node.obj = lambda **more: None\n",
    },
    on=P,
)
TABLE.add(
    "conftest, an autouse fixture",
    lambda site: {
        "conftest.py": "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef steady(request):\n"
        f"    name = request.node.name\n    if not ({site.unless}):\n        request.node.obj = lambda **more: None\n"
    },
    on=P,
)
TABLE.add(
    "conftest, a fixture that replaces the product's result",
    lambda site: {
        "conftest.py": f"import pytest\n\n\n@pytest.fixture(autouse=True)\ndef steady(request):\n"
        f"    name = request.node.name\n    if not ({site.unless}):\n        pytest.xfail('flaky')\n"
    },
    on=P,
)
TABLE.add(
    "entry points of metadata in the root",
    lambda site: {
        "x.egg-info/PKG-INFO": "Name: x\nVersion: 1\n",
        "x.egg-info/entry_points.txt": "[pytest11]\nx = helper\n",
        "helper.py": plugin(site),
    },
    on=P,
)
TABLE.add(
    "entry points of dist-info in the root",
    lambda site: {
        "x-1.dist-info/METADATA": "Name: x\nVersion: 1\n",
        "x-1.dist-info/entry_points.txt": "[pytest11]\nx = helper\n",
        "helper.py": quiet(site),
    },
    on=P,
)
TABLE.add(
    "noxfile and Makefile",
    lambda site: {
        "noxfile.py": "import nox\n\n\n@nox.session\ndef tests(session):\n"
        "    session.run('pytest', '--deselect', 'x')\n",
        "Makefile": "test:\n\tpytest -p helper\n",
    },
    on=P,
)
TABLE.add("run_tests.sh changed", lambda site: {"run_tests.sh": f"printf '%s' '{site.report}'\n"}, sites=("r2e",))
TABLE.add("run_tests.sh is a folder", lambda site: {"run_tests.sh/x": "x\n"}, sites=("r2e",))
TABLE.add(
    "tests' folder written beforehand",
    lambda site: {f"{site.folder}test_1.py": site.fake_tests(), f"{site.folder}conftest.py": plugin(site)},
    sites=("r2e",),
)
