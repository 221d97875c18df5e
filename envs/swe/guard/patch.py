"""What in a patch could make tests report what is not so.

Promises: nothing is run; a finding names the file. What honest patches do is left alone: edits of tests that are put
back anyway, new tests, dependency pins, the `-rA` that SWE-bench's own images put into test configuration, and in a
repository that is itself a test framework its own names (measured on 500 real patches, docs/results/swebench.md).
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from collections.abc import Collection, Iterable, Iterator

from envs.swe.guard.changes import FileChange, changed_files
from envs.swe.guard.code import traits
from envs.swe.guard.findings import Finding, Hole
from envs.swe.guard.harmless import only_markers
from envs.swe.guard.judged import Judged, test_module

_ALWAYS_CONFIG = re.compile(
    r"(?:^|/)(?:\.?pytest\.(?:ini|toml)|sitecustomize\.py|usercustomize\.py|\.coveragerc|\.?noserc|\.?unittest\.cfg)$"
    r"|\.(?:pth|egg-link)$|(?:^|/)pyvenv\.cfg$|(?:^|/)python\d*\._pth$",
    re.I,
)
_SHARED_CONFIG = re.compile(r"(?:^|/)(?:setup\.cfg|tox\.ini|tox\.toml|pyproject\.toml|setup\.py|noxfile\.py|Makefile)$")
_CONFIG_WORDS = re.compile(
    rb"pytest|addopts|testpaths|python_(?:files|classes|functions)|unittest|nose|entry.points|\bcommands *=|pytest11"
    rb"|\bpythonpath\b|\bsetenv\b|norecursedirs|usefixtures|xfail_strict|filterwarnings|build-backend|backend-path"
    rb"|\bcmdclass\b|confcutdir|required_plugins|\bplugins\b|doctest"
)
_REQUIREMENTS = re.compile(
    rb"(?:(?:tests?|dev|docs?|lint|all|ci|extras?|dependencies|requires|tests_require|install_requires)\s*=\s*)?\[?"
    rb"(?:[\"'][A-Za-z][\w.-]*(?:\[[\w,]*\])?(?:\s*[<>=!~][\w.*, <>=!~]*)?[\"'],?\s*)+\]?,?"
)
_INSTALL_CODE = re.compile(
    rb"\b(?:subprocess|Popen|system|popen|threading|fork\w*|daemon|spawn\w*|write_text|write_bytes)\b"
)
_PLUGIN_LIST = re.compile(r"\.(?:egg-info|dist-info)/")
_RUNNERS = ("unittest", "pytest", "_pytest", "pluggy", "py", "nose", "tox", "xdist", "coverage", "sitecustomize",
            "usercustomize")  # fmt: skip
_HELPERS = ("iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "attr", "attrs", "execnet", "mock", "six",
            "_distutils_hack", "pkg_resources", "setuptools", "pip", "conda")  # fmt: skip
_FOUND_FIRST = ({*_RUNNERS, *_HELPERS} | set(sys.stdlib_module_names)) - {"test", "this", "antigravity", "turtledemo"}
_COMPILED = re.compile(r"\.(?:pyc|pyo|so|pyd|dll|dylib|egg|zip|whl|jar|class)(?:\.\d+)*$")
_GIT_INSIDES = re.compile(r"(?:^|/)\.git(?:/|$)|(?:^|/)\.git(?:attributes|modules)$", re.I)
_READS = re.compile(
    r"(?:\bcat|\btail|\bhead|<)\s+[\"']?([\w./-]+)|--?[\w-]*(?:junit|output|report|json)[\w-]*[= ][\"']?([\w./-]+)"
)
_BY_ITSELF = ("__init__.py", "__main__.py", "setup.py", "conftest.py", "noxfile.py")
"""Files that are loaded without being named."""
_PLAIN = (b"test", b"tests")
_NAME = re.compile(rb"[A-Za-z_]\w*")
_MAX = 20
_LONGEST_PATH = 4096
MAX_READ = 2 << 20
"""Bytes of added Python that are read; more is no patch that anybody would look at."""


def patch_findings(judged: Judged, patch: bytes, *, applied: str = "", guessed: bool = False) -> list[Finding]:
    """`applied`: how it was put on, empty where it was not; `guessed`: by patch(1) with fuzz."""
    changes = changed_files(patch)
    kin = judged.kin(changes)
    found: list[Finding] = []
    left = MAX_READ
    commands, read = _commands(judged.row.eval_script), _read_files(judged.row.eval_script)
    spoken = _words_of(changes)
    for change in changes:
        if any(len(path) > _LONGEST_PATH for path in change.paths):
            found.append(Finding(Hole.PATCH, "it names a path that is longer than any system takes"))
            continue
        found += _of_place(judged, change, kin, commands, read)
        found += _on_tests(judged, change)
        left -= sum(map(len, change.added)) if change.paths and change.paths[0].endswith(".py") else 0
        if left >= 0:
            found += _of_code(change, spoken, kin, judged)
    if left < 0:
        found.append(Finding(Hole.PATCH, f"it adds more than {MAX_READ >> 20} MiB of Python: not read"))
    if patch.strip() and not changes:
        what = "no file can be read off it, yet it was put on" if applied else "names no file"
        found.append(Finding(Hole.PATCH, what))
    if guessed:
        what = "only patch(1) with fuzz could put it on: lines may stand where they should not"
        found.append(Finding(Hole.PATCH, what))
    # What decides comes first: the list is cut.
    return sorted(dict.fromkeys(found), key=lambda each: not each.decisive)[:_MAX]


def _of_place(
    judged: Judged, change: FileChange, kin: bool, commands: Collection[str], read: Collection[str]
) -> Iterator[Finding]:
    for path in change.paths:
        name = posixpath.normpath(path)
        base = posixpath.basename(name)
        if base.lower() == "conftest.py":
            yield from _conftest(judged, change, path)
        if _ALWAYS_CONFIG.search(name):
            what = f"{_act(change, path)} {path}, which the test run reads before any test"
            yield Finding(Hole.REPORTING, what, decisive=not only_markers(judged, change))
        if _SHARED_CONFIG.search(name) and (line := _config_line(change)):
            yield Finding(Hole.REPORTING, f"{path}: {_show(line)}", decisive=name not in judged.gold)
        if base in ("setup.py", "noxfile.py"):
            for line in change.added:
                if (word := _INSTALL_CODE.search(line)) and not _known(change, word[0]):
                    yield Finding(Hole.REPORTING, f"{path} runs when the project is installed: {_show(line)}")
        if _PLUGIN_LIST.search(name + "/"):
            yield Finding(Hole.REPORTING, f"{path} can name plugins that the runner loads by itself")
        if change.old is None and (module := _found_first(name)) and not (kin and judged_owns(judged, module)):
            yield Finding(Hole.REPORTING, f"{path} stands where Python looks for {module}")
        if name in commands:
            yield Finding(Hole.REPORTING, f"{path} is part of the test command")
        if _COMPILED.search(name) and change.new is not None:
            yield Finding(Hole.RESULTS, f"{path} is compiled code: what it does cannot be read in the patch")
        if name in read and change.new is not None:
            yield Finding(Hole.RESULTS, f"{path} is read by the eval script")
        if _GIT_INSIDES.search(name) or name.startswith(("/", "../")):
            # Attributes have no say where the driver's own git writes the files.
            harmless = base in (".gitattributes", ".gitmodules")
            yield Finding(Hole.PATCH, f"{path} steers git, or lies outside the repository", decisive=not harmless)


def judged_owns(judged: Judged, module: str) -> bool:
    return any(module in path.split("/") for path in (*judged.base, *judged.gold))


def _found_first(name: str) -> str:
    """The module that Python would find in this new file instead of its own."""
    parts = name.split("/")
    for at, part in enumerate(parts):
        stem = part.split(".", 1)[0] if at == len(parts) - 1 else part
        last = at == len(parts) - 1 and (part.endswith(".py") or _COMPILED.search(part) is not None)
        package = at == len(parts) - 2 and parts[-1].startswith("__init__.")
        whole = at < len(parts) - 1 and stem in _RUNNERS
        top = at == 0 or (at == 1 and parts[0] in ("src", "lib", "python"))
        if stem in _RUNNERS and (last or whole):
            return stem
        if top and stem in _FOUND_FIRST and (last or package):
            return stem
    return ""


def _conftest(judged: Judged, change: FileChange, path: str) -> Iterator[Finding]:
    what = f"{_act(change, path)} {path}, which the test run reads before any test"
    yield Finding(Hole.REPORTING, what, decisive=path not in judged.gold and not _only_fixtures(change))


def _only_fixtures(change: FileChange) -> bool:
    """New fixtures that no test gets without asking, and nothing else: what a judged test is made of is told anyway."""
    if change.removed or change.new is None or change.mode == "120000" or traits(change.added, tests=True):
        return False
    try:
        tree = ast.parse(b"\n".join(change.added))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Import) and all(alias.name == "pytest" for alias in node.names):
            continue
        if isinstance(node, ast.FunctionDef) and [ast.unparse(each) for each in node.decorator_list] == [
            "pytest.fixture"
        ]:
            continue
        return False
    return True


def _of_code(change: FileChange, spoken: Collection[bytes], kin: bool, judged: Judged) -> Iterator[Finding]:
    path = change.paths[0] if change.paths else ""
    if not path.endswith((".py", ".pyx", ".pyi", ".pyw")) or change.new is None or path in judged.reset:
        return
    conftest = posixpath.basename(path) == "conftest.py"
    own_test = conftest or (test_module(path) and _stem(path) not in spoken)
    said = 0
    alone = change.old is None and _stem(path) not in spoken and posixpath.basename(path) not in _BY_ITSELF
    for trait in traits(change.added, tests=own_test):
        if _known(change, trait.name.encode("utf-8", "replace")) or (kin and trait.framework):
            continue
        hole = Hole.FRAMEWORK if trait.framework else Hole.REPORTING
        yield Finding(hole, f"{path} {trait.what}", file=path, alone=alone)
        said += 1
        if said == 3:
            return


def _stem(path: str) -> bytes:
    return posixpath.basename(path).removesuffix(".py").encode("utf-8", "surrogateescape")


def _words_of(changes: Iterable[FileChange]) -> set[bytes]:
    """Words of added code outside of test modules: a test module that it names is no mere test. What a file says of
    itself does not count."""
    found: set[bytes] = set()
    for change in changes:
        if change.paths and not test_module(change.paths[0]):
            own = _stem(change.paths[0])
            for line in change.added:
                words = _NAME.findall(line)
                found |= {word for word in words if word != own and (word not in _PLAIN or b"import" in words)}
    return found


def _on_tests(judged: Judged, change: FileChange) -> Iterator[Finding]:
    for path in change.paths:
        name = posixpath.normpath(path)
        act = f"{_act(change, name)} {name}"
        if name in judged.hidden:
            odd = change.new is None or change.created or change.mode == "120000" or name in judged.added
            if odd:
                yield Finding(Hole.TESTS, f"{act}, a file of the hidden tests", decisive=change.mode == "120000")
        if name in judged.files and name not in judged.reset:
            plain = change.mode != "120000" and change.new is not None and not change.created
            yield Finding(Hole.TESTS, f"{act}, whose tests are judged and which nothing resets", decisive=not plain)
        if why := _in_the_way(judged, name, change):
            yield Finding(Hole.TESTS, f"{act}, {why}")
        for target in _at_or_above(name) & judged.targets:
            yield Finding(Hole.TESTS, f"{act}, where hidden tests go ({target}; they were put back)", decisive=False)


def _at_or_above(name: str) -> set[str]:
    """The path and the folders that it lies in."""
    parts = name.split("/")
    return {"/".join(parts[:length]) for length in range(1, len(parts) + 1)}


def _in_the_way(judged: Judged, name: str, change: FileChange) -> str:
    """Why Python would not load a judged test as it is to be loaded."""
    folder, _, base = name.rpartition("/")
    first = f"{folder}/{base.split('.', 1)[0]}".lstrip("/")
    above = _at_or_above(folder) if folder else set()
    if (name in judged.folders and change.new is not None) or above & judged.places:
        return "in the place of a hidden test file or of its folder"
    if change.new is not None and name not in judged.places:
        if above & judged.stems or (first in judged.stems and "." in base):
            return "which Python would load instead of a judged test file"
        if folder.endswith("__pycache__") and folder[: -len("__pycache__")] + base.split(".", 1)[0] in judged.stems:
            return "which Python would load instead of a judged test file"
        if first in judged.folders and "." in base:
            return "which Python may load instead of the folder of a judged test file"
        parts = name.split("/")
        if change.old is None and any("/".join(parts[at:]) in judged.places for at in range(1, len(parts))):
            return "which has the module's name of a judged test file"
    if base == "__init__.py" and folder in judged.folders and (change.new is None or _acts(change)):
        return "which runs before a judged test file"
    return ""


def _acts(change: FileChange) -> bool:
    """The added lines are more than text and comments."""
    if change.mode == "120000" or change.binary:
        return True
    try:
        body = ast.parse(b"\n".join(change.added)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    return any(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in body)


def _commands(script: str) -> set[str]:
    """Files of the repository that the test command starts, e.g. tests/runtests.py, bin/test."""
    command = script.split(">>>>> Start Test Output", 1)[-1].split(">>>>> End Test Output", 1)[0]
    first = [line.split() for line in command.split("\n")]
    words = {word for line in first for word in line[:3] if "/" in word or word.endswith((".py", ".sh"))}
    return {posixpath.normpath(word) for word in words if "::" not in word and not word.startswith("-")} - _tests_of(
        command
    )


def _tests_of(command: str) -> set[str]:
    """Arguments of a pytest call are tests, not programs."""
    found: set[str] = set()
    for line in command.split("\n"):
        _, runner, rest = line.partition("pytest")
        found |= {posixpath.normpath(word) for word in rest.split()} if runner else set()
    return found


def _read_files(script: str) -> set[str]:
    """Files that the eval script reads or has written by the tests: a stale one would speak for them."""
    outside = re.sub(r"<<'?(\w+)'?\n.*?^\1$", "", script, flags=re.MULTILINE | re.DOTALL)  # patches in here documents
    names = {first or second for first, second in _READS.findall(outside)}
    return {posixpath.normpath(name) for name in names if name and not name.startswith(("/dev/", "/proc/"))}


def _config_line(change: FileChange) -> bytes | None:
    """The first line that changes what concerns tests, but for SWE-bench's own `-rA` and plain requirements."""
    removed = {line.strip() for line in change.removed}
    for line in change.added:
        if (
            _CONFIG_WORDS.search(line)
            and not (len(line) < 400 and _REQUIREMENTS.fullmatch(line.strip()))
            and line.strip() not in removed
            and line.replace(b" -rA", b"").strip() not in removed
        ):
            return line
    added = {line.strip().replace(b" -rA", b"") for line in change.added}
    return next((line for line in change.removed if _CONFIG_WORDS.search(line) and line.strip() not in added), None)


def _known(change: FileChange, word: bytes) -> bool:
    """The file spoke so before: the same word stands in a removed line."""
    return any(word in line for line in change.removed)


def _act(change: FileChange, path: str) -> str:
    if change.new is None:
        return "it deletes"
    if change.old is None:
        return "it links" if change.mode == "120000" else "it adds"
    return ("it renames to" if path == change.new else "it renames") if change.old != change.new else "it changes"


def _show(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip()[:100]
