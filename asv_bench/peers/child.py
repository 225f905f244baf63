"""The process that measures one peer on one workload.

Run as `python -m asv_bench.peers.child '{"workload": ...}' RECORD`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asv_bench.errors import BenchError, MeasurementFailed
from asv_bench.memory.bandwidth import read_bandwidth
from asv_bench.memory.floor import fraction_of_floor
from asv_bench.output.record import write_json
from asv_bench.peers.model import load_peer_model
from asv_bench.peers.runs import STATIC, run_peer
from asv_bench.process.gpu import gpu_state
from asv_bench.workloads.drive import run_workload
from asv_bench.workloads.named import Workload, WorkloadTask
from asv_bench.workloads.run_sample import RunSample, latencies_ms

REPEATS = 3
WARMUPS = 2
"""Runs before the measured ones: the first compiles, the second records what it replays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTask(WorkloadTask):
    """What to measure: a peer of `PEERS` on a workload, and the number of runs."""

    peer: str
    repeats: int = REPEATS


def measure_peer(task: PeerTask) -> dict[str, Any]:
    """Warm up, run, and return figures and samples as JSON-ready values.

    In float32 the peer must generate the same token ids as the engine.
    """
    workload = task.shape()
    loaded = load_peer_model(task.model, device=task.device, dtype=task.dtype)
    prompts = workload.prompts(loaded.shape.vocab_size)
    before = gpu_state()
    started = time.perf_counter()
    for _ in range(WARMUPS):
        run_peer(loaded.model, workload, prompts, task.peer, streamed=False)
    warm_up_s = time.perf_counter() - started
    runs = [
        run_peer(loaded.model, workload, prompts, task.peer, streamed=False)
        for _ in range(task.repeats)
    ]
    # The compiler treats streaming as other code, so it needs its own warm-up run.
    run_peer(loaded.model, workload, prompts, task.peer, streamed=True)
    streamed = run_peer(loaded.model, workload, prompts, task.peer, streamed=True)
    after = gpu_state()
    # The engine's floor: the same bytes at the bandwidth that this process measures.
    floor = workload.floor_ms(loaded.shape, loaded.dtype, read_bandwidth(task.device))
    if loaded.dtype == "float32":
        require_engine_tokens(task, workload, streamed)
    return {
        "task": asdict(task),
        "transformers": loaded.transformers,
        "dtype": loaded.dtype,
        "compiled": task.peer == STATIC and loaded.model.device.type == "cuda",
        "warm_up_s": warm_up_s,
        "gpu_state": {
            "before": None if before is None else before.to_json(),
            "after": None if after is None else after.to_json(),
        },
        "figures": {
            "workload": workload.name,
            "engine": task.peer,
            "batch": workload.batch_size,
            **run_figures(workload, runs, streamed, floor),
        },
        "samples": [sample.to_json() for sample in (*runs, streamed)],
    }


def run_figures(
    workload: Workload, runs: list[RunSample], streamed: RunSample, floor_ms: float | None
) -> dict[str, float | None]:
    """Figures of a headline row: throughput from plain runs, latencies from a streamed one."""
    latencies = latencies_ms([streamed])
    step_ms = statistics.median(sample.step_ms(workload) for sample in runs)
    return {
        "step_ms": step_ms,
        "tokens_per_s": statistics.median(sample.total_tokens_per_s for sample in runs),
        "ttft_ms": latencies["ttft_ms"].p50,
        "tpot_ms": latencies["tpot_ms"].p50,
        "itl_p99_ms": latencies["itl_ms"].p99,
        "floor_ms": floor_ms,
        "fraction_of_floor": None if floor_ms is None else fraction_of_floor(floor_ms, step_ms),
    }


def require_engine_tokens(task: PeerTask, workload: Workload, sample: RunSample) -> None:
    """Raise MeasurementFailed unless the engine generates the same ids, one for one."""
    from engine import Engine

    config = workload.engine_config(task.model, device=task.device, dtype="float32")
    engine = Engine(config)
    ours = run_workload(engine, workload, engine.model_config.vocab_size)
    for index, (mine, theirs) in enumerate(zip(ours.traces, sample.traces, strict=True)):
        if mine.token_ids != theirs.token_ids:
            raise MeasurementFailed(
                f"in float32 {task.peer} and the engine generate different tokens for request "
                f"{index} of {workload.name}: they do not run the same model."
            )


def main(arguments: list[str]) -> None:
    """Measure the task given as JSON and write its record; failures are sentences."""
    fields: dict[str, Any] = json.loads(arguments[0])
    try:
        outcome = measure_peer(PeerTask(**fields))
    except BenchError as error:
        sys.exit(f"error: {error}")
    write_json(Path(arguments[1]), outcome)


if __name__ == "__main__":
    main(sys.argv[1:])
