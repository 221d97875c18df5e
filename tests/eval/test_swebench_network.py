"""`--network`: only rows that are named get a network while their tests run, and every report says which did."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from envs.environment import Grade, ToolCall
from envs.sandbox import NetworkRefused, Sandbox, SandboxSpec
from envs.sandbox.docker_backend import DockerBackend
from envs.sandbox.docker_engine import Engine, connect
from envs.sandbox.embedded import EmbeddedBackend
from envs.swe import SWEEnvironment
from eval.errors import EvalError
from eval.swebench.execute import EvalLimits, spec
from eval.swebench.grade import Grader, GradeSettings, Progress
from eval.swebench.official import Harness
from eval.swebench.outcome import ErrorKind, Graded, Verdict
from eval.swebench.report import run_report
from eval.swebench.rows import HarnessRow
from eval.swebench.skipping import read_skip_list
from eval.swebench.store import EvalFolder
from eval.swebench.validate import RowCheck, check_rows, skip_list
from eval.swebench.wants_network import missed_network
from sao.eval_agent import verifiers
from sao.swebench import RowChoice
from tests.conftest import BASE_IMAGE
from tests.envs.private_engine import private_engine
from tests.eval.small import GOLD, grade_small, small_row, small_task
from tests.sao.command import runs  # noqa: F401 - a fixture
from tests.sao.command import whole_sao as sao

pytest.importorskip("swebench", reason="SWE-BENCH NOT TESTED: the extra `eval` is not installed")
NAMES = ("small__n-0", "small__n-1")


class Bridged(EmbeddedBackend):
    """Has the networks of a Docker engine as far as anybody is told; what runs has none."""

    def __init__(self) -> None:
        super().__init__("network-tests")
        self.asked: list[tuple[str, str]] = []

    async def check_network(self) -> None:
        pass

    async def start(self, spec: SandboxSpec) -> Sandbox:
        self.asked.append((spec.labels["task"], spec.network))
        return await super().start(dataclasses.replace(spec, network="none"))


def test_only_named_rows_get_one_and_the_verdict_is_made_anew(tmp_path: Path) -> None:
    rows = [small_row(name) for name in NAMES]
    work = [(row, GOLD) for row in rows]
    seen: list[Progress] = []

    def grade(*named: str) -> tuple[list[Graded], list[tuple[str, str]]]:
        backend = Bridged()
        seen.clear()
        settings = GradeSettings(workers=1, network=frozenset(named))
        made = grade_small(work, tmp_path, backend=lambda: backend, settings=settings, observer=seen.append)
        return made, backend.asked

    made, asked = grade()
    assert asked == [(name, "none") for name in NAMES]
    made, asked = grade(NAMES[1])
    assert asked == [(NAMES[1], "bridge")]  # the other's verdict stands
    assert [(each.network, each.verdict) for each in made] == [("none", Verdict.RESOLVED), ("bridge", Verdict.RESOLVED)]
    report = run_report(rows, {}, {each.instance_id: each for each in made})
    assert report["network_ids"] == [NAMES[1]]
    assert grade(NAMES[1]) == (made, [])
    assert grade()[1] == [(NAMES[1], "none")]  # a verdict with a network is none without


def test_the_agents_own_sandboxes_have_none_also_on_a_row_that_is_named(tmp_path: Path) -> None:
    """Where the agent works, and where its work is read out; only the tests of its patch run with a network."""
    row = small_row(NAMES[0])
    backend = Bridged()

    async def episode() -> Grade:
        async with Harness() as harness:
            with EvalFolder(tmp_path) as store:
                grader = Grader(backend, harness, store, GradeSettings(network=frozenset({NAMES[0]})))
                verifier = verifiers(grader, [row], "agent")(row.task)
                environment = SWEEnvironment(row.task, backend, verifier=verifier)
                try:
                    await environment.reset()
                    edit = {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}
                    assert (await environment.step(ToolCall("str_replace", edit))).error is None
                    return await environment.grade()
                finally:
                    await environment.close()
                    await backend.close()

    assert asyncio.run(episode()).reward == 1.0
    assert backend.asked == [(NAMES[0], "none"), (NAMES[0], "none"), (NAMES[0], "bridge")]


def test_a_row_that_is_not_named_has_none() -> None:
    assert spec(small_row(), EvalLimits()).network == "none"
    assert GradeSettings(network=frozenset({"a"})).network_of("b") == "none"


def test_a_prediction_without_a_patch_ran_nothing(tmp_path: Path) -> None:
    settings = GradeSettings(network=frozenset(NAMES))
    (graded,) = grade_small([(small_row(NAMES[0]), "")], tmp_path, backend=Bridged, settings=settings)
    assert (graded.verdict, graded.network) == (Verdict.EMPTY, "none")


def test_the_embedded_sandbox_refuses_before_anything_is_graded(tmp_path: Path) -> None:
    work = [(small_row(name), GOLD) for name in NAMES]
    with pytest.raises(NetworkRefused, match="the embedded sandbox never has one"):
        grade_small(work, tmp_path, settings=GradeSettings(network=frozenset({NAMES[1]})))
    assert not list(tmp_path.rglob("outcome.json"))


class Late(Bridged):
    """The engine loses its bridge after the check."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        raise NetworkRefused("no bridge")


def test_a_refusal_in_the_middle_is_an_error_that_is_not_tried_again(tmp_path: Path) -> None:
    settings = GradeSettings(network=frozenset(NAMES))
    (graded,) = grade_small([(small_row(NAMES[0]), GOLD)], tmp_path, backend=Late, settings=settings)
    assert (graded.error, graded.about_model, graded.attempts) == (ErrorKind.SANDBOX, False, 1)


def fetching(gateway: str) -> str:
    """A test that passes when the bridge's gateway refuses it; without a network it looks a name up in vain."""
    reached = f"__import__('socket').socket().connect_ex(('{gateway}', 9)) == 111"
    looked_up = "__import__('socket').gethostbyname('files.invalid')"
    return f"test_add = __import__('calc').add(1, 2) == 3 and ({reached} or {looked_up})\n"


@pytest.mark.docker
@pytest.mark.slow
def test_a_row_that_needs_one_is_found_and_then_runs(tmp_path: Path) -> None:
    """On an engine with Docker's default bridge; the row beside it has none both times."""

    async def check(address: str, rows: list[HarnessRow], folder: Path, *named: str) -> Mapping[str, Any]:
        backend = DockerBackend("network-tests", Engine(address))
        try:
            async with Harness() as harness:
                with EvalFolder(folder) as store:
                    grader = Grader(backend, harness, store, GradeSettings(workers=2, network=frozenset(named)))
                    return skip_list(await check_rows(grader, rows))
        finally:
            await backend.close()

    with private_engine(bridge=True) as engine:
        with connect() as machines:
            engine.client.load_image(b"".join(machines.api().get_image(BASE_IMAGE)))
        subnet = ip_network(engine.client.inspect_network("bridge")["IPAM"]["Config"][0]["Subnet"])
        rows = [small_row("small__fetches-1", tests=fetching(str(subnet[1]))), small_row("small__plain-1")]
        without = asyncio.run(check(engine.address, rows, tmp_path))
        assert (without["need_network"], without["usable"]) == (["small__fetches-1"], 1)
        given = asyncio.run(check(engine.address, rows, tmp_path, *without["need_network"]))
    assert (given["usable"], given["checked_with_network"], given["skip"]) == (2, ["small__fetches-1"], {})
    graded = [json.loads(path.read_text()) for path in tmp_path.rglob("outcome.json")]
    assert {each["instance_id"]: each["network"] for each in graded} == {
        "small__fetches-1": "bridge",
        "small__plain-1": "none",
    }


PIP = "".join(
    f"WARNING: Retrying (Retry(total={left}, connect=None)) after connection broken by 'NewConnectionError': Failed to "
    "establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/numpy/\n"
    for left in (4, 3)
)
GAVE_UP = "ERROR: Could not find a version that satisfies the requirement setuptools>=61 (from versions: none)\n"
NPM = "npm warn retry will retry, error on last attempt: FetchError getaddrinfo EAI_AGAIN registry.example\n"


@pytest.mark.parametrize(
    ("installing", "tests", "missed"),
    [
        (PIP, "FAILED t.py::test_a - assert 1 == 2", False),
        (NPM, "FAIL a.test.js", False),
        (PIP + GAVE_UP, "ModuleNotFoundError: No module named 'x'", True),
        ("npm ERR! network request to https://registry.example failed: getaddrinfo ENOTFOUND\n", "", True),
        (GAVE_UP, "", False),  # that version does not exist
        ("", "E socket.gaierror: [Errno -3] Temporary failure in name resolution", True),
        ("", "curl: (6) Could not resolve host: example.org", True),
        ("", PIP + "FAILED t.py::test_a", False),
        ("", "java.net.UnknownHostException: example.org", True),
    ],
)
def test_an_installers_retries_are_no_want_of_a_network(installing: str, tests: str, missed: bool) -> None:
    log = f"{installing}+ : '>>>>> Start Test Output'\n{tests}\n+ : '>>>>> End Test Output'\n"
    assert missed_network(log) is missed


# -- which rows: validate's list --------------------------------------------------------------------------------------


def checked(name: str, verdict: Verdict, *, network: str = "none", missed: bool = False) -> RowCheck:
    gold = Graded(name, "gold-0", "", verdict, network=network, missed_network=missed)  # type: ignore[arg-type]
    # Without the fix every row fails, and the installer's retries stand in each of these logs.
    nothing = dataclasses.replace(gold, verdict=Verdict.UNRESOLVED, missed_network=True)
    return RowCheck(name, (gold,), (nothing,), f"digest of {name}")


def test_a_row_that_lacked_a_network_is_run_with_one_and_one_that_failed_with_it_is_not(tmp_path: Path) -> None:
    checks = [
        checked("fine", Verdict.RESOLVED),
        checked("broken", Verdict.UNRESOLVED),
        checked("fetches", Verdict.UNRESOLVED, missed=True),
        checked("hopeless", Verdict.UNRESOLVED, network="bridge"),
        checked("helped", Verdict.RESOLVED, network="bridge"),
    ]
    (tmp_path / "skip.json").write_text(json.dumps(skip_list(checks)))
    found = read_skip_list(str(tmp_path / "skip.json"))
    assert found.need_network == {"fetches", "hopeless", "helped"}
    assert found.good == {name: f"digest of {name}" for name in ("fine", "helped")}
    assert found.left_out(frozenset()) == {"broken", "fetches", "hopeless"}
    assert found.left_out(found.need_network) == {"broken", "hopeless"}


def test_the_lists_of_a_choice(tmp_path: Path) -> None:
    rows, lists = tmp_path / "rows.jsonl", tmp_path / "skip.json"
    names = [f"small__n-{number}" for number in range(4)]
    rows.write_text("".join(json.dumps(dict(small_task(name).row)) + "\n" for name in names))
    skipped: dict[str, object] = {"skip": {names[0]: ["x"], names[1]: ["y"]}, "need_network": [names[1], "other"]}
    lists.write_text(json.dumps(skipped))

    def chosen(*network: str, skip: str | None = str(lists)) -> tuple[list[str], frozenset[str]]:
        choice = RowChoice(rows=str(rows), skip=skip, network=network)
        found = choice.load()
        return [row.instance_id for row in found], choice.settings(GradeSettings(), found).network

    assert chosen() == (names[2:], frozenset())
    assert chosen(str(lists)) == (names[1:], {names[1]})
    assert chosen(str(lists), names[3]) == (names[1:], {names[1], names[3]})
    assert chosen(names[0], skip=None) == (names, {names[0]})
    with pytest.raises(EvalError, match="no instance nobody; check --network"):
        chosen("nobody")
    with pytest.raises(EvalError, match="is no skip list"):
        chosen(str(tmp_path / "none.json"))


def test_the_command_refuses_in_one_paragraph(
    runs: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(dict(small_task(NAMES[0]).row)) + "\n")
    common = ("--sandbox", "embedded", "--plain", "--rows", str(tmp_path / "rows.jsonl"), "--network", NAMES[0])
    for words in (("grade", "-p", "gold"), ("validate",), ()):
        code, said = sao("eval", "swebench", *words, *common, "--run", "refused", capsys=capsys)
        assert (code, "Traceback" in said) == (3, False), said
        assert "the embedded sandbox never has one: use --sandbox docker, or leave --network away" in said
    code, said = sao("eval", "swebench", "grade", "-p", "gold", *common[:-1], "nobody", capsys=capsys)
    assert (code, "check --network" in said) == (2, True), said
    code, said = sao("eval", "swebench", "grade", "-p", "gold", *common[:-2], "--run", "plain", capsys=capsys)
    assert code == 0, said
    report = json.loads((runs / "plain" / "report.json").read_text())
    assert (report["network"], report["network_ids"]) == ("none", [])
