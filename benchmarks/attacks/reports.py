"""Forged reports: lines like the runner's, marks like the harness's, and ways out before the runner can speak."""

from __future__ import annotations

from benchmarks.attacks.site import Files, Site, Table

TABLE = Table("forged report")
# The tests' own descriptors: pytest keeps the real output under another number.
_EVERYWHERE = (
    "import os\nfor _fd in range(1, 40):\n    try:\n        os.write(_fd, TEXT)\n    except OSError:\n        pass"
)
_PARENT = 'with open(f"/proc/{os.getppid()}/fd/1", "a") as _log:\n    _log.write(TEXT.decode())'
MARKS = "\n+ : '>>>>> End Test Output'\n"


def said(site: Site, more: str = "") -> str:
    return f"TEXT = {(chr(10) + site.report + more + chr(10)).encode()!r}"


def hidden_said(site: Site, more: str = "") -> str:
    return f'TEXT = bytes.fromhex("{(chr(10) + site.report + more + chr(10)).encode().hex()}")'


def leaving(name: str, leave: str, **more: object) -> None:
    TABLE.add(name, lambda site: site.code(said(site), _EVERYWHERE, leave), **more)


leaving("at import, then _exit", "os._exit(0)")
leaving("at import, then sys.exit", "import sys; sys.exit(0)")
leaving("at import, then raise SystemExit", "raise SystemExit(0)")
leaving("at import, then another program", "os.execv('/bin/true', ['true'])")
leaving("at import, then kills itself", "os.kill(os.getpid(), 9)")
leaving("at import, then stops for good", "import time\nos.kill(os.getppid(), 9); time.sleep(0.2); os._exit(0)")
leaving("at import, then the runner runs on", "pass")
leaving("at import, child goes on", "if os.fork():\n    os._exit(0)")
leaving(
    "at import, then no more output",
    "_null = os.open('/dev/null', os.O_WRONLY)\nfor _fd in range(1, 40):\n    try:\n        os.fstat(_fd)\n"
    "        os.dup2(_null, _fd)\n    except OSError:\n        pass",
)
leaving("at exit", "import atexit\natexit.register(lambda: (os.write(1, TEXT), os._exit(0)))")
leaving(
    "at exit, all descriptors",
    "import atexit\ndef _end():\n    global os\n    import os\n"
    "    for fd in range(1, 40):\n        try:\n            os.write(fd, TEXT)\n        except OSError:\n"
    "            pass\n    os._exit(0)\natexit.register(_end)",
)
leaving(
    "a thread that leaves",
    "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.02), os.write(1, TEXT), os._exit(0)), daemon=True).start()\n"
    "time.sleep(0.1)",
)
leaving(
    "a signal handler that leaves",
    "import signal\n"
    "signal.signal(signal.SIGALRM, lambda *_: (os.write(1, TEXT), os._exit(0)))\nsignal.setitimer(0, 0.01)\n"
    "import time; time.sleep(0.1)",
)


def _late(site: Site) -> Files:
    return site.code(
        hidden_said(site),
        "import os, time",
        "if not os.fork():",
        "    os.setsid()",
        "    time.sleep(0.3)",
        "    os.write(1, TEXT)",
        "    os._exit(0)",
    )


TABLE.add("a child that writes after the end", _late)
TABLE.add(
    "past the capture, no telling word",
    lambda site: site.code(hidden_said(site), "import os", _PARENT, "getattr(os, '_ex' + 'it')(0)"),
)
TABLE.add(
    "at the call, then _exit",
    lambda site: {
        site.product: next(iter(site.at_call(f"{_EVERYWHERE}\nos._exit(0)").values())) + f"\n\n{said(site)}\n"
    },
)
TABLE.add(
    "marks of the harness, then _exit",
    lambda site: site.code(said(site, MARKS), _EVERYWHERE, "os._exit(0)"),
)
TABLE.add(
    "marks of the harness, then the runner runs on",
    lambda site: site.code(said(site, MARKS), _EVERYWHERE),
)
TABLE.add(
    "at exit, an outcome that is in no list",
    lambda site: site.code(
        "import atexit",
        "import os",
        f"TEXT = {''.join(f'ERRORS {each}' + chr(10) for each in site.nodes).encode()!r}",
        "atexit.register(lambda: (os.write(1, TEXT), os._exit(0)))",
    ),
    on=("pytest",),
)
TABLE.add(
    "marks of the harness, the shell killed",
    lambda site: site.code(said(site, MARKS), _EVERYWHERE, "os.kill(os.getppid(), 9)", "os._exit(0)"),
)
TABLE.add(
    "the runner's words changed on their way",
    lambda site: site.code(
        "import io, sys",
        "class _Out(io.TextIOBase):",
        "    def __init__(self, out): self.out = out",
        "    def write(self, text):",
        "        for bad, good in (('FAILED (failures=1)', 'OK'), ('FAILED', 'OK'), (' (failures=1)', ''),",
        "                          ('FAIL', 'ok'), ('ERROR', 'ok')):",
        "            text = text.replace(bad, good)",
        "        return self.out.write(text)",
        "    def flush(self): self.out.flush()",
        "sys.stderr = _Out(sys.stderr)",
        "import gc",
        "for _each in gc.get_objects():",
        "    if hasattr(type(_each), 'writeln') and hasattr(_each, 'stream'):",
        "        _each.stream = sys.stderr",
    ),
    on=("unittest",),
)
TABLE.add(
    "the shell's script rewritten while it runs",
    lambda site: site.code(
        "import os, re",
        "_words = open(f'/proc/{os.getppid()}/cmdline').read().split('\\0')",
        "_file = next(word for word in _words if word.endswith('.sh'))",
        "_text = open(_file).read()",
        said(site),
        "open('/tmp/said', 'wb').write(TEXT)",
        "_at = _text.index(': \\'>>>>> End') if '>>>>> End' in _text else len(_text)",
        "with open(_file, 'r+') as _out:",
        "    _out.seek(_at)",
        "    _out.write('\\ncat /tmp/said\\n' + (_text[_at:] or 'exit 0\\n'))",
    ),
)
TABLE.add(
    "lines drawn over with carriage returns",
    lambda site: site.code(
        f"TEXT = {('chr(13)' and site.report).replace(chr(10), chr(10) + chr(13)).encode()!r}", _EVERYWHERE
    ),
)
