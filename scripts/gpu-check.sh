#!/usr/bin/env bash
# What to run first on a machine with a GPU (about five minutes): do CPU and GPU agree, how fast is a step of the shape
# of Qwen3-0.6B, does a short training run end cleanly there. Ends with exit code 0 when all of it held.
#
#   make install && scripts/gpu-check.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python="${SAO_PYTHON:-.venv/bin/python}"

"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    { echo "gpu-check: torch sees no GPU here (make doctor says more)" >&2; exit 3; }
echo "== the same steps on CPU and GPU, fp32"
"$python" -m benchmarks.device_agreement
echo "== one step of Qwen3-0.6B's shape, bf16"
"$python" -m benchmarks.sao_step --shape qwen3-0.6b --precision bf16 --episodes 32 --tokens 1000 --budget 16384
echo "== ten steps of the demo, engine and trainer on the GPU"
"$python" -m sao train --config demo --plain --fresh --run gpu-check --steps 10 --set train.value_episodes=64
"$python" -m sao replay gpu-check --train offpolicy
if [ -x .venv-vllm/bin/python ]; then # scripts/vllm-env.sh; untested until a GPU has run them (docs/engines.md)
    vllm=(--plain --fresh --steps 6 --set engine.kind=vllm --set train.value_episodes=0)
    echo "== vLLM on the trainer's own GPU, in turns, weights by CUDA IPC"
    "$python" -m sao train --config demo "${vllm[@]}" --run gpu-ipc --set engine.mode=colocated --set engine.weights=ipc
    if [ "$(nvidia-smi -L | wc -l)" -gt 1 ]; then
        echo "== vLLM on a GPU of its own, weights by NCCL"
        "$python" -m sao train --config demo "${vllm[@]}" --run gpu-nccl --set engine.weights=nccl
    fi
fi
