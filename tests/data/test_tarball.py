"""Plain tar archives against Python's own tarfile, and what the reader must refuse."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.tarball import Member, pack, unpack

names = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=60).filter(
        lambda part: part not in (".", "..")
    ),
    min_size=1,
    max_size=5,
).map(lambda parts: "/".join(parts).encode())
members = st.lists(
    st.builds(Member, names, st.none() | st.binary(max_size=1200), st.integers(0, 0o777), st.integers(0, 2**33 - 1)),
    max_size=6,
)


@given(members)
def test_tarfile_reads_what_is_packed(made: list[Member]) -> None:
    archive = pack(made)
    assert list(unpack(archive)) == made
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        read = tar.getmembers()
        assert [info.name.encode("utf-8", "surrogateescape") for info in read] == [m.name.rstrip(b"/") for m in made]
        for info, member in zip(read, made, strict=True):
            stream = tar.extractfile(info) if info.isreg() else None
            assert (stream.read() if stream else None) == member.data
            assert (info.mode, info.mtime, info.uid, info.gid) == (member.mode, member.mtime, 0, 0)


PLAIN = pack([Member(b"a", b"x" * 600), Member(b"d", None, 0o755), Member(b"n" * 130, b"y")])


@given(st.integers(0, len(PLAIN) - 1), st.integers(1, 255))
def test_no_changed_byte_passes_unseen(at: int, change: int) -> None:
    """Every byte counts but those of the contents: what is taken is what `pack` would have written."""
    changed = bytearray(PLAIN)
    changed[at] ^= change
    try:
        read = list(unpack(bytes(changed)))
    except ValueError:
        return
    assert pack(read) == bytes(changed)


def test_other_archives_are_refused() -> None:
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.REGTYPE):
            stream = io.BytesIO()
            with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
                info = tarfile.TarInfo("é" * 40)
                info.type, info.linkname = kind, "/etc/passwd"
                tar.addfile(info)
            with pytest.raises(ValueError, match=r"plain form|neither|sum"):
                list(unpack(stream.getvalue()))
    for cut in (0, 100, 512, 700, 1024, len(PLAIN) - 1024, len(PLAIN) - 600):
        with pytest.raises(ValueError, match=r"cut short|neither|plain"):
            list(unpack(PLAIN[:cut]))
    for more in (b"x", PLAIN, bytes(511) + b"x"):
        with pytest.raises(ValueError, match="follows"):
            list(unpack(PLAIN + more))
