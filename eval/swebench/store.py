"""The folder of one grading run.

    <folder>/eval.json                                   what was graded, with what (`RunFacts`)
    <folder>/journal.jsonl                               one line for each start and each verdict
    <folder>/logs/run_evaluation/<name>/<model>/<id>/    the official layout: report.json, test_output.txt, patch.diff,
                                                         eval.sh, and outcome.json (ours, written last)
    <folder>/report.json, scores.json                    see eval.swebench.report

Promises: one process at a time; an outcome is on disk whole or not at all, and only counts for the patch, row, image
and harness it was made with; whatever was killed before its outcome stood is graded again, and nothing else is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from data.atomic import write_atomically
from data.journal import Journal
from data.locks import hold
from envs.sandbox.contract import Network
from eval.errors import EvalError
from eval.swebench.outcome import ErrorKind, Graded, Verdict
from eval.swebench.predictions import Prediction
from eval.swebench.rows import HarnessRow

GRADERS = 1
"""Version of this grader: run, guards and outcome. A new one makes every verdict anew."""


def resume_key(row: HarnessRow, prediction: Prediction, image: str, harness: str, network: Network = "none") -> str:
    """Of everything that decides the verdict. `image`: the image's content id."""
    parts = {
        "patch": hashlib.sha256((prediction.patch or "").encode("utf-8", "surrogatepass")).hexdigest(),
        "row": row.digest(),
        "image": image,
        "harness": f"swebench {harness}, graders {GRADERS}",
        **({} if network == "none" else {"network": network}),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def file_name(name: str) -> str:
    """The official rule for a model's folder, kept inside its parent."""
    return name.replace("/", "__").lstrip(".") or "none"


class EvalFolder:
    """Context manager. Raises EvalError when another process grades into the folder."""

    def __init__(self, path: Path, name: str = "") -> None:
        """`name`: the official run id; default: the folder's own name."""
        self.path = path
        self.name = name or path.name
        self.journal = Journal(path / "journal.jsonl")
        self._lock: IO[str] | None = None

    def __enter__(self) -> EvalFolder:
        self._lock = hold(self.path)
        if self._lock is None:
            raise EvalError(f"another process grades into {self.path}; wait for it, or name another run")
        return self

    def __exit__(self, *exc: object) -> None:
        self.journal.close()
        if self._lock is not None:
            self._lock.close()

    def place(self, prediction: Prediction) -> Path:
        logs = self.path / "logs" / "run_evaluation" / file_name(self.name)
        return logs / file_name(prediction.model) / file_name(prediction.instance_id)

    def earlier(
        self,
        row: HarnessRow,
        prediction: Prediction,
        image: str | None,
        harness: str,
        timeout_s: float,
        network: Network = "none",
    ) -> Graded | None:
        """A verdict that still holds: same key, and no fault of ours. `image` is None when the image is not here now:
        then the one that the verdict was made with counts. A time-out holds unless the limit is higher now."""
        found = self.read(prediction)
        if found is None or found.key != resume_key(row, prediction, image or found.image, harness, network):
            return None
        if found.verdict is Verdict.ERROR and not found.about_model:
            return None
        return None if found.error is ErrorKind.TIMED_OUT and timeout_s > found.timeout_s else found

    def read(self, prediction: Prediction) -> Graded | None:
        try:
            return Graded(**json.loads((self.place(prediction) / "outcome.json").read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):  # made by another version, or damaged: it is made again
            return None

    def begin(self, prediction: Prediction, key: str) -> Path:
        """The instance's folder, without anything of an earlier verdict."""
        place = self.place(prediction)
        place.mkdir(parents=True, exist_ok=True)
        for name in ("outcome.json", "report.json", "test_output.txt"):
            with contextlib.suppress(FileNotFoundError):
                (place / name).unlink()
        self.journal.write("grading", instance_id=prediction.instance_id, key=key)
        return place

    def finish(self, prediction: Prediction, graded: Graded) -> None:
        """Durable when it returns. The official report first: an outcome never stands without it."""
        place = self.place(prediction)
        place.mkdir(parents=True, exist_ok=True)
        if graded.report:
            text = json.dumps({graded.instance_id: graded.report}, indent=4)
            write_atomically(place / "report.json", text.encode())
        write_atomically(place / "outcome.json", json.dumps(graded.to_dict(), indent=1).encode())
        self.journal.write("graded", instance_id=graded.instance_id, key=graded.key, verdict=str(graded.verdict))

    def write_json(self, name: str, value: Mapping[str, Any]) -> Path:
        write_atomically(self.path / name, (json.dumps(value, indent=2) + "\n").encode())
        return self.path / name
