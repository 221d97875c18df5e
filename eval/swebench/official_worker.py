"""The child process in which the official package runs: JSON lines in, JSON lines out. Started by `official.Harness`.

Run as a plain file; of ours one file without imports is loaded. Requests: {"op": "script", "row"} gives the eval
script that the package would run; {"op": "report", "row", "prediction", "log"} gives its report and the outcome of
every test in the log; {"op": "classify", "log"} what the package makes of a log without success. What the package
prints goes to standard error.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

_MODULES = Path(__file__).resolve().parents[2] / "envs" / "swe" / "swebench_modules.py"


def load() -> tuple[Any, Any]:
    """The package's grading and utils modules, the short way."""
    spec = importlib.util.spec_from_file_location("swebench_modules", _MODULES)
    assert spec is not None
    assert spec.loader is not None
    modules = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(modules)
    grading, utils = modules.load("grading", "utils")
    return grading, utils


def answer(grading: Any, utils: Any, request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] == "classify":
        found = grading.classify_logs(request["log"])
        return {"reason": found[0], "tier": found[1]} if found else {"reason": "", "tier": ""}
    spec = utils.make_test_spec(request["row"])
    if request["op"] == "script":
        return {"script": spec.eval_script}
    report = grading.get_eval_report(
        test_spec=spec, prediction=request["prediction"], test_log_path=request["log"], include_tests_status=True
    )
    statuses, _ = grading.get_logs_eval(spec, request["log"])
    return {"report": report, "statuses": statuses}


def main() -> None:
    out = sys.stdout
    sys.stdout = sys.stderr
    grading, utils = load()
    for line in sys.stdin:
        try:
            reply = answer(grading, utils, json.loads(line))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
