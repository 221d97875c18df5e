"""Image names, what the engine's words mean, the ledger, and a plan's arithmetic: no engine needed."""

from __future__ import annotations

import dataclasses
import email.utils
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.images import (
    ImageDenied,
    ImageName,
    ImageNotFound,
    ImagePlan,
    ImageRefused,
    ImageSettings,
    Need,
    NoSpace,
    RegistryBusy,
    disk,
)
from envs.images.disk import Image, Usage
from envs.images.faults import read_fault
from envs.images.ledger import Ledger
from envs.images.names import MADE_HERE
from envs.images.registry import parse_wait
from envs.sandbox import ImageMissing, SandboxError
from envs.sandbox.docker_survey import RUN

DIGEST = "sha256:" + "a" * 64
GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "registry", "repository", "reference", "listed"),
    [
        ("python", "docker.io", "library/python", "latest", "python:latest"),
        ("python:3.11", "docker.io", "library/python", "3.11", "python:3.11"),
        ("docker.io/library/python", "docker.io", "library/python", "latest", "python:latest"),
        ("index.docker.io/a/b:1", "docker.io", "a/b", "1", "a/b:1"),
        ("swebench/sweb.eval.x86_64.django_1776_django-1", "docker.io", None, "latest", None),
        ("localhost/x", "localhost", "x", "latest", "localhost/x:latest"),
        ("h:5000/a/b/c:t", "h:5000", "a/b/c", "t", "h:5000/a/b/c:t"),
        ("ghcr.io/a/b@" + DIGEST, "ghcr.io", "a/b", DIGEST, "ghcr.io/a/b@" + DIGEST),
        ("a/b:t@" + DIGEST, "docker.io", "a/b", DIGEST, "a/b:t@" + DIGEST),
    ],
)
def test_names_are_read_as_docker_reads_them(
    text: str, registry: str, repository: str | None, reference: str, listed: str | None
) -> None:
    name = ImageName.parse(text)
    assert (name.registry, name.reference) == (registry, reference)
    assert name.repository == (repository or text)
    assert str(name) == (listed or f"{text}:latest")


@pytest.mark.parametrize(
    "text", ["", "A/b", "a//b", "a:", "a@sha256:12", "a b", "-a", "h:5000/", "a/../b", "http://h/a"]
)
def test_a_broken_name_is_refused_before_any_registry_hears_of_it(text: str) -> None:
    with pytest.raises(ImageRefused, match="is no image name"):
        ImageName.parse(text)


@given(
    st.from_regex(
        r"\A(?:[a-z]{1,5}\.[a-z]{2}(?::\d{2,4})?/)?[a-z0-9]{1,6}(?:/[a-z0-9]{1,6}){0,2}(?::[A-Za-z0-9_]{1,6})?\Z"
    )
)
def test_a_name_is_itself_again_when_read_from_how_it_is_listed(text: str) -> None:
    name = ImageName.parse(text)
    assert ImageName.parse(str(name)) == name


def test_a_mirror_serves_docker_hub_only() -> None:
    under = ImageName.parse("a/b:1").under("mirror.local:5000/hub/")
    assert str(under) == "mirror.local:5000/hub/a/b:1"
    assert str(ImageName.parse("python").under("m.local")) == "m.local/library/python:latest"
    for text in ("ghcr.io/a/b", "a/b@" + DIGEST):
        assert ImageName.parse(text).under("m.local") is None
    assert ImageName.parse("a/b").under("") is None
    with pytest.raises(ImageRefused, match="host that has a dot"):
        ImageName.parse("a/b").under("mirror")


def test_the_base_image_is_never_asked_of_a_registry() -> None:
    assert "base-image.sh" in ImageName.parse("sao-base:latest").home_made
    assert "real_task.py" in ImageName.parse("sao-real/parse-hyphen").home_made
    for text in ("other/sao-base", "ghcr.io/sao-base", "python", "sao-realm/x", "ghcr.io/sao-real/x"):
        assert not ImageName.parse(text).home_made


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("toomanyrequests: You have reached your pull rate limit.", RegistryBusy),
        ("write /var/lib/docker/tmp/x: no space left on device", NoSpace),
        ("manifest for a/b:1 not found: manifest unknown: manifest unknown", ImageNotFound),
        ("pull access denied for a/b, repository does not exist or may require 'docker login'", ImageDenied),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", ImageRefused),
        ("received unexpected HTTP status: 503 Service Unavailable", None),
        ("unexpected EOF", None),
        ("unknown: made up", None),
    ],
)
def test_what_the_engines_words_mean(text: str, kind: type | None) -> None:
    fault = read_fault("a/b:1", text)
    assert type(fault) is (kind or type(None))
    if fault is not None:
        assert isinstance(fault, ImageMissing)
        assert isinstance(fault, SandboxError)  # infrastructure, never a model's failure
        assert "a/b:1" in str(fault)
        assert fault.transient == (kind is RegistryBusy)


def test_retry_after_is_seconds_or_a_date() -> None:
    assert parse_wait("120") == 120
    assert parse_wait(email.utils.formatdate(time.time() + 100, usegmt=True)) == pytest.approx(100, abs=2)
    assert parse_wait(email.utils.formatdate(time.time() - 100, usegmt=True)) == 0
    assert parse_wait(None) is None
    assert parse_wait("soon") is None


def test_the_ledger_remembers_what_was_pulled_and_when_it_was_used(tmp_path: Path) -> None:
    ledger = Ledger("AB:CD", tmp_path)
    ledger.pulled("a:1", "sha256:1")
    ledger.pulled("b:1", "sha256:2")
    ledger.used("never-pulled:1")
    for file in tmp_path.rglob("pulled/*"):
        os.utime(file, (1000, 1000))
    ledger.used("a:1")
    entries = Ledger("AB:CD", tmp_path).entries()
    assert {name: entry.image_id for name, entry in entries.items()} == {"a:1": "sha256:1", "b:1": "sha256:2"}
    assert entries["b:1"].last_used == 1000 < entries["a:1"].last_used
    assert not Ledger("another engine", tmp_path).entries()
    ledger.forget("a:1")
    ledger.forget("a:1")
    next(tmp_path.rglob("pulled/*")).write_text("{torn")
    assert not ledger.entries()


def test_leases_count_while_their_process_lives(tmp_path: Path) -> None:
    ledger = Ledger("e", tmp_path)
    with ledger.lease("a:1"), ledger.lease("a:1"):
        assert Ledger("e", tmp_path).leased() == {"a:1"}
    assert Ledger("e", tmp_path).leased() == set()
    code = (
        "import sys, time; from pathlib import Path; from envs.images.ledger import Ledger\n"
        "with Ledger('e', Path(sys.argv[1])).lease('b:1'): print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    with other:
        assert other.stdout.readline() == "held\n"
        assert ledger.leased() == {"b:1"}
        other.kill()
    assert ledger.leased() == set()
    assert not list(tmp_path.rglob("leases/*"))


def test_a_ledger_that_cannot_be_written_costs_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "images").write_text("a file in the way")
    ledger = Ledger("e", tmp_path)
    ledger.pulled("a:1", "sha256:1")
    with ledger.lease("a:1"):
        assert ledger.leased() == {"a:1"}
    assert ledger.entries() == {}
    assert caplog.text.count("Set SAO_STATE") == 1


def image(name: str, size: int, kept: str = "") -> Image:
    return Image(name, name, size, size, 0, None, kept)


def test_what_is_lacking_is_the_tighter_of_budget_and_free_space() -> None:
    usage = Usage((image("a", 10 * GIB), image("b", 5 * GIB, "in use")), 15 * GIB, 20 * GIB, "/")
    assert usage.removable_bytes == 10 * GIB
    free = ImageSettings(keep_free_bytes=5 * GIB)
    assert usage.lacking(15 * GIB, free) == 0
    assert usage.lacking(16 * GIB, free) == GIB
    tight = dataclasses.replace(free, budget_bytes=18 * GIB)
    assert usage.lacking(4 * GIB, tight) == GIB
    hidden = dataclasses.replace(usage, free_bytes=None)
    assert hidden.lacking(1000 * GIB, free) <= 0
    assert hidden.lacking(4 * GIB, tight) == GIB


def plan(download: int, room: int | None, removable: int = 0, *needs: Need, measured: int = 1) -> ImagePlan:
    return ImagePlan(
        needs or (Need("a", 1, "missing", download),),
        download,
        measured,
        3 * download,
        2,
        0,
        room,
        removable,
        room,
        None,
    )


def test_the_verdict_of_a_plan() -> None:
    assert plan(0, 0, 0, Need("a", 1, "present")).verdict == "ready"
    assert plan(GIB, None).verdict == "fits"
    assert plan(GIB, 3 * GIB).verdict == "fits"
    assert plan(GIB, 2 * GIB, GIB).verdict == "fits after removing"
    assert plan(GIB, 2 * GIB).verdict == "too large"
    assert plan(0, 2 * GIB, measured=0).verdict == "unknown"
    many = tuple(Need(str(i), 1, "missing", GIB) for i in range(10))
    big = dataclasses.replace(plan(10 * GIB, 6 * GIB, 0, *many), largest_bytes=3 * GIB)
    assert big.verdict == "in turns"
    assert dataclasses.replace(big, at_once=3).verdict == "too large"
    gone = Need("g", 1, "missing", None, "no registry has it", hopeless=True)
    assert plan(GIB, 9 * GIB, 0, gone).verdict == "not to be had"
    assert all(verdict in plan(GIB, room, 0).meaning for room, verdict in [(3 * GIB, "there is room"), (0, "not even")])


def test_a_runs_prepared_state_is_never_one_that_was_made_here(tmp_path: Path) -> None:
    """A state of a home-made image has that image's labels too."""

    class Engine:
        def df(self) -> dict[str, Any]:
            labels = {"made:1": {MADE_HERE: "x"}, "state:1": {MADE_HERE: "x", RUN: "r"}}
            images = [{"Id": tag, "RepoTags": [tag], "Labels": each, "Size": 1} for tag, each in labels.items()]
            return {"Images": images}

    found = disk.usage(Engine(), Ledger("engine", tmp_path), "")
    assert {image.name: image.made for image in found.images} == {"made:1": True, "state:1": False}
