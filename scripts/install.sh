#!/usr/bin/env bash
# Makes .venv and installs the pinned dependencies into it. Safe to run again: does nothing when up to date.
#
#   scripts/install.sh            core + development tools
#   EXTRAS=dev,eval scripts/install.sh
#
# CPU torch where there is no GPU: uv takes pip's own find-links when pip has some (uv does not read pip's
# configuration), else it chooses the torch build by the GPU it sees. Never gigabytes of CUDA on a CPU box.
set -euo pipefail
cd "$(dirname "$0")/.."

EXTRAS="${EXTRAS:-dev}"
VENV="${VENV:-.venv}"
stamp="$VENV/.sao-install-stamp"
want="$(cat pyproject.toml constraints.txt scripts/install.sh | sha256sum | cut -d' ' -f1) $EXTRAS"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && [ -x "$VENV/bin/sao" ]; then
    exit 0
fi

say() { printf '\033[1m[install]\033[0m %s\n' "$*" >&2; }
die() { printf '\033[31m[install] %s\033[0m\n' "$*" >&2; exit 1; }

apt_install() { # only as root on a Debian-like system; returns 1 where that is not possible
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    say "apt-get install $*"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null 2>&1 && return 0
    apt-get update -q >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null
}

python=""
for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info < (3, 14)))' 2>/dev/null; then
        python="$candidate"; break
    fi
done
[ -n "$python" ] || die "no Python 3.11 to 3.13 found. Install one (Debian: apt-get install python3 python3-venv) or set PYTHON=/path/to/python3."

command -v git >/dev/null || apt_install git || die "git is needed (Debian: apt-get install git)."
if [ "$(uname -s)" = Linux ] && ! command -v bwrap >/dev/null; then
    apt_install bubblewrap || say "bubblewrap is absent: the embedded sandbox falls back to plain namespaces (sao doctor says what that costs)."
fi

if [ ! -x "$VENV/bin/python" ]; then
    say "making $VENV with $("$python" --version)"
    if ! "$python" -m venv "$VENV" >/dev/null 2>&1; then
        rm -rf "$VENV"
        apt_install python3-venv || die "python's venv module is incomplete (Debian: apt-get install python3-venv)."
        "$python" -m venv "$VENV"
    fi
fi

say "installing pinned dependencies (torch for $(command -v nvidia-smi >/dev/null && echo 'the GPU found here' || echo 'CPU'))"
"$VENV/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt uv
links="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-$("$VENV/bin/python" -m pip config get global.find-links 2>/dev/null || true)}}"
backend=()
if [ -n "$links" ]; then
    export UV_FIND_LINKS="${links// /,}"
else
    backend=(--torch-backend=auto)
fi
UV_LINK_MODE="${UV_LINK_MODE:-copy}" "$VENV/bin/uv" pip install -q --python "$VENV/bin/python" \
    "${backend[@]}" -c constraints.txt -e ".[$EXTRAS]"
echo "$want" > "$stamp"
say "done: $("$VENV/bin/python" -c 'import importlib.metadata as m; print("torch", m.version("torch"), "· transformers", m.version("transformers"))')"
