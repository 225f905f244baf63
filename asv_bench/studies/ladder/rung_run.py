"""One rung in this process: its engine built, warmed up and run, and the figures of the runs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from asv_bench.measure.turns import own_turns
from asv_bench.studies.ladder.claims import SECONDS_PER_TOKEN
from asv_bench.studies.ladder.engine_in_turns import EngineInTurns
from asv_bench.studies.ladder.rungs import Rung
from asv_bench.workloads.drive import RunSample, run_workload
from asv_bench.workloads.named import BLOCK_SIZE, WORKLOADS, Workload

STEP_TIME = "step_time"
WATERFALL_WORKLOAD = "scheduler"
"""What every rung is measured on, and its steps are counted on."""

WARMUP_TOKENS = BLOCK_SIZE + 16
"""New tokens of the run before the measured ones: more than a block, so that a boundary is in."""

MEASURED_SECONDS = 4.0
MOST_REPEATS = 5
RUNS_IN_TURNS = 2
"""At least: their mean differs less by chance from process to process than one."""


@dataclass(frozen=True, slots=True)
class RungFigures:
    """What one process measured of one rung on one workload.

    Attributes
    ----------
    figures
        Seconds by name, of the run whose steps were the shortest: what else runs on the machine
        only ever adds time. In turns with another process, the medians over the runs.
    runs
        The same for each run.
    digests
        One hash for each request, of the token ids that it generated.
    turns
        For each run, seconds a token of its turns; none where it took no turns.
    """

    figures: dict[str, float]
    runs: list[dict[str, float]]
    digests: list[str]
    turns: list[list[float]]

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON-ready values."""
        return asdict(self)


def workload_of(name: str, *, quick: bool) -> Workload:
    """The named workload, or a tenth of it: enough for rungs to differ, in a second."""
    workload = WORKLOADS[name]
    if not quick:
        return workload
    return replace(
        workload,
        name=f"{name}-quick",
        num_requests=min(workload.num_requests, 32),
        batch_size=min(workload.batch_size, 32),
        new_tokens=WARMUP_TOKENS,
    )


def measure_rung(
    rung: Rung, workload: Workload, *, model: str, device: str, dtype: str, repeats: int | None
) -> RungFigures:
    """Run a workload on a rung, after a shorter run that is not measured, in this process's turns.

    Parameters
    ----------
    rung, workload
        What to run.
    model, device, dtype
        As for the engine.
    repeats
        Measured runs; None: as many as take about four seconds.

    Raises
    ------
    Refused
        If the rung does not run there.
    MeasurementFailed
        If a request did not generate what the workload asks for.
    """
    from asv_bench.studies.ladder.rung_build import build_rung

    engine: Any = build_rung(rung, workload.engine_config(model, device=device, dtype=dtype))
    vocab_size = engine.model_config.vocab_size
    warmup = replace(
        workload,
        num_requests=workload.resident,
        new_tokens=min(workload.new_tokens, WARMUP_TOKENS),
    )
    run_workload(engine, warmup, vocab_size, mode="online")
    # Passed on once before any measures: both rungs are built then.
    turns = own_turns()
    turns.wait()
    turns.pass_on()
    turns.wait()
    turned = EngineInTurns(engine, turns)

    def run() -> RunSample:
        turned.begin_run()
        return run_workload(turned, workload, vocab_size, mode="online")

    samples = [run()]
    wanted = repeats_for(samples[0].wall_s) if repeats is None else repeats
    if turns.are_shared:
        wanted = max(wanted, RUNS_IN_TURNS)
    while len(samples) < wanted:
        samples.append(run())
    turns.pass_on()
    engine.check_integrity()
    of_turns = [turned.take_waits_out(sample) for sample in samples]
    runs = [run_figures(sample) for sample in samples]
    figures = min(runs, key=lambda run: run[STEP_TIME])
    if turns.are_shared:
        figures = {name: float(np.median([run[name] for run in runs])) for name in figures}
    return RungFigures(figures, runs, request_digests(samples[0]), of_turns)


def run_figures(sample: RunSample) -> dict[str, float]:
    """The figures of one run, in seconds; see `claims.FIGURES` for all but the step's."""
    tpot, itl = sample.of_requests("tpot"), sample.of_requests("itl")
    return {
        STEP_TIME: 1e-3 * sample.decode_step_ms,
        SECONDS_PER_TOKEN: sample.decode_s / sample.generated_tokens,
        "tpot_p50": float(np.median(tpot)),
        "tpot_mean": float(np.mean(tpot)),
        "tpot_p99": float(np.percentile(tpot, 99)),
        "itl_p99": float(np.percentile(itl, 99)),
    }


def repeats_for(seconds: float) -> int:
    """Measured runs for runs of so many seconds, so that one of them is little disturbed."""
    return min(MOST_REPEATS, math.ceil(MEASURED_SECONDS / seconds))


def request_digests(sample: RunSample) -> list[str]:
    """A short hash for each request's tokens."""
    return [digest_of(trace.token_ids) for trace in sample.traces]


def digest_of(token_ids: Sequence[int]) -> str:
    """A short hash of token ids."""
    return hashlib.sha256(np.asarray(token_ids, np.int64).tobytes()).hexdigest()[:12]
