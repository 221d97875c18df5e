"""Broken inputs by kind, and every command that reads a file or a setting, as the fuzzer and its test use them.

A case is (command, kind): `lay` puts the broken thing into an empty folder beside whole inputs, and gives the words of
the command. No case needs an engine, a network or a model of its own.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sao.paths import DEMO_POLICY

COMMIT = "0" * 39 + "1"
ROW: dict[str, Any] = {
    "instance_id": "shop__cart-1",
    "repo": "shop/cart",
    "base_commit": COMMIT,
    "problem_statement": "total() subtracts\n",
    "hints_text": "",
    "created_at": "2025-01-01T00:00:00Z",
    "version": "3.10",
    "patch": "diff --git a/cart.py b/cart.py\n--- a/cart.py\n+++ b/cart.py\n@@ -1 +1 @@\n-a\n+b\n",
    "test_patch": "",
    "FAIL_TO_PASS": ["tests.test_cart.TestCart.test_1"],
    "PASS_TO_PASS": [],
    "environment_setup_commit": COMMIT,
    "eval_script": "#!/bin/bash\npytest -rA\n",
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
    "image": "none",
    "test_cmd": "python3 -m unittest -v",
    "files": json.dumps({"cart.py": "a\n"}),
}
PREDICTION = {"instance_id": "shop__cart-1", "model_name_or_path": "m", "model_patch": ROW["patch"]}
PROBLEM = {"id": "p1", "problem": "1 + 1?", "answer": "2"}
CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
TURN = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "info": {}}
SCORES = {"name": "a", "suite": "s", "scores": {"i-1": 1.0, "i-2": 0.0}}

DEEP = b"[" * 100_000 + b"]" * 100_000
RAW: Mapping[str, bytes] = {
    "empty": b"",
    "blank": b"\n \n\t\n",
    "cut": b'{"instance_id": "a", "mess',
    "word": b"nope",
    "null": b"null",
    "number": b"7",
    "list of numbers": b"[1, 2]",
    "empty object": b"{}",
    "empty list": b"[]",
    "nan": b"NaN",
    "deep list": DEEP,
    "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep toml": b"a = " + b"[" * 5000 + b"]" * 5000,
    "dotted toml": b"a" + b".a" * 5000 + b" = 1",
    "digits": b'{"a": ' + b"9" * 5000 + b"}",
    "huge exponent": b'{"a": 1e999999}',
    "equal keys": b'{"a": 1, "a": 2}',
    "surrogate": b'{"a": "\\ud800"}',
    "surrogate key": b'{"\\udfff": 1}',
    "nul": b"\0\0\0\0",
    "binary": bytes(range(256)) * 8,
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "bom only": b"\xef\xbb\xbf",
    "latin-1": '{"a": "é"}'.encode("latin-1"),
    "cut gzip": gzip.compress(b'{"a": 1}' * 100)[:-12],
    "equal headers": b"instance_id,instance_id,messages,messages\n1,2,3,4\n",
    "ragged csv": b'a,b\n1,2,3\n"open',
    "parquet magic": b"PAR1" + b"\0" * 40 + b"PAR1",
}
"""Whole contents of a file, whatever its format."""

TEXTS: Mapping[str, Any] = {
    "null": None,
    "true": True,
    "number": 7,
    "huge number": 10**30,
    "float": 1e308,
    "list": [],
    "list of numbers": [1],
    "list of lists": [["a"]],
    "object": {},
    "nested": {"a": {"b": [{}]}},
    "empty": "",
    "blank": "  ",
    "surrogate": "a\ud800b",
    "nul": "a\0b",
    "line break": "a\nb",
    "control": "a\x1b]0;x\x07b",
    "climbs": "../../etc/passwd",
    "absolute": "/etc/passwd",
    "dots": "..",
    "long": "x" * 200_000,
    "long part": "x" * 300 + "/y",
    "digits": "9" * 5000,
    "object as text": '{"../x": "y", "/etc/z": "w"}',
    "deep as text": "[" * 100_000,
    "toml as text": "a = 1",
}
"""Values in place of one of a whole record."""

SETTINGS: Mapping[str, str] = {
    "huge": "9999999999999999999999",
    "negative": "-9999999999999999999999",
    "digits": "9" * 5000,
    "float": "1e308",
    "infinite": "inf",
    "nan": "nan",
    "zero": "0",
    "text": "'x'",
    "long text": "'" + "x" * 200_000 + "'",
    "list": "[]",
    "deep list": "[" * 5000 + "]" * 5000,
    "table": "{}",
    "surrogate": "\udcff",
    "nul": "'a\\u0000b'",
    "raw nul": "a\0b",
    "climbs": "'../../x'",
    "line break": "1\nb = 2",
    "date": "1979-05-27",
    "nothing": "",
}


@dataclass(frozen=True)
class Case:
    command: str
    kind: str
    lay: Callable[[Path], list[str]]
    """(an empty folder) -> words of the command."""
    names: tuple[str, ...] = ()
    """The refusal has to name one of these: what is broken."""

    @property
    def title(self) -> str:
        return f"{self.command} · {self.kind}"


def put(file: Path, value: Any) -> Path:
    """A whole file in the form that its name says: a .jsonl of one value, or a .json."""
    text = json.dumps([value] if file.suffix == ".json" else value)
    file.write_text(text + "\n", encoding="utf-8")
    return file


NO_ENGINE = ("--plain", "--sandbox", "docker")
"""Where no engine answers, what is read whole goes no further."""
FILES: Mapping[str, tuple[str, Callable[[str, Path], list[str]]]] = {
    "config": ("my.toml", lambda file, _: ["config", file]),
    "rollout --config": ("my.toml", lambda file, _: ["rollout", "--dry-run", "--plain", "-c", file]),
    "train --config": ("my.toml", lambda file, _: ["train", "--dry-run", "--plain", "-c", file]),
    "serve --config": ("my.toml", lambda file, _: ["serve", "--dry-run", "--plain", "-c", file]),
    "tasks show .jsonl": ("rows.jsonl", lambda file, _: ["tasks", "show", "--plain", *rows_are(file)]),
    "tasks show .json": ("rows.json", lambda file, _: ["tasks", "show", "--plain", *rows_are(file)]),
    "tasks show .csv": ("rows.csv", lambda file, _: ["tasks", "show", "--plain", *rows_are(file)]),
    "tasks show .parquet": ("rows.parquet", lambda file, _: ["tasks", "show", "--plain", *rows_are(file)]),
    "tasks validate": ("rows.jsonl", lambda file, _: ["tasks", "validate", *NO_ENGINE, "--tasks", file]),
    "rollout --tasks": ("rows.jsonl", lambda file, _: ["rollout", *NO_ENGINE, "--tasks", file]),
    "rollout --dry-run": ("rows.json", lambda file, _: ["rollout", "--dry-run", "--plain", "--tasks", file]),
    "images plan": ("rows.jsonl", lambda file, _: ["images", "plan", "--plain", "--tasks", file]),
    "tasks pack --problem": ("issue.md", lambda file, folder: pack(folder, problem="@" + file)),
    "tasks pack --fix": ("fix.patch", lambda file, folder: pack(folder, fix=file)),
    "eval tasks": ("rows.jsonl", lambda file, _: ["eval", "tasks", *NO_ENGINE, *rows_are(file)]),
    "eval swebench": ("rows.jsonl", lambda file, _: ["eval", "swebench", "--plain", "--rows", file]),
    "eval swebench --skip": ("skip.json", lambda file, folder: swe(folder, "--skip", file)),
    "eval swebench --network": ("network.json", lambda file, folder: swe(folder, "--network", file)),
    "eval swebench --stored-rows": ("stored.jsonl", lambda file, folder: swe(folder, "--stored-rows", file)),
    "eval swebench grade": ("preds.jsonl", lambda file, folder: grade(folder, file)),
    "eval swebench grade .json": ("preds.json", lambda file, folder: grade(folder, file)),
    "eval swebench validate": (
        "rows.json",
        lambda file, _: ["eval", "swebench", "validate", "--plain", "--rows", file],
    ),
    "eval aime2025 --data": ("problems.jsonl", lambda file, _: ["eval", "aime2025", "--plain", "--data", file]),
    "eval aime2025 --protocol": (
        "mine.toml",
        lambda file, folder: maths(folder, "--protocol", file),
    ),
    "eval compare": ("a.json", lambda file, folder: compare(folder, file)),
    "eval compare .jsonl": ("a.jsonl", lambda file, folder: compare(folder, file)),
    "import .json": ("t.json", lambda file, _: ["import", file, "--plain"]),
    "import .jsonl": ("output.jsonl", lambda file, _: ["import", file, "--plain"]),
    "import .traj": ("t.traj", lambda file, _: ["import", file, "--plain"]),
    "sft --chats": ("chats.jsonl", lambda file, _: sft("--chats", file)),
    "sft --chats .json": ("chats.json", lambda file, _: sft("--chats", file)),
    "sft --chats .parquet": ("chats.parquet", lambda file, _: sft("--chats", file)),
}
"""Command -> (the file that is broken, the words)."""

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
    "model.safetensors.index.json",
)
MODELS: Mapping[str, Callable[[str], list[str]]] = {
    "rollout --model": lambda folder: ["rollout", "--dry-run", "--plain", "--model", folder],
    "rollout --model for real": lambda folder: ["rollout", "--plain", "--sandbox", "docker", "--model", folder],
    "train --model": lambda folder: ["train", "--dry-run", "--plain", "--model", folder],
    "serve --model": lambda folder: ["serve", "--dry-run", "--plain", "--model", folder],
    "sft --model": lambda folder: ["sft", "--model", folder, "--out", "out", "--steps", "1"],
    "import --model": lambda folder: ["import", "t.json", "--plain", "--model", folder],
    "eval micro-swe --model": lambda folder: [
        *("eval", "micro-swe", "--plain", "--sandbox", "docker", "--tasks", "1", "--model", folder)
    ],
    "eval aime2025 --model": lambda folder: [
        "eval",
        "aime2025",
        "--plain",
        "--data",
        "problems.jsonl",
        "--model",
        folder,
    ],
}
RUN_FILES = ("config.toml", "origin.json", "journal.jsonl", "summary.json", "scores.json", "log", "tokenizer")
RUNS: Mapping[str, Callable[[str], list[str]]] = {
    "replay": lambda run: ["replay", run, "--plain"],
    "replay --list": lambda run: ["replay", run, "--plain", "--list"],
    "replay --train": lambda run: ["replay", run, "--plain", "--train", "exact"],
    "export": lambda run: ["export", run, "--plain", "--out", "out"],
    "rollout --run": lambda run: ["rollout", "--plain", "--sandbox", "docker", "--run", run],
    "train --run": lambda run: ["train", "--plain", "--sandbox", "docker", "--run", run],
    "train --critic": lambda run: ["train", "--plain", "--dry-run", "--critic", run],
    "pretrain-value": lambda run: ["pretrain-value", run, "--plain", "--out", "out"],
    "eval compare": lambda run: ["eval", "compare", run, run, "--plain"],
    "eval micro-swe --run": lambda run: ["eval", "micro-swe", "--plain", "--sandbox", "docker", "--run", run],
}
KEYS = (
    "tasks.limit",
    "tasks.path",
    "tasks.name",
    "tasks.split",
    "rollout.episodes",
    "rollout.seed",
    "rollout.concurrency",
    "agent.preset",
    "agent.temperature",
    "sandbox.memory_mib",
    "sandbox.grade_timeout_s",
    "engine.kind",
    "engine.servers",
    "model.path",
    "endpoint.url",
    "train.steps",
    "train.batch",
    "train.critic",
    "train.rewards",
    "name",
)


def rows_are(file: str) -> list[str]:
    return ["--set", f"tasks.path={json.dumps(file)}", "--set", "tasks.name=swe"]


def swe(folder: Path, *words: str) -> list[str]:
    put(folder / "good.jsonl", ROW)
    return ["eval", "swebench", "--plain", "--rows", "good.jsonl", *words]


def grade(folder: Path, predictions: str) -> list[str]:
    put(folder / "good.jsonl", ROW)
    return ["eval", "swebench", "grade", "--plain", "--rows", "good.jsonl", "-p", predictions]


def maths(folder: Path, *words: str) -> list[str]:
    put(folder / "problems.jsonl", PROBLEM)
    return ["eval", "aime2025", "--plain", "--data", "problems.jsonl", *words]


def compare(folder: Path, file: str) -> list[str]:
    (folder / "b.json").write_text(json.dumps(SCORES))
    return ["eval", "compare", file, "b.json", "--plain"]


def sft(*words: str) -> list[str]:
    return ["sft", "--model", str(DEMO_POLICY), "--out", "out", "--steps", "1", *words]


def pack(folder: Path, **changed: str) -> list[str]:
    _repository(folder / "repo")
    given = {"base": "HEAD~1", "fix": "HEAD", "problem": "it fails", "tests": "tests", **changed}
    words = ["tasks", "pack", *NO_ENGINE, "--repo", "repo", "--test-command", "python3 -m unittest -v"]
    return [*words, *(word for name, value in given.items() for word in (f"--{name}", value))]


def _repository(folder: Path) -> None:
    """Two commits: the second one mends cart.py and adds its test."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "init", "-q", folder], check=True)
    for texts in ({"cart.py": "a\n"}, {"cart.py": "b\n", "tests/test_cart.py": "import cart\n"}):
        for name, text in texts.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        subprocess.run(["git", "-C", folder, "add", "."], check=True)
        subprocess.run(["git", *who, "-C", folder, "commit", "-q", "-m", "x"], check=True)


def odd_files(file: Path) -> Mapping[str, Callable[[], object]]:
    """What stands in a file's place and is none."""
    loop = file.with_name("loop")

    def looped() -> None:
        loop.symlink_to(file.name)
        file.symlink_to("loop")

    def sparse() -> None:
        with file.open("wb") as opened:
            opened.truncate(1 << 42)

    return {
        "missing": lambda: None,
        "folder": lambda: file.mkdir(),
        "fifo": lambda: os.mkfifo(file),
        "symlink loop": looped,
        "dangling": lambda: file.symlink_to("nowhere"),
        "device": lambda: file.symlink_to("/dev/zero"),
        "4 TiB of nothing": sparse,
    }


ODD = ("missing", "folder", "fifo", "symlink loop", "dangling", "device", "4 TiB of nothing")


def file_cases() -> Iterator[Case]:
    for command, (name, words) in FILES.items():
        for kind, raw in RAW.items():
            yield Case(command, kind, _raw(name, words, raw), (name, Path(name).name))
        for kind in ODD:
            yield Case(command, kind, _odd(name, words, kind), (name, "nowhere", "/dev/zero"))
        for kind, given in {
            "long name": "x" * 5000,
            "long part": "x/" * 3000 + name,
            "nul name": f"a\0{name}",
            "surrogate name": f"a\udcff{name}",
        }.items():
            yield Case(command, f"path: {kind}", lambda folder, words=words, given=given: words(given, folder))


def _raw(name: str, words: Callable[[str, Path], list[str]], raw: bytes) -> Callable[[Path], list[str]]:
    def lay(folder: Path) -> list[str]:
        (folder / name).write_bytes(raw)
        return words(name, folder)

    return lay


def _odd(name: str, words: Callable[[str, Path], list[str]], kind: str) -> Callable[[Path], list[str]]:
    def lay(folder: Path) -> list[str]:
        odd_files(folder / name)[kind]()
        return words(name, folder)

    return lay


RECORDS: Mapping[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "tasks show": ("rows.jsonl", ROW, ("tasks show .jsonl", "rollout --tasks", "eval swebench", "images plan")),
    "grade": ("preds.jsonl", PREDICTION, ("eval swebench grade",)),
    "maths": ("problems.jsonl", PROBLEM, ("eval aime2025 --data",)),
    "chats": ("chats.jsonl", CHAT, ("sft --chats",)),
    "scores": ("a.json", SCORES, ("eval compare",)),
    "trajectory": ("t.json", TURN, ("import .json",)),
}


def record_cases() -> Iterator[Case]:
    """One field of a whole record broken, or a second record with the same id."""
    for name, whole, commands in RECORDS.values():
        for command, key, (kind, value) in itertools.product(commands, whole, TEXTS.items()):
            words = FILES[command][1]
            yield Case(command, f"{key}: {kind}", _record(name, words, {**whole, key: value}))


def _record(name: str, words: Callable[[str, Path], list[str]], value: Any) -> Callable[[Path], list[str]]:
    def lay(folder: Path) -> list[str]:
        text = json.dumps(value)
        (folder / name).write_text(text + "\n", encoding="utf-8")
        return words(name, folder)

    return lay


def setting_cases() -> Iterator[Case]:
    for key, (kind, value) in itertools.product(KEYS, SETTINGS.items()):
        for command in ("rollout", "train"):
            words = [command, "--dry-run", "--plain", "--set", f"{key}={value}"]
            yield Case(command, f"{key}: {kind}", lambda _, words=words: words)
    keys = {"long key": "x" * 200_000, "deep key": ".".join("a" * 3000), "no key": "", "surrogate key": "\udcff"}
    for kind, key in keys.items():
        yield Case("config", kind, lambda _, key=key: ["config", "demo", "--set", f"{key}=1"])


def model_cases() -> Iterator[Case]:
    for command, name in itertools.product(MODELS, MODEL_FILES):
        kinds: dict[str, bytes | str] = {**{kind: RAW[kind] for kind in _MODEL_RAW}, **dict.fromkeys(ODD[:5], "")}
        if name == "model.safetensors":
            kinds |= SAFETENSORS
        if name == "config.json":
            kinds |= {f"values: {kind}": json.dumps(value).encode() for kind, value in MODEL_VALUES.items()}
        for kind, raw in kinds.items():
            yield Case(command, f"{name}: {kind}", _model(MODELS[command], name, kind, raw))


_MODEL_RAW = (
    *("empty", "cut", "word", "null", "number", "list of numbers", "empty object", "deep list", "digits", "binary"),
    *("surrogate", "equal keys", "utf-16"),
)


def _header(value: Any, length: int | None = None) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


SAFETENSORS: Mapping[str, bytes] = {
    "header too long": _header({}, 1 << 62),
    "header deep": _header(DEEP),
    "header list": _header([1]),
    "header digits": _header(b'{"a": ' + b"9" * 5000 + b"}"),
    "entry number": _header({"a": 1}),
    "shape huge": _header({"a": {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 4]}}),
    "shape negative": _header({"a": {"dtype": "F32", "shape": [-1, -4_000_000], "data_offsets": [0, 4]}}),
    "offsets huge": _header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 10**30]}}),
    "offsets infinite": _header(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, Infinity]}}'),
    "shape text": _header({"a": {"dtype": "F32", "shape": "12", "data_offsets": [0, 4]}}),
    "dtype unknown": _header({"a": {"dtype": "X", "shape": [4_000_000], "data_offsets": [0, 0]}}),
}
_DEMO = json.loads((DEMO_POLICY / "config.json").read_text())
MODEL_VALUES: Mapping[str, Any] = {
    "no type": {},
    "unknown type": {**_DEMO, "model_type": "nothing"},
    "type number": {**_DEMO, "model_type": 7},
    "hidden text": {**_DEMO, "hidden_size": "64"},
    "hidden zero": {**_DEMO, "hidden_size": 0, "num_attention_heads": 0},
    "hidden negative": {**_DEMO, "hidden_size": -4},
    "layers huge": {**_DEMO, "num_hidden_layers": 10**9},
    "layers null": {**_DEMO, "num_hidden_layers": None},
    "vocabulary huge": {**_DEMO, "vocab_size": 10**30},
    "heads list": {**_DEMO, "num_attention_heads": []},
    "positions text": {**_DEMO, "max_position_embeddings": "many"},
    "architecture climbs": {**_DEMO, "architectures": ["../x"]},
    "remote code": {**_DEMO, "auto_map": {"AutoModelForCausalLM": "x.Y"}, "model_type": "x"},
}


def _model(words: Callable[[str], list[str]], name: str, kind: str, raw: bytes | str) -> Callable[[Path], list[str]]:
    def lay(folder: Path) -> list[str]:
        put(folder / "problems.jsonl", PROBLEM)
        (folder / "t.json").write_text(json.dumps(TURN))
        model = folder / "model"
        model.mkdir()
        for file in DEMO_POLICY.iterdir():
            if file.name != name:
                (model / file.name).symlink_to(file)
        if isinstance(raw, bytes):
            (model / name).write_bytes(raw)
        else:
            odd_files(model / name)[kind]()
        return words("model")

    return lay


def run_cases(whole: Path) -> Iterator[Case]:
    """`whole`: a run folder, of which one file after the other is broken."""
    raws = {kind: RAW[kind] for kind in (*_MODEL_RAW, "deep toml", "dotted toml", "nul")}
    for command, name in itertools.product(RUNS, RUN_FILES):
        for kind in (*raws, *ODD[:5]):
            yield Case(command, f"run's {name}: {kind}", _run(RUNS[command], whole, name, kind, raws.get(kind)))
    for command, inner in itertools.product(RUNS, _inner(whole)):
        for kind, raw in raws.items():
            yield Case(command, f"run's {inner}: {kind}", _run(RUNS[command], whole, inner, kind, raw))


def _inner(whole: Path) -> list[str]:
    """The files of the log, the weights and the trainer's state, named from the run."""
    folders = ("log", "weights", "checkpoints")
    found = [file for name in folders for file in sorted((whole / name).rglob("*")) if file.is_file()]
    return [str(file.relative_to(whole)) for file in found if file.suffix != ".lock"]


def _run(
    words: Callable[[str], list[str]], whole: Path, name: str, kind: str, raw: bytes | None
) -> Callable[[Path], list[str]]:
    def lay(folder: Path) -> list[str]:
        run = folder / "broken"
        shutil.copytree(whole, run, symlinks=True)
        target = run / name
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        if raw is not None:
            target.write_bytes(raw)
        else:
            odd_files(target)[kind]()
        return words("./broken")

    return lay


def all_cases(whole_run: Path | None = None) -> list[Case]:
    groups = [file_cases(), record_cases(), setting_cases(), model_cases()]
    return [case for group in [*groups, run_cases(whole_run) if whole_run else ()] for case in group]
