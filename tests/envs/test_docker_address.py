"""Which engine is taken, and in words why one is not."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path

import pytest

from envs.sandbox import BackendUnavailable
from envs.sandbox.docker_address import DEFAULT, find_engine, refusal
from envs.sandbox.docker_engine import Engine, connect, engine_address


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))


def context(folder: Path, name: str, host: str, *, tls: bool = False, current: bool = True) -> None:
    config = folder / "config"
    key = hashlib.sha256(name.encode()).hexdigest()
    meta = config / "contexts" / "meta" / key
    meta.mkdir(parents=True)
    endpoints = {"docker": {"Host": host, "SkipTLSVerify": False}}
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": endpoints}))
    if tls:
        place = config / "contexts" / "tls" / key / "docker"
        place.mkdir(parents=True)
        for each in ("ca.pem", "cert.pem", "key.pem"):
            (place / each).write_text("")
    (config / "config.json").write_text(json.dumps({"currentContext": name} if current else {}))


def test_the_systems_socket_where_nothing_is_set() -> None:
    assert find_engine() == DEFAULT


def test_the_current_context_then_the_environment_then_a_named_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context(tmp_path, "colima", "unix:///home/me/.colima/default/docker.sock")
    context(tmp_path, "other", "tcp://10.0.0.1:2375", current=False)
    (tmp_path / "config" / "config.json").write_text('{"currentContext": "colima"}')
    assert find_engine() == "unix:///home/me/.colima/default/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/docker.sock")
    assert find_engine() == "unix:///run/user/1000/docker.sock"
    monkeypatch.setenv("DOCKER_CONTEXT", "other")
    assert find_engine() == "tcp://10.0.0.1:2375"
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert find_engine() == DEFAULT
    for broken in ("", "{", "[]"):  # the docker command takes the default one too
        (tmp_path / "config" / "config.json").write_text(broken)
        monkeypatch.delenv("DOCKER_HOST", raising=False)
        monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
        assert find_engine() == DEFAULT


@pytest.mark.parametrize(
    "host", ["ssh://me@far", "tcp://far:2376", "https://far:2376", "npipe:////./pipe/x", "far:2375", "x"]
)
@pytest.mark.parametrize("by", ["environment", "context"])
def test_what_cannot_be_used_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, by: str
) -> None:
    if by == "environment":
        monkeypatch.setenv("DOCKER_HOST", host)
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    else:
        context(tmp_path, "far", host, tls=True)
    with pytest.raises(BackendUnavailable) as refused:
        connect()
    text = str(refused.value)
    assert "DOCKER_HOST=" in text or "unix://PATH" in text or "context" in text
    if "://far" in host or "ssh" in host:
        assert "ssh -NL" in text
    assert engine_address()  # for people, and never an error


def test_a_context_that_is_not_there_or_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context(tmp_path, "here", "unix:///x")
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    with pytest.raises(BackendUnavailable, match="DOCKER_CONTEXT=gone names no engine"):
        find_engine()
    key = hashlib.sha256(b"here").hexdigest()
    (tmp_path / "config" / "contexts" / "meta" / key / "meta.json").write_text("{")
    monkeypatch.setenv("DOCKER_CONTEXT", "here")
    with pytest.raises(BackendUnavailable, match="cannot be read"):
        find_engine()


@pytest.mark.docker
def test_an_engine_of_a_context_answers(tmp_path: Path) -> None:
    context(tmp_path, "mine", DEFAULT)
    with connect() as engine:
        assert engine.api().ping()


def listening(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    return made


def test_a_socket_of_another_group_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "d.sock"
    with listening(path):
        path.chmod(0o660)
        os.chown(path, os.geteuid(), 1 if os.geteuid() == 0 else os.getegid())
        monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may use all
        monkeypatch.setattr("envs.sandbox.docker_engine._reason", lambda error: "Permission denied")
        text = str(Engine(f"unix://{path}").unavailable(PermissionError(13, "Permission denied")))
    assert "the engine runs" in text
    assert "usermod -aG" in text or "dockerd -G" in text
    assert "start it" not in text


def test_other_sockets_are_named_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with listening(tmp_path / "run" / "podman" / "podman.sock"):
        text = refusal(f"unix://{tmp_path}/none.sock")
    assert "DOCKER_HOST=unix://" in text
    assert f"unix://{tmp_path}/run/podman/podman.sock" in text
    (tmp_path / "plain").write_text("")
    assert "is no socket" in refusal(f"unix://{tmp_path}/plain")
    assert refusal("tcp://127.0.0.1:1") == ""
