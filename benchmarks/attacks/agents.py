"""What an agent does in its sandbox, for a reward or to make its driver fail. None of it may end as a fault of ours."""

from __future__ import annotations

from benchmarks.attacks.site import Table

TABLE = Table("agent's sandbox")


def act(name: str, script: str, **more: object) -> None:
    TABLE.add(name, None, act=script, **more)


def python(code: str) -> str:
    return f"python3 - <<'END' || true\n{code}\nEND"


act(
    "prlimit on the first process",
    python(
        "import resource\nfor what in ('NOFILE', 'FSIZE', 'CPU', 'DATA', 'AS', 'NPROC', 'STACK'):\n    try:\n"
        "        resource.prlimit(1, getattr(resource, 'RLIMIT_' + what), (0, 0))\n"
        "    except (OSError, ValueError):\n        pass"
    ),
)
act("prlimit: no open files for the first process", "prlimit --pid 1 --nofile=3:3 || true", slow=True)
act("prlimit: no file sizes for the first process", "prlimit --pid 1 --fsize=0:0 || true")
act("prlimit: one second of processor for the first process", "prlimit --pid 1 --cpu=1:1 || true")
act(
    "scheduler: the first process is idle",
    python(
        "import os\nfor work in (lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),\n"
        "             lambda: os.setpriority(os.PRIO_PROCESS, 1, 19), "
        "lambda: os.sched_setaffinity(1, {0})):\n    try:\n"
        "        work()\n    except OSError:\n        pass"
    ),
)
act(
    "scheduler: busy children at the first place",
    python(
        "import os, time\nfor _ in range(4):\n    if not os.fork():\n        os.setsid()\n"
        "        end = time.time() + 8\n"
        "        while time.time() < end: pass\n        os._exit(0)"
    ),
    slow=True,
)
act(
    "signals to the first process", "for s in 1 2 3 9 10 12 13 14 15 18 19 20 23; do kill -$s 1 2>/dev/null; done; true"
)
act("signals to everything", "(sleep 0.05; kill -9 -1) & true")
act("the first process stopped", "kill -STOP 1; kill -TSTP 1; true")
act(
    "the first process traced",
    python(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.ptrace(16, 1, 0, 0), "
        "libc.ptrace(0x4206, 1, 0, 0))"
    ),
)
act(
    "the first process's memory",
    "dd if=/dev/zero of=/proc/1/mem bs=1 count=1 2>/dev/null; "
    "echo 1000 >/proc/1/oom_score_adj; echo x >/proc/1/comm; true",
)
act("descriptors of the first process", "for f in /proc/1/fd/*; do (echo junk >$f) 2>/dev/null; done; true")
act("descriptors read", "for f in /proc/1/fd/*; do (timeout 0.2 head -c 10 $f) >/dev/null 2>&1; done; true")
_CLIMB = r"""
mkdir -p /root/bin
cat >/root/bin/tar <<'X'
#!/usr/bin/python3
import io, sys, tarfile
out = tarfile.open(fileobj=sys.stdout.buffer, mode="w|")
for name in ("../../etc/evil", "/etc/evil", "shop/../../x", "a/../../../b"):
    info = tarfile.TarInfo(name); info.size = 1
    out.addfile(info, io.BytesIO(b"x"))
out.close()
X
chmod +x /root/bin/tar
for d in /usr/local/bin /usr/bin; do cp /root/bin/tar $d/tar 2>/dev/null; done; true
"""
act("tar replaced, names that climb", _CLIMB)
act(
    "git replaced, says nothing",
    "mkdir -p /usr/local/bin 2>/dev/null; "
    "printf '#!/bin/sh\\nexit 0\\n' >/usr/local/bin/git && chmod +x /usr/local/bin/git; "
    "cp /usr/local/bin/git /usr/bin/git 2>/dev/null; true",
)
act(
    "git replaced, says names that climb",
    "printf '#!/bin/sh\\nprintf \"../../etc/passwd\\\\0/etc/x\\\\0\"\\n' >/tmp/g; "
    "chmod +x /tmp/g; for d in /usr/local/bin /usr/bin; do cp /tmp/g $d/git 2>/dev/null; done; true",
)
act(
    "find replaced, says names that climb",
    "printf '#!/bin/sh\\nprintf \"../../x\\\\0./../y\\\\0\"\\n' >/tmp/f; chmod +x /tmp/f; "
    "for d in /usr/local/bin /usr/bin; do cp /tmp/f $d/find 2>/dev/null; done; true",
)
act(
    "find replaced, never ends",
    "printf '#!/bin/sh\\nsleep 100000\\n' >/tmp/f; chmod +x /tmp/f; "
    "for d in /usr/local/bin; do cp /tmp/f $d/find 2>/dev/null; done; true",
    slow=True,
)
act(
    "every program of a collection replaced",
    "printf '#!/bin/sh\\nexit 77\\n' >/tmp/f; chmod +x /tmp/f; "
    "for p in sh tar git find xargs cat stat sort python3 perl sha256sum rm mkdir; do "
    "for d in /usr/local/bin /usr/bin; do cp /tmp/f $d/$p 2>/dev/null; done; done; true",
)
act("the shell is gone", "rm -f /usr/bin/sh /bin/sh /usr/bin/dash /usr/bin/bash 2>/dev/null; true")
act("the library is gone", "rm -rf /usr/lib/x86_64-linux-gnu /lib64 /usr/lib/git-core 2>/dev/null; true")
act(".git is gone", "rm -rf .git")
act(".git is a file", "rm -rf .git; echo 'gitdir: /etc' >.git")
act(".git is a link to the machine", "rm -rf .git; ln -s /etc .git")
act(".git is a pipe", "rm -rf .git; mkfifo .git")
act(
    ".git's configuration runs programs",
    "printf '[core]\\n\\tfsmonitor = /tmp/evil\\n\\tsshCommand = x\\n[diff]\\n"
    "\\texternal = /bin/false\\n' >>.git/config; printf '#!/bin/sh\\nsleep 30\\n' >/tmp/evil; chmod +x /tmp/evil",
    slow=True,
)
act(".git's index is broken", "head -c 4000 /dev/urandom >.git/index")
act(".git's objects are broken", 'find .git/objects -type f -exec sh -c \'chmod +w "$1"; echo x >"$1"\' _ {} \\;')
act(".git's locks", "touch .git/index.lock .git/HEAD.lock .git/config.lock .git/refs/heads/main.lock")
act("the base commit is another", "git commit -q --allow-empty -m x; git checkout -q --orphan y; git rm -rqf . || true")
act("the repository is gone", "cd /; rm -rf /testbed; true")
act("the repository is a file", "cd /; rm -rf /testbed 2>/dev/null; echo x >/testbed; true")
act("the repository is a link", "cd /; mv /testbed /tmp/t 2>/dev/null && ln -s /tmp/t /testbed; true")
act("the repository may not be read", "chmod 000 /testbed; chmod 000 .git {product} 2>/dev/null; true")
act(
    "20,000 new files",
    python("import os\nos.makedirs('many')\nfor n in range(20000):\n    open(f'many/{n}', 'w').close()"),
)
act(
    "20,000 new files with text",
    python(
        "import os\nos.makedirs('many')\nfor n in range(20000):\n    open(f'many/{n}.py', 'w').write(f'x = {n}\\n')"
    ),
    slow=True,
)
act("20,000 folders", python("import os\nfor n in range(20000):\n    os.makedirs(f'many/{n}')"), slow=True)
act(
    "a folder 2,000 deep",
    python(
        "import os\nfor n in range(2000):\n    os.mkdir('deeper')\n    os.chdir('deeper')\nopen('x', 'w').write('x')"
    ),
)
act("an edit of 800 kB", python("open('big.py', 'w').write('x = 1\\n' * 133000)"))
act("one line of 8 MB", python("open('{product}', 'a').write('#' * 8_000_000 + '\\n')"), slow=True)
act("a file beyond the limit", "head -c 60000000 /dev/zero >zeros.bin; true", slow=True)
act("a sparse file of a terabyte", "truncate -s 1T sparse.bin; true")
act("links in a circle", "ln -s b a; ln -s a b; ln -s . dot; ln -s .. up; ln -s c c; ln -s /proc/self/root root")
act(
    "links to devices",
    "ln -s /dev/zero zero; ln -s /dev/stdin in; ln -s /proc/kcore core; ln -s /dev/random {product}.py",
)
act("the product is a link to an endless file", "rm {product}; ln -s /dev/zero {product}")
act("the product is a device or a pipe", "rm {product}; mkfifo {product}; mknod null c 1 3 2>/dev/null; true")
act("sockets and pipes", "mkfifo pipe; " + python("import socket\nsocket.socket(socket.AF_UNIX).bind('sock')"))
act(
    "odd names",
    python(
        "import os\nfor name in (b'a\\nb', b'\\xff\\xfe', b'-rf', b' ', b'tab\\there', b'quote\"s', "
        "b\"it's\", b'back\\\\slash',\n"
        "             b'\\x1b[31mred', '\\u202eevil'.encode(), b'a' * 255, b'.gitattributes ', b'...', "
        "b'~', b'$(x)', b'`x`', b'*'):\n"
        "    open(name, 'w').write('x')"
    ),
)
act(
    "names that git refuses",
    python(
        "import os\nfor name in ('.GIT', '.git ', 'git~1', '.git\\u200c', 'sub/.git/config', "
        "'sub2/.GiT/HEAD'):\n    try:\n"
        "        os.makedirs(os.path.dirname(name) or '.', exist_ok=True)\n        open(name, 'w').write('x')\n"
        "    except OSError:\n        pass"
    ),
)
act(
    "a repository inside",
    "git init -q inner; cd inner; echo x >y; git add -A; git -c user.name=a -c user.email=a@b.invalid commit -qm x",
)
act(
    "a submodule",
    "printf '[submodule \"x\"]\\n\\tpath = x\\n\\turl = /etc\\n' >.gitmodules; "
    "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),x; mkdir -p x/.git",
)
act(
    "attributes and filters",
    "printf '* filter=x eol=crlf ident working-tree-encoding=UTF-16\\n' >.gitattributes; "
    "git config filter.x.clean 'sleep 20'; git config filter.x.required true",
    slow=True,
)
act("everything ignored", "echo '*' >.gitignore; printf '\\n# x\\n' >>{product}")
act(
    "the disk is full",
    "head -c 20000000000 /dev/zero >/tmp/full 2>/dev/null; head -c 20000000000 /dev/zero >full 2>/dev/null; true",
    slow=True,
)
act(
    "no more processes",
    python(
        "import os, time\ntry:\n    while True:\n        if not os.fork():\n"
        "            time.sleep(20)\n            os._exit(0)\n"
        "except OSError:\n    pass"
    ),
    slow=True,
)
act(
    "memory eaten by children that stay",
    python(
        "import os, time\nif not os.fork():\n    os.setsid()\n    held = []\n    try:\n"
        "        while True: held.append(bytearray(1 << 24))\n"
        "    except MemoryError:\n        time.sleep(10)\n    os._exit(0)"
    ),
    slow=True,
)
act(
    "files that change while they are read",
    "(while :; do echo $RANDOM >>{product}; done) >/dev/null 2>&1 & "
    "(while :; do mv {product} x 2>/dev/null; mv x {product} 2>/dev/null; done) >/dev/null 2>&1 & true",
)
act(
    "files that vanish while they are read",
    "mkdir v; (while :; do touch v/1 v/2 v/3; rm -rf v; mkdir v; done) >/dev/null 2>&1 & true",
)
act("a false time", "touch -d 1970-01-01 {product}; touch -d 2300-01-01 x; date -s 2001-01-01 2>/dev/null; true")
act("output without end", "timeout 2 yes | head -c 100000000; true", slow=True)
act("output that is no text", "head -c 300000 /dev/urandom; printf '\\033c\\033]0;x\\007'; true")
act("reward files", "mkdir -p /logs; echo 1 >/logs/reward.txt; echo 1 >reward.txt; export REWARD=1; true")
act("tests of the same name", "mkdir -p {folder}; printf '%s' '{fake}' >{hidden}")
act(
    "sitecustomize in the user's folder",
    "mkdir -p /root/.local/lib/python3.11/site-packages; "
    "echo 'import os; os._exit(0)' >/root/.local/lib/python3.11/site-packages/usercustomize.py",
)
act(
    "git's configuration in the user's folder",
    "printf '[core]\\n\\thooksPath = /tmp/h\\n' >/root/.gitconfig; "
    "mkdir -p /tmp/h; printf '#!/bin/sh\\nexit 1\\n' >/tmp/h/post-checkout; chmod +x /tmp/h/*",
)
act(
    "the interpreter of the project's environment replaced",
    "printf '#!/bin/sh\\necho PASSED\\n' >.venv/bin/python",
    sites=("r2e",),
)
