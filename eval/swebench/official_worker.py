"""The child process in which the official package runs: JSON lines in, JSON lines out. Started by `official.Harness`.

Run as a plain file, so that nothing of ours is imported. Requests: {"op": "script", "row"} gives the eval script that
the package would run; {"op": "report", "row", "prediction", "log"} gives its report and the outcome of every test in
the log; {"op": "classify", "log"} what the package makes of a log without success. What the package prints goes to
standard error.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from typing import Any


def load() -> tuple[Any, Any]:
    """The package's grading and utils modules. Its `harness/__init__` and `utils` pull in cloud clients and data set
    loaders (4 to 7 s) that grading never calls: they are stepped around; should that fail, everything is imported."""
    try:
        return _load_little()
    except Exception as error:
        print(f"importing the whole package, since the short way failed: {error!r}", file=sys.stderr)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("swebench", "datasets")]:
            del sys.modules[name]
        return importlib.import_module("swebench.harness.grading"), importlib.import_module("swebench.harness.utils")


def _load_little() -> tuple[Any, Any]:
    spec = importlib.util.find_spec("swebench")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("no package swebench")
    harness = types.ModuleType("swebench.harness")
    harness.__path__ = [f"{spec.submodule_search_locations[0]}/harness"]
    sys.modules["swebench.harness"] = harness
    if "datasets" not in sys.modules:

        def refuse(*_: Any, **__: Any) -> Any:
            raise RuntimeError("grading loads no data sets")

        stand_in = types.ModuleType("datasets")
        stand_in.__getattr__ = lambda name: refuse  # type: ignore[method-assign]
        sys.modules["datasets"] = stand_in
    return importlib.import_module("swebench.harness.grading"), importlib.import_module("swebench.harness.utils")


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
