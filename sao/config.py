"""Configuration: a TOML file plus overrides over typed models.

Unknown keys are errors that name the nearest known key; the resolved configuration is written into the run folder.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import reprlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data.reading import InputError, check_text, parse_toml, read_toml, shown
from sao.paths import UserError, config_file
from trainer.train_config import TrainConfig, ValueConfig

Model = TypeVar("Model", bound=BaseModel)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True)


class ModelConfig(Section):
    path: str = "demo"
    """Folder of a Hugging Face causal LM with its tokenizer, a model id of the hub (`org/name`, `org/name@revision`),
    or `demo` for the shipped policy."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes the GPU where there is one (bf16 there, fp32 on a CPU)."""
    threads: int = Field(0, ge=0)
    """CPU threads of the engine; 0 leaves one core for the sandboxes."""


class EngineConfig(Section):
    """Who samples (docs/engines.md). vLLM needs scripts/vllm-env.sh once."""

    kind: Literal["embedded", "vllm", "endpoint"] = "embedded"
    """embedded: in this process. vllm: servers, over HTTP. endpoint: any OpenAI-compatible one, for evaluation only."""
    servers: tuple[str, ...] = ()
    """Addresses of running servers (`sao serve`), which see the run's folder under the same path; empty: the run starts
    its own and ends them."""
    count: int = Field(1, ge=1)
    """Servers that the run starts."""
    mode: Literal["split", "colocated"] = "split"
    """split: servers and trainer run side by side, each with a device (or CPU cores) of its own. colocated: they share
    one GPU and take turns; the servers sleep while the trainer makes its step."""
    weights: Literal["file", "nccl", "ipc"] = "file"
    """How new weights get into the servers: read from the run's folder, or sent by vLLM's transfer engines (GPUs only):
    nccl from a GPU of its own, ipc through the memory of the server's own GPU (one worker a server)."""
    gpus: tuple[str, ...] = ()
    """GPUs of the servers, as CUDA_VISIBLE_DEVICES names them, divided evenly; several each are tensor parallelism.
    Empty: where the mode is split and there are enough, one each after the first (the trainer's); else the first."""
    gpu_share: float = Field(0.0, ge=0, le=1)
    """Of a GPU's memory that a server takes; 0: 0.85, colocated 0.5."""
    sleep_level: Literal[1, 2] = 1
    """Colocated: 1 keeps the sleeping servers' weights in the host's memory, 2 drops them."""
    bucket_mib: int = Field(512, ge=1)
    """Size of the buffers that nccl and ipc pack tensors into; two are held at a time."""
    environment: str = ""
    """Virtual environment that holds vLLM; empty: .venv-vllm of the checkout."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: float32 on a CPU, bfloat16 on a GPU."""
    in_flight: int = Field(64, ge=1)
    """Requests that one server holds at once; more wait in the client."""
    max_context: int = Field(0, ge=0)
    """Tokens of a request, prompt and new ones; 0: the model's own limit."""
    cache_gib: int = Field(1, ge=1)
    """Key/value cache of a CPU server."""
    patience_s: float = Field(900.0, gt=0)
    """Seconds that a turn waits while no server answers, and that a server may take to start."""
    restarts: int = Field(20, ge=0)
    """How often one server is started again."""
    extra: tuple[str, ...] = ()
    """More arguments for the servers that the run starts."""


class EndpointConfig(Section):
    """With engine.kind = "endpoint": chat completions (docs/evaluation.md). The key is never written down."""

    url: str = ""
    """Address up to and with /v1, e.g. http://127.0.0.1:8000/v1."""
    model: str = ""
    """The model's name there."""
    key_env: str = ""
    """Environment variable that holds the key; empty: none is sent."""
    calls: Literal["native", "text"] = "native"
    """native: the endpoint's own tool calls. text: tools listed in the prompt, calls written as text."""
    thoughts: Literal["send", "drop"] = "send"
    """Whether thoughts that the endpoint gives apart from the text go back to it in later turns."""
    limit_field: str = "max_tokens"
    """Name of the field for an answer's most tokens; some want max_completion_tokens."""
    omit: tuple[str, ...] = ()
    """Fields not to send, e.g. seed, temperature, top_p, for endpoints that refuse them."""
    extra: dict[str, Any] = {}
    """More fields of every request, e.g. endpoint.extra.reasoning_effort."""
    max_context: int = Field(0, ge=0)
    """Tokens that the model takes, prompt and answer; 0: what the endpoint says, if it does."""
    in_flight: int = Field(16, ge=1)
    """Requests at once; more wait."""
    timeout_s: float = Field(3600.0, gt=0)
    """Seconds for one answer."""
    tries: int = Field(8, ge=1)
    """Of one request, when the endpoint is down or busy."""
    patience_s: float = Field(900.0, ge=0)
    """Seconds for all tries of one request."""


class TasksConfig(Section):
    name: str = "micro-swe"
    """`micro-swe` (generated), `swe` (SWE-bench rows from `path`), or a dataset id."""
    split: str = "train"
    """micro-swe: train, heldout or unseen (a template family that is never trained on); else the dataset's own."""
    path: str = ""
    """Local file or folder with rows: .jsonl, .json, .parquet, .csv, .arrow. Empty: generated or from the hub."""
    limit: int = Field(0, ge=0, le=1_000_000)
    """Use only the first so many tasks; 0 means all (for generated tasks: as many as there are draws)."""


class AgentConfig(Section):
    preset: str = "demo"
    """Name of a file in agent/presets/ or a path: prompt, tools, limits."""
    temperature: float = Field(1.0, ge=0)
    """1 samples from the model's own distribution (the only one that SAO trains on); 0 is greedy."""
    blind: bool = False
    """Control: hide every observation from the policy. Trained equally, it shows what needs no reading."""


class PoolConfig(Section):
    """Ready sandboxes, so that an episode need not wait for a start (envs/sandbox/pool.py)."""

    ready: int = Field(-1, ge=-1)
    """Sandboxes kept ready in all; 0: none; -1: with Docker half the episodes at once (2 to 16), else none."""
    warm_after: int = Field(3, ge=1)
    """A kind of sandbox (image, limits) is kept ready once it was asked for so often."""
    idle_s: float = Field(60.0, gt=0)
    """Seconds without demand after which a kind's ready sandboxes are closed."""


class SandboxConfig(Section):
    backend: Literal["auto", "docker", "embedded", "none"] = "auto"
    """auto takes Docker where an engine answers, else the embedded sandbox, and says so; none: for tasks without tools.
    """
    memory_mib: int = Field(1024, ge=64)
    """Memory limit of one sandbox in MiB; no swap."""
    cpus: float = Field(1.0, gt=0)
    """CPU cores a sandbox may use (Docker; the embedded sandbox shares the machine's)."""
    pids: int = Field(256, ge=16)
    """Processes and threads a sandbox may have at once."""
    grade_timeout_s: float = Field(300.0, gt=0)
    """Seconds that the hidden tests may take."""
    starts_at_once: int = Field(0, ge=0)
    """Docker containers started at once; 0: as many as suit this machine. More only makes the engine slower."""
    runtime: str = ""
    """An OCI runtime of the Docker engine, e.g. runsc (gVisor) for hostile code; empty: the engine's own."""
    pool: PoolConfig = PoolConfig()


class ImagesConfig(Section):
    """Docker images that tasks name: missing ones are pulled, those not used lately make room (`sao images`)."""

    mirror: str = ""
    """host[:port][/path] that is asked first for Docker Hub's images, e.g. a pull-through cache."""
    budget_gib: float = Field(0.0, ge=0)
    """Most that all images of the engine may take on disk; 0: no budget. Only images that sao pulled are removed."""
    keep_free_gib: float = Field(5.0, ge=0)
    """GiB left free on the engine's disk for what sandboxes write."""
    parallel: int = Field(3, ge=1, le=6)
    """Pulls at once."""
    tries: int = Field(6, ge=1)
    """Of one image, when the registry is busy or the connection breaks."""
    patience_s: float = Field(900.0, ge=0)
    """Longest time that one image may wait for a registry that says "later"."""


class RolloutConfig(Section):
    episodes: int = Field(64, ge=1, le=100_000_000)
    """Draws of the plan; draw i runs task i modulo the number of tasks."""
    concurrency: int = Field(8, ge=1, le=65_536)
    """Episodes at once: each holds one sandbox, the engine batches them."""
    seed: int = Field(0, ge=-(2**63), lt=2**63)
    """Seeds every draw; same seed, weights and tasks give the same samples up to floating-point ties."""
    max_attempts: int = Field(3, ge=1)
    """How often a draw is tried when the infrastructure (not the model) fails."""
    seal_every: int = Field(256, ge=1)
    """Finished trajectories are sealed into a Parquet shard of this many."""


class Config(Section):
    """One run. `name` is the run folder's stem: runs/<name>-001, ..."""

    name: str = "demo"
    """Stem of the run folder."""
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    endpoint: EndpointConfig = EndpointConfig()
    tasks: TasksConfig = TasksConfig()
    agent: AgentConfig = AgentConfig()
    sandbox: SandboxConfig = SandboxConfig()
    images: ImagesConfig = ImagesConfig()
    rollout: RolloutConfig = RolloutConfig()
    value: ValueConfig = ValueConfig()
    train: TrainConfig = TrainConfig()

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    def plan_hash(self) -> str:
        """Hash of what decides the trajectories: a run folder is only continued under the same one.

        Machine matters (concurrency, engine, device, sandbox sizes) may change between start and resume, and the plan
        may grow."""
        machine = {"engine", "endpoint", "sandbox", "images"}
        plan = self.model_dump(mode="json", exclude={"name", "value", "train", *machine})
        plan["rollout"] = {"seed": self.rollout.seed}
        plan["model"] = {"path": self.model.path}
        if self.engine.kind == "endpoint":
            asked = ("model", "calls", "thoughts", "omit", "extra")
            plan["endpoint"] = self.endpoint.model_dump(mode="json", include=set(asked))
        return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]


def load_config(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration by name or path and apply `section.key=value` overrides (TOML values; bare words are text).

    Raises UserError for broken TOML, unknown keys and values out of range, naming file and key."""
    path = config_file(name)
    try:
        values = read_toml(path)
    except InputError as error:
        raise UserError(f"{error}. Mend that line and start again; nothing was started.") from error
    for override in overrides:
        apply_override(values, override)
    return validate(Config, values, f"{path}" + (" with overrides" if overrides else ""))


def apply_override(values: dict[str, Any], override: str) -> None:
    try:
        check_text(override, "An override (--set)")
    except InputError as error:
        raise UserError(f"{error}. Nothing was started.") from error
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"Override {shown(override)!r} is not of the form section.key=value, e.g. rollout.episodes=20.")
    try:
        read = parse_toml(f"value = {text.strip()}", f"Override {shown(override)!r}")
        value: Any = read["value"] if len(read) == 1 else text.strip()
    except InputError as error:
        if not isinstance(error.__cause__, tomllib.TOMLDecodeError):
            raise UserError(f"{error}. Nothing was started.") from error
        value = text.strip()
    *parents, last = key.strip().split(".")
    if len(parents) > 8:
        raise UserError(f"Override {shown(override)!r}: no key has so many sections.")
    node: Any = values
    for parent in parents:
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            raise UserError(f"Override {shown(override)!r}: {parent} is a value, not a section.")
    node[last] = value


def validate(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """Build a typed model from plain values; every fault becomes one line of a UserError."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_explain(model, fault) for fault in error.errors()]
        raise UserError(f"{where}: " + "; ".join(lines) + ". Nothing was started.") from error


def _explain(model: type[BaseModel], fault: Any) -> str:
    location = [str(part) for part in fault["loc"]]
    key = ".".join(location)
    if fault["type"] != "extra_forbidden":
        return f"{key}: {fault['msg'].lower()} (got {reprlib.repr(fault['input'])})"
    known = _fields(model, location[:-1])
    close = difflib.get_close_matches(location[-1], known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "known keys: " + ", ".join(known)
    return f"unknown key {key!r}: {hint}"


def _fields(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not nested:
            return []
        model = nested[0]
    return sorted(model.model_fields)


def describe(model: type[BaseModel], prefix: str = "", values: BaseModel | None = None) -> list[tuple[str, str, str]]:
    """(key, default, meaning) of every field. `values`: an instance whose values are the defaults (a section's own)."""
    values = values or model()
    rows: list[tuple[str, str, str]] = []
    for name, field in model.model_fields.items():
        value = getattr(values, name)
        if isinstance(value, BaseModel):
            rows += describe(type(value), f"{prefix}{name}.", value)
        else:
            default = json.dumps(values.model_dump(mode="json", include={name})[name])
            rows.append((f"{prefix}{name}", default, " ".join((field.description or "").split())))
    return rows
