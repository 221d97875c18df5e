"""How long a repository that came with its image takes to be made clean: the first sandbox, and later ones.

    python -m benchmarks.hygiene                      # embedded sandboxes, about 60,000 objects
    python -m benchmarks.hygiene --backend docker --commits 20

Makes a repository with a fixed seed (2,000 files, three of them changed by each commit), takes a commit near its end as
the base, puts it into fresh sandboxes as an image would, and times `envs.swe.repository.provide`. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import statistics
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

from envs.sandbox import SandboxBackend, SandboxSpec, make_backend
from envs.swe.repository import provide
from envs.swe.row import SweRow

FILES = 2000


def make_repository(folder: Path, commits: int) -> str:
    """Returns the base commit: a tenth of the history is newer."""
    random.seed(1)
    names = [f"d{i % 20}/s{i % 7}/f{i}.py" for i in range(FILES)]
    texts = {name: [f"line {j} of {name} {random.random()}" for j in range(120)] for name in names}
    lines: list[bytes] = []

    def data(content: str) -> None:
        raw = content.encode()
        lines.append(b"data %d\n%s\n" % (len(raw), raw))

    for number in range(commits):
        lines.append(b"commit refs/heads/main\nmark :%d\n" % (number + 1))
        lines.append(b"committer a <a@example.invalid> %d +0000\n" % (1_500_000_000 + 1000 * number))
        data(f"commit {number}")
        for name in names if number == 0 else random.sample(names, 3):
            texts[name][random.randrange(120)] = f"changed {random.random()}"
            lines.append(f"M 100644 inline {name}\n".encode())
            data("\n".join(texts[name]))
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    subprocess.run(["git", "fast-import", "--quiet"], cwd=folder, input=b"".join(lines), check=True)
    subprocess.run(["git", "repack", "-q", "-a", "-d", "-f"], cwd=folder, check=True)
    base = git(folder, "rev-parse", f"main~{max(1, commits // 10)}")
    git(folder, "checkout", "-q", "-f", "-B", "work", base)
    return base


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def row_of(base: str) -> SweRow:
    return SweRow("bench", base, "", b"", b"", (), (), "an-image", "", "", "/testbed", None, None, False, None)


async def measure(backend: SandboxBackend, row: SweRow, image: bytes, repeats: int) -> list[float]:
    """Seconds, one sandbox after the other."""
    times = []
    for _ in range(repeats):
        async with await backend.start(SandboxSpec()) as sandbox:
            await sandbox.put_tar("/testbed", image)
            began = time.perf_counter()
            await provide(sandbox, row)
            times.append(time.perf_counter() - began)
    return times


async def run(kind: str, row: SweRow, image: bytes, repeats: int) -> list[float]:
    backend = await asyncio.to_thread(make_backend, kind, "bench-hygiene")
    try:
        return await measure(backend, row, image, repeats)
    finally:
        await backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("embedded", "docker"), default="embedded")
    parser.add_argument("--commits", type=int, default=5500)
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "repo"
        base = make_repository(folder, options.commits)
        objects = sum(int(line.split()[1]) for line in git(folder, "count-objects", "-v").splitlines()
                      if line.startswith(("count:", "in-pack:")))  # fmt: skip
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            tar.add(folder, arcname=".")
    times = asyncio.run(run(options.backend, row_of(base), stream.getvalue(), options.repeats))
    later = times[1:] or times
    report = {
        "backend": options.backend,
        "objects": objects,
        "first_ms": round(1000 * times[0], 1),
        "later_p50_ms": round(1000 * statistics.median(later), 1),
        "later_best_ms": round(1000 * min(later), 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
