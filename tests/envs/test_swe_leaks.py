"""The row's own fix in places where an agent could read it: every kind is planted, one at a time."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import html
import io
import json
import lzma
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator

import pytest

from envs.environment import EnvironmentFault
from envs.sandbox import SandboxSpec
from envs.sandbox.contract import SandboxBackend
from envs.sandbox.docker_backend import DockerBackend
from envs.sandbox.docker_engine import connect
from envs.swe import SWEEnvironment, leaks
from envs.swe.leaks import find_leaks, row_marks
from envs.swe.marks import Mark, found_in, marks_of
from envs.swe.repository import provide
from envs.swe.row import read_row
from envs.tools import ToolSet
from tests.envs.swe_support import FILES, GOLD, tiny_task

FIXED = FILES["shop/cart.py"].replace("a - b", "a + b").encode()


def zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("shop/cart.py", data)
    return buffer.getvalue()


def tarred(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("cart.py")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def page(data: bytes) -> bytes:
    """A page of coverage.py: every word in a tag of its own, a link with the line's number."""
    rows = [
        f'<p class="run"><span class="n"><a id="t{n}" href="#t{n}">{n}</a></span><span class="t">'
        + "&nbsp;".join(f'<span class="nam">{html.escape(word)}</span>' for word in line.split(" "))
        + '&nbsp;</span><span class="r"></span></p>'
        for n, line in enumerate(data.decode().splitlines(), 1)
    ]
    return "\n".join(rows).encode()


KINDS = {
    "an editor's backup": ("/testbed/shop/cart.py~", FIXED),
    "what a merge leaves": ("/testbed/shop/cart.py.orig", FIXED),
    "a sibling": ("/testbed.old/shop/cart.py", FIXED),
    "a name with a line break": ("/tmp/a\nb/x", FIXED),
    "other indentation and line ends": ("/root/notes", FIXED.replace(b"    ", b"\t\t").replace(b"\n", b"\r\n\r\n")),
    "the patch": ("/root/fix.patch", GOLD.encode()),
    "a row": ("/opt/tasks.jsonl", json.dumps({"patch": GOLD}).encode()),
    "a coverage page": ("/testbed/htmlcov/shop_cart_py.html", page(FIXED)),
    "an installed package": ("/usr/lib/python3/dist-packages/shop/cart.py", FIXED),
    "a virtual environment": ("/testbed/.venv/lib/python3.11/site-packages/shop/cart.py", FIXED),
    "a built package": ("/testbed/build/lib/shop/cart.py", FIXED),
    "a wheel": ("/usr/share/wheels/shop-1.whl", zipped(FIXED)),
    "an archive of an archive": ("/home/x.tar.gz", gzip.compress(tarred(zipped(FIXED)))),
    "bzip2": ("/srv/x", bz2.compress(FIXED)),
    "xz": ("/srv/y", lzma.compress(FIXED)),
    "a loose object of any name": ("/srv/z", zlib.compress(b"blob %d\0" % len(FIXED) + FIXED)),
    "a pack": ("/srv/p", b"PACK\0\0\0\3\0\0\0\1"),
    "a bundle": ("/srv/b", b"# v2 git bundle\n"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_seen_in_bytes(kind: str) -> None:
    assert list(found_in(KINDS[kind][1], marks_of(GOLD.encode())))


def test_marks_of_a_patch() -> None:
    patch = b"""diff --git a/x.py b/x.py
--- a/x.py
+++ b/x.py
@@ -1,6 +1,7 @@
 def first_function_of_the_file(argument):
     if argument:
-        return None
+        return a_value_that_is_told_apart(argument, other=argument)
+    # short
     return 1
+from os import path as a_name_that_makes_an_import_line_long_enough
"""
    texts = [mark.text for mark in marks_of(patch)]
    assert texts[0] == b"return a_value_that_is_told_apart(argument, other=argument)"
    # short lines take their neighbours along, one after and one before in turn
    assert b"return a_value_that_is_told_apart(argument, other=argument)\n# short\nreturn 1" in texts
    assert all(b"\n" in text for text in texts[1:]), "an import alone is no mark"
    taken = [mark.text for mark in marks_of(patch, backwards=True)]
    assert taken == [b"if argument:\nreturn None\nreturn 1"] or all(b"return None" in text for text in taken)
    assert marks_of(b"") == ()
    assert marks_of(b"diff --git a/b b/b\nGIT binary patch\nliteral 3\nKcmZ\n\n") == ()


def test_what_is_not_the_fix_is_not_taken_for_it() -> None:
    marks = marks_of(GOLD.encode())
    assert list(found_in(FILES["shop/cart.py"].encode(), marks)) == []
    assert list(found_in(b"def total(a, b):\n    pass\n\ndef other():\n    return a + b\n", marks)) == []
    assert list(found_in(b"PK\3\4 damaged \x00", marks)) == []
    assert list(found_in(b"x", (Mark(b"y", b"y"),))) == []


@pytest.fixture(scope="module")
def image() -> Iterator[tuple[str, str]]:
    """(name, base commit): the tiny repository in an image, clean."""
    name, tag = "sao-test-leaks", str(time.time_ns())

    async def main() -> str:
        backend = DockerBackend("leaks-image")
        box = await backend.start(SandboxSpec())
        for path, text in FILES.items():
            await box.put(path, text.encode())
        done = await box.exec(
            "git init -q . && git add -A && git -c user.name=x -c user.email=x@x commit -qm base && git rev-parse HEAD"
        )
        assert done.exit_code == 0, done.text
        await backend.engine.call(lambda api: api.commit(box.sandbox_id, repository=name, tag=tag))
        await box.close()
        await backend.close()
        return done.text.strip()

    base = asyncio.run(main())
    yield f"{name}:{tag}", base
    with connect() as engine:
        engine.api().remove_image(f"{name}:{tag}", force=True)


@pytest.mark.docker
def test_every_kind_is_found_in_a_sandbox_and_nothing_else_is(image: tuple[str, str]) -> None:
    name, base = image
    row = read_row(tiny_task(files=None, image=name, base_commit=base))

    async def main() -> None:
        backend = DockerBackend("leaks")
        try:
            async with await backend.start(SandboxSpec(image=name)) as box:
                snapshot = await provide(box, row)
                assert await find_leaks(box, row, snapshot, row_marks(row)) == {}
                for path, data in KINDS.values():
                    await box.put_tar(*_placed(path, data))
                found = await find_leaks(box, row, snapshot, row_marks(row))
                assert sorted(found) == sorted(path for path, _ in KINDS.values())
                allowed = read_row(
                    tiny_task(files=None, image=name, base_commit=base, allowed=["build", "/srv", "/root/notes"])
                )
                left = await find_leaks(box, allowed, snapshot, row_marks(row))
                assert set(found) - set(left) == {
                    path for path in found if path.startswith(("/srv/", "/testbed/build/")) or path == "/root/notes"
                }
        finally:
            await backend.close()

    asyncio.run(main())


def _placed(path: str, data: bytes) -> tuple[str, bytes]:
    folder, _, name = path.rpartition("/")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return folder, buffer.getvalue()


@pytest.mark.docker
def test_no_agent_gets_a_sandbox_with_the_fix(image: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One search for all episodes of a clean image; in one with a leak every episode is refused."""
    name, base = image
    searched = []

    async def counting(*arguments: object) -> dict[str, bytes]:
        searched.append(arguments)
        return await find_leaks(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(leaks, "find_leaks", counting)
    leaky = f"{name}-leaky"

    async def reset(backend: SandboxBackend, image: str) -> None:
        environment = SWEEnvironment(tiny_task(files=None, image=image, base_commit=base), backend, ToolSet())
        try:
            await environment.reset()
        finally:
            await environment.close()

    async def main() -> None:
        backend = DockerBackend("leaks-episodes")
        try:
            await asyncio.gather(*(reset(backend, name) for _ in range(3)))
            assert len(searched) == 1
            box = await backend.start(SandboxSpec(image=name))
            await box.put_tar(*_placed("/usr/lib/python3/dist-packages/shop/cart.py", FIXED))
            repository, _, tag = leaky.partition(":")
            await backend.engine.call(lambda api: api.commit(box.sandbox_id, repository=repository, tag=tag))
            await box.close()
            for _ in range(2):
                with pytest.raises(EnvironmentFault, match=r"/usr/lib/python3/dist-packages/shop/cart.py.*`removed`"):
                    await reset(backend, leaky)
        finally:
            await backend.close()

    try:
        asyncio.run(main())
    finally:
        with connect() as engine:
            engine.api().remove_image(leaky, force=True)
