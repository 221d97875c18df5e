"""The witness: Python loads it as `sitecustomize` before anything of the repository.

Promises: it runs in images of any Python from 3.6 on, and it changes nothing that the runner does. What it says goes to
the log itself, on a copy of its first descriptor, between marks that hold a secret: what is said cannot be taken back
by code that runs later, and the driver takes it out of the log before anybody reads that.

Each part is one function, which makes what others use out of what it is given: their texts are put one after the other
into one module, and no name of that module is left once `watch` has run.
"""

from __future__ import annotations

from pathlib import Path

PARTS = ("voice", "acts", "objects", "clean", "made_of", "before", "unittests", "pytests", "start")

_LOAD = """
import os
words = os.environ.pop("SAO_NOTE", "").split(":")
if len(words) == 2:
    # Processes that the tests start are not watched.
    folder = os.path.dirname(os.path.abspath(__file__))
    rest = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each != folder]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    if folder in os.sys.path:
        os.sys.path.remove(folder)
    try:
        with open(folder + "/settings", encoding="utf-8", errors="surrogateescape") as file:
            watch(dict(eval(file.read()), secret=words[0], descriptor=int(words[1])))
    except OSError:  # a process that was given no such descriptor
        pass
for name in [each for each in globals() if not each.startswith("__")]:
    globals().pop(name, None)
del name
"""


def program_text() -> str:
    folder = Path(__file__).parent
    return "".join((folder / f"{part}.py").read_text(encoding="utf-8") for part in PARTS) + _LOAD
