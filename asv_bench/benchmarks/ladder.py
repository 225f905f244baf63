"""The ladder's rungs: each earlier host path on the model and kernels of the commit."""

from __future__ import annotations

from importlib import import_module
from typing import ClassVar

from asv_runner.benchmarks.mark import SkipNotImplemented

from .engine_runs import GPU_MODEL, MODELS, require_model_here
from .sharing import Figures, Run, SharesRuns, shared

RUNGS = [
    "0-rebuild",
    "1-row-cache",
    "2-batched-append",
    "3-triton-append",
    "4-identity-append",
    "5-mutable-info",
    "6-array-metadata",
    "7-shared-table",
    "8-graph",
    "9-fused",
    "10-overlap",
]
"""By name, since `asv_bench.studies.ladder` imports the engine and asv's discovery must not."""


class Ladder(SharesRuns):
    """One rung on a tenth of the workload `scheduler`."""

    params = (RUNGS, MODELS)
    param_names: ClassVar = ["rung", "model"]

    def prepare(self, rung: str, model: str) -> None:
        require_model_here(model)
        require_rung_here(rung, model)

    def run(self, rung: str, model: str) -> Run:
        return f"ladder-{rung}-{model}", lambda: _measure(rung, model)

    track_step_time = shared("step_time", "Seconds of one decode step.")
    track_decode_seconds_per_token = shared(
        "decode_seconds_per_token", "Decode time over the token ids that were generated."
    )


def require_rung_here(label: str, model: str) -> None:
    """Skip a rung that this machine cannot run, or whose parts the commit does not have.

    Raises
    ------
    SkipNotImplemented
        Where there is nothing to measure.
    """
    from asv_bench.studies.ladder.rungs import rung_named
    from engine import EngineConfig

    try:
        import_module("asv_bench.studies.ladder.rung_build")
    except ImportError as error:
        raise SkipNotImplemented(f"this commit lacks what the ladder stands on: {error}") from None
    rung = rung_named(label)
    if not rung.runs_on(_device(model)):
        raise SkipNotImplemented(f"rung {label} needs a GPU")
    missing = rung.options.keys() - EngineConfig.__dataclass_fields__.keys()
    if missing:
        raise SkipNotImplemented(f"this commit's engine has no option {', '.join(missing)}")


def _measure(rung: str, model: str) -> Figures:
    from asv_bench.studies.ladder.rung_run import WATERFALL_WORKLOAD, measure_rung, workload_of
    from asv_bench.studies.ladder.rungs import rung_named

    device = _device(model)
    measured = measure_rung(
        rung_named(rung),
        workload_of(WATERFALL_WORKLOAD, quick=True),
        model=f"random:{model}",
        device=device,
        dtype="float32" if device == "cpu" else "float16",
        repeats=3,
    )
    return measured.figures


def _device(model: str) -> str:
    return "cuda" if model == GPU_MODEL else "cpu"
