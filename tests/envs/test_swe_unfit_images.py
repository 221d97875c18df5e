"""Images whose repository a sandbox cannot write: refused with the reason, and never a verdict on a patch."""

from __future__ import annotations

import shlex
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from envs.environment import ImageUnfit
from envs.sandbox.docker_backend import DockerBackend
from tests.envs.swe_support import FILES, episode, shell, tiny_task
from tests.envs.test_swe_diff import FIX

pytestmark = pytest.mark.docker
HOW = {
    "another user's": "chown -R 1000:1000 /testbed",
    "another user's file": "chown 1000:1000 /testbed/shop/cart.py",
    "another user's, open to all": "chown -R 1000:1000 /testbed; chmod -R a+rwX /testbed",
    "root's, read-only": "chmod -R a-w /testbed",
}


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, str]]:
    made = {}
    write = f"import os\nfor n, t in {FILES!r}.items():\n    os.makedirs(os.path.dirname(n) or '.', exist_ok=True)\n"
    write += "    open(n, 'w').write(t)\n"
    base = f"mkdir /testbed; cd /testbed; python3 -c {shlex.quote(write)}; git init -qb main; git add -A"
    base += "; git -c user.name=a -c user.email=a@b commit -qm base"
    try:
        for name, change in HOW.items():
            tag = f"sao-unfit:{uuid.uuid4().hex[:12]}"
            box = tag.replace(":", "-")
            subprocess.run(
                ["docker", "run", "--name", box, "sao-base:latest", "sh", "-ec", f"{base}\n{change}"], check=True
            )
            subprocess.run(["docker", "commit", box, tag], check=True, capture_output=True)
            subprocess.run(["docker", "rm", "-v", box], check=True, capture_output=True)
            made[name] = tag
        yield made
    finally:
        for tag in made.values():
            subprocess.run(["docker", "rmi", "-f", tag], check=False, capture_output=True)


@pytest.mark.parametrize("name", HOW)
def test_a_repository_that_cannot_be_written(images: dict[str, str], name: str) -> None:
    task = tiny_task(image=images[name], files=None, base_commit="HEAD")

    def play() -> float:
        grade = episode(shell(f"chmod -R u+w . 2>/dev/null; {FIX}"), task, backend=DockerBackend("unfit"))
        assert grade.reward == 1.0, grade.detail["reason"] + grade.detail["log_tail"]
        return grade.reward

    if name in ("another user's", "another user's file"):
        with pytest.raises(ImageUnfit, match="of user") as refused:
            play()
        assert "chown -R 0:0 /testbed" in str(refused.value)
    else:
        assert play() == 1.0
