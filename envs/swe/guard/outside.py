"""What became of the image's programs while a patch was judged: git, the interpreter, its library, the test framework.

Promises: looked at from outside of what could have been replaced (`Sandbox.altered`), once the tests are over, by the
time of each file's last change since the sandbox's start, which nobody inside can set: a file that has its old bytes
again is seen too. Nothing that an install step may write is told: scripts and packages of the project, packages that
are no test framework, paths in `.pth` files, code that Python compiled from unchanged files.
"""

from __future__ import annotations

import ast
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from envs.sandbox.contract import BY_COMMANDS, Sandbox
from envs.swe.git import PLAIN_ENV, quote
from envs.swe.guard.findings import Finding, Hole
from envs.swe.guard.watch import Noted

FRAMEWORK = ("_pytest", "pytest", "pluggy", "iniconfig", "py", "xdist", "nose", "unittest2", "testtools")
_SYSTEM = ("/usr/bin", "/usr/sbin", "/bin", "/sbin")
_OTHER = ("/usr/local/bin", "/usr/local/sbin", "/root/.local/bin", "/opt/*/bin", "/opt/*/envs/*/bin")
_PYTHONS = (
    *("/usr/lib/python3*", "/usr/local/lib/python3*", "/opt/*/lib/python3*", "/opt/*/envs/*/lib/python3*"),
    *("/root/.local/lib/python3*", "/root/.local/share/uv/python/*/lib/python3*"),
)
_SITES = ("site-packages", "dist-packages")
_LEFT_OUT = (*_SITES, "test", "tests", "idlelib", "lib2to3", "turtledemo", "tkinter", "ensurepip", "pydoc_data")
_TOOLS = re.compile(
    r"(?:git(?:-\w+)?|(?:python|pypy)[\d.]*|(?:ba|da)?sh|env|pytest|py\.test|tox|nosetests|perl|cat|cp|mv|rm|ln|ls|sed|"
    r"grep|find|xargs|tar|patch|make|tee|mkdir|chmod|touch|timeout|setsid|conda|activate)"
)
_LIBRARY = re.compile(r"/lib/python3[\d.]*t?/")
_SITE = re.compile(rf"/lib/python3[\d.]*t?/(?:{'|'.join(_SITES)})/(.+)")
_MOST_READ = 1 << 20
# What setuptools and pip write themselves; everything else that begins with `import` is run by each Python that starts.
_PTH = re.compile(
    r"import (__editable___\w+_finder); ?\1\.install\(\)|"
    r"import sys; sys\.__plen = len\(sys\.path\)|"
    r"import sys; new ?= ?sys\.path\[sys\.__plen:\]; del sys\.path\[sys\.__plen:\]; "
    r"p ?= ?getattr\(sys, ?'__egginsert', ?0\); "
    r"sys\.path\[p:p\] ?= ?new; sys\.__egginsert ?= ?p ?\+ ?len\(new\)|"
    r"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os\.environ\.get\(var, '\w+'\) == '\w+'; "
    r"enabled and __import__\('_distutils_hack'\)(?:\.add_shim\(\))?;?"
)
_REACHES = re.compile(
    r"\b(?:unittest|_?pytest|pluggy|builtins|exec|eval|marshal|ctypes|atexit|_getframe|settrace|gc|base64|fromhex|chr|"
    r"subprocess|os\.system|__dict__|getattr|setattr)\b"
)
# Compares compiled code with what its source makes. The files were moved away, so that no Python loads them meanwhile.
_COMPARE = """
import marshal, sys
with open(sys.argv[1] + "/list", encoding="utf-8", errors="surrogateescape") as file:
    paths = file.read().split("\\n")
for number, path in enumerate(paths):
    folder, _, name = path.rpartition("/__pycache__/")
    words = name.split(".")
    try:
        with open("%s/%d" % (sys.argv[1], number), "rb") as file:
            code = marshal.loads(file.read()[16 if sys.version_info >= (3, 7) else 12:])
        with open(folder + "/" + words[0] + ".py", "rb") as file:
            level = int(words[2][4:]) if len(words) > 3 and words[2].startswith("opt-") else 0
            made = compile(file.read(), folder + "/" + words[0] + ".py", "exec", 0, True, level)
        same = code == made
    except Exception:
        same = False
    print("%d %d" % (number, same))
"""


Facts = Mapping[str, Sequence[str]]
"""Kind -> paths."""


@dataclass(frozen=True)
class Altered:
    """Files of the image, sorted by what they are."""

    programs: tuple[str, ...] = ()
    library: tuple[str, ...] = ()
    framework: tuple[str, ...] = ()
    starters: tuple[str, ...] = ()
    """What each Python runs at its start: sitecustomize and its kin."""
    compiled: tuple[str, ...] = ()
    pths: tuple[str, ...] = ()
    finders: tuple[str, ...] = field(default=(), repr=False)


def rules(repo_dir: str, *, whole: bool) -> list[str]:
    """Of `Sandbox.altered`. `whole`: code of the patch ran before the tests' runner did, so all of the library counts;
    else what a runner that was clean at its start could still be given is looked at."""
    pythons = (*_PYTHONS, f"{repo_dir}/.venv/lib/python3*")
    made = [f"-{name}" for name in _LEFT_OUT]
    made += [f"T{folder}" for folder in (*_SYSTEM, *_OTHER, f"{repo_dir}/.venv/bin")]
    for python in pythons:
        made.append(f"R{python}" if whole else f"R{python}/unittest")
        for site in _SITES:
            made += [f"T{python}/{site}", *(f"R{python}/{site}/{name}" for name in FRAMEWORK)]
    return [*made, "T/usr/lib/git-core", "T/usr/lib/*-linux-gnu", "T/opt/*/envs/*/lib", "T/etc"] if whole else made


def sorted_out(paths: Iterable[str]) -> Altered:
    kinds: dict[str, list[str]] = {}
    for path in paths:
        if kind := _kind(path):
            kinds.setdefault(kind, []).append(path)
    return Altered(**{kind: tuple(sorted(each)) for kind, each in kinds.items()})


def _kind(path: str) -> str:
    folder, _, name = path.rpartition("/")
    if folder in _SYSTEM or folder == "/usr/lib/git-core":
        return "programs"
    if folder.endswith(("/bin", "/sbin")):
        return "programs" if _TOOLS.fullmatch(name) else ""
    if folder == "/etc":
        return "programs" if name.startswith("ld.so.preload") else ""
    if site := _SITE.search(path):
        return _site_kind(site[1], name)
    if _LIBRARY.search(path):
        if name.endswith(".pyc"):
            return "compiled" if "/__pycache__/" in path else "library"
        return "library"
    return "programs" if ".so" in name else ""


def _site_kind(inner: str, name: str) -> str:
    top = inner.split("/")[0]
    if top in (*FRAMEWORK, "pytest.py", "py.py", "unittest2.py"):
        return ("" if "-pytest-" in name else "compiled") if name.endswith(".pyc") else "framework"
    if top.split(".")[0] in ("sitecustomize", "usercustomize"):
        return "starters"
    if re.fullmatch(r"__editable___\w+_finder\.py", inner):
        return "finders"
    return "pths" if inner == name and name.endswith(".pth") else ""


async def look(sandbox: Sandbox, repo_dir: str, *, whole: bool) -> Facts:
    """What is seen from outside, for `altered_findings`. Raises SandboxError."""
    try:
        found = await sandbox.altered(rules(repo_dir, whole=whole))
        if not found:
            return {}
        altered = sorted_out(found)
        facts = {
            "programs": list(altered.programs),
            "library": list(altered.library),
            "framework": list(altered.framework),
            "starters": [*altered.starters, *await _steering(sandbox, altered)],
        }
        if altered.compiled and not any(facts.values()):
            facts["library"] = await _not_their_source(sandbox, altered.compiled)
    except BY_COMMANDS as error:
        return {"ended": [str(error)]}
    return {kind: each[:20] for kind, each in facts.items() if each}


async def _steering(sandbox: Sandbox, altered: Altered) -> list[str]:
    """Of what installing wrote for each Python to run at its start: what is not as its makers write it."""
    strange = []
    for path in (*altered.pths, *altered.finders)[:200]:
        try:
            text = (await sandbox.get(path, max_bytes=_MOST_READ)).decode("utf-8", "replace")
        except (OSError, ValueError):
            strange.append(path)
            continue
        if path.endswith(".pth"):
            lines = [line.strip() for line in text.splitlines() if re.match(r"import[ \t]", line)]
            if not all(_PTH.fullmatch(line) or _namespace(line) for line in lines):
                strange.append(path)
        elif _REACHES.search(_without_data(text)):
            strange.append(path)
    return strange


def _namespace(line: str) -> bool:
    """The line of a `-nspkg.pth`, as older setuptools wrote it."""
    start = "import sys, types, os;has_mfs = sys.version_info > (3, 5);p = os.path.join(sys._getframe(1).f_locals["
    return line.startswith(start) and not re.search(r"\b(?:exec|eval|open|unittest|pytest|setattr\(sys)\b", line)


def _without_data(text: str) -> str:
    """The code of a finder: its table of packages may hold any name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "exec"
    kept = [each for each in tree.body if not (isinstance(each, ast.Assign | ast.AnnAssign) and _plain(each.value))]
    return ast.unparse(ast.Module(kept, []))


def _plain(node: ast.AST | None) -> bool:
    try:
        ast.literal_eval(node)  # type: ignore[arg-type]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


async def _not_their_source(sandbox: Sandbox, compiled: Sequence[str]) -> list[str]:
    """Compiled files that are not what the interpreter beside them makes of their source. Nothing else of the image was
    altered, so its programs can be asked."""
    strange: list[str] = []
    by_python: dict[str, list[str]] = {}
    for path in compiled:
        if python := _python_of(path):
            by_python.setdefault(python, []).append(path)
        else:
            strange.append(path)
    for python, paths in by_python.items():
        folder = f"/tmp/.driver-{secrets.token_hex(8)}"
        await sandbox.put(f"{folder}/list", "\n".join(paths).encode("utf-8", "surrogateescape"))
        await sandbox.put(f"{folder}/compare.py", _COMPARE.encode())
        moves = f'i=0; while IFS= read -r p || [ -n "$p" ]; do mv "$p" {folder}/$i; i=$((i+1)); done <{folder}/list'
        asked = f"{quote(python)} -I -S -B {folder}/compare.py {folder}"
        done = await sandbox.exec(f"{moves}; {asked}", timeout_s=300.0, cwd="/", env=PLAIN_ENV)
        told = dict(re.findall(r"^(\d+) ([01])$", done.text, re.MULTILINE))
        strange += [path for number, path in enumerate(paths) if told.get(str(number)) != "1"]
    return strange


def _python_of(path: str) -> str:
    """The interpreter that made a compiled file, by its place and name."""
    tag = re.search(r"\.cpython-3(\d+)(?:\.opt-\d)?\.pyc$", path)
    place = re.search(r"^(.*)/lib/python3(?:\.\d+)?t?/", path)
    return str(PurePosixPath(place[1]) / "bin" / f"python3.{tag[1]}") if tag and place else ""


_WORDS = {
    "programs": "was replaced or changed while the patch was judged",
    "library": "of the interpreter's library is not what the image has",
    "framework": "of the test framework is not what the image has",
    "starters": "is run by every Python that starts, and was put there while the patch was judged",
}


def altered_findings(noted: Noted, kin: bool) -> list[Finding]:
    """`kin`: the repository is a test framework; installing it writes one."""
    facts = dict(noted.altered)
    if kin:
        facts.pop("framework", None)
        facts["programs"] = [path for path in facts.get("programs", ()) if not path.endswith(("/pytest", "/py.test"))]
    found = [
        Finding(Hole.PROGRAMS, f"the sandbox ended before anybody could look: {why}") for why in facts.get("ended", ())
    ]
    for kind, words in _WORDS.items():
        found += [Finding(Hole.PROGRAMS, f"{path} {words}") for path in facts.get(kind, ())[:3]]
    return found
