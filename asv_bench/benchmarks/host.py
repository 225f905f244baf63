"""What the host pays, on any machine: bookkeeping, block tables, a step's overhead, start-up."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.subjects.engine_parts import engine_part
from asv_bench.workloads.named import Workload

from .engine_runs import (
    CPU_MODEL,
    GPU_MODEL,
    MODELS,
    PROMPT_IDS,
    RUNS_ON_CPU,
    least_disturbed,
    require_model_here,
    steady_step_s,
)
from .guard import check_identity
from .sharing import Samples, SharesRuns, one_sample, shared_figure, tracked

if TYPE_CHECKING:
    from engine import KVBlockManager

BLOCK_SIZE = 64
CYCLES = 12
BATCHES = [8, 64, 256]
SMALL_BLOCK = 16


class AppendBookkeeping:
    """Finding the place of one new token for each of `batch` sequences.

    A reading spans as many appends as a block has tokens, so that each holds one block boundary.
    """

    params = (["one_by_one", "batch", "array"], BATCHES)
    param_names: ClassVar = ["way", "batch"]
    timeout = 120.0

    def setup(self, way: str, batch: int) -> None:
        check_identity()
        blocks = engine_part("KVBlockManager")((CYCLES + 3) * batch, BLOCK_SIZE)
        self._append = _way_to_append(blocks, way, batch)

    @tracked()
    def track_append(self, way: str, batch: int) -> Samples:
        """Seconds for the whole batch, per token of each sequence."""
        cycles = []
        for _ in range(CYCLES + 1):
            started = time.perf_counter()
            for _ in range(BLOCK_SIZE):
                self._append()
            cycles.append((time.perf_counter() - started) / BLOCK_SIZE)
        check_identity()
        return one_sample(statistics.median(cycles[1:]))


class BlockMetadata:
    """Giving blocks to sequences, sharing them and taking them back: reference counts."""

    params = (BATCHES,)
    param_names: ClassVar = ["batch"]
    timeout = 120.0

    def setup(self, batch: int) -> None:
        check_identity()
        self._blocks = engine_part("KVBlockManager")(8 * batch, BLOCK_SIZE)

    @tracked()
    def track_hold_and_release(self, batch: int) -> Samples:
        """Seconds per sequence of 8 blocks: allocate, share with a second holder, free twice."""
        blocks = self._blocks
        readings = []
        for _ in range(CYCLES + 1):
            started = time.perf_counter()
            held = [blocks.allocate_blocks(8) for _ in range(batch)]
            for block_ids in held:
                blocks.incref_blocks(block_ids)
            for block_ids in held:
                blocks.free_blocks(block_ids)
            for block_ids in held:
                blocks.free_blocks(block_ids)
            readings.append((time.perf_counter() - started) / batch)
        check_identity()
        return one_sample(statistics.median(readings[1:]))


class BlockTables:
    """The list of blocks of each sequence: building it for a prompt, and unsharing its end."""

    params = (BATCHES,)
    param_names: ClassVar = ["batch"]
    timeout = 120.0

    def setup(self, batch: int) -> None:
        check_identity()
        manager = engine_part("KVBlockManager")
        if not hasattr(manager, "extend"):
            raise SkipNotImplemented("this commit does not extend a block table by many tokens")
        self._blocks = manager(8 * batch, BLOCK_SIZE)

    @tracked()
    def track_build(self, batch: int) -> Samples:
        """Seconds per sequence: the table of a prompt that ends within its 8th block."""
        readings = []
        for _ in range(CYCLES + 1):
            started = time.perf_counter()
            tables = self._tables(batch, 8 * BLOCK_SIZE - 1)
            readings.append((time.perf_counter() - started) / batch)
            self._free(tables)
        check_identity()
        return one_sample(statistics.median(readings[1:]))

    @tracked()
    def track_copy_on_write(self, batch: int) -> Samples:
        """Seconds per sequence: one token more where every sequence's last block is shared."""
        readings = []
        for _ in range(CYCLES + 1):
            tables = self._tables(batch, BLOCK_SIZE // 2)
            others = [list(block_ids) for block_ids in tables]
            for block_ids in others:
                self._blocks.incref_blocks(block_ids)
            started = time.perf_counter()
            appended = self._blocks.append_token_batch(tables)
            readings.append((time.perf_counter() - started) / batch)
            if len(appended.copies) != batch:
                raise RuntimeError(f"{len(appended.copies)} of {batch} shared blocks were copied.")
            self._free(tables + others)
        check_identity()
        return one_sample(statistics.median(readings[1:]))

    def _tables(self, batch: int, tokens: int) -> list[list[int]]:
        tables: list[list[int]] = [[] for _ in range(batch)]
        for block_ids in tables:
            self._blocks.extend(block_ids, tokens)
        return tables

    def _free(self, tables: list[list[int]]) -> None:
        for block_ids in tables:
            self._blocks.free_blocks(block_ids)


class EngineStep(SharesRuns):
    """Steps of an engine whose model is so small that the host's work counts, on the CPU."""

    params = ([8, 64],)
    param_names: ClassVar = ["batch"]

    def setup(self, batch: int) -> None:
        check_identity()

    @tracked()
    def track_step_time(self, batch: int) -> Samples:
        """Seconds of one step in which every sequence decodes."""
        return _step_figure("step_time", batch)

    @tracked()
    def track_boundary_step(self, batch: int) -> Samples:
        """Seconds of a step in which every sequence begins a block and its block table grows."""
        return _step_figure("boundary_step", batch)


class HostShare(SharesRuns):
    """The host's own work in a decode step on the GPU, which must hide behind the device's.

    As on a CPU the least disturbed of several runs is kept. On one host, with nothing else on its
    virtual cores, a step of 256 rows took 78 to 91 us in columns in some runs and 157 in others,
    all its parts alike, and after sleeps one of 8 rows 195 rather than 62.
    """

    params = (MODELS, BATCHES)
    param_names: ClassVar = ["model", "batch"]

    def setup(self, model: str, batch: int) -> None:
        check_identity()
        require_model_here(model)
        if model == CPU_MODEL:
            raise SkipNotImplemented("on a CPU host and device are one")

    @tracked()
    def track_host_time(self, model: str, batch: int) -> Samples:
        """Seconds of a step in which the host does not wait for the device."""
        return _host_figure("host_time", model, batch)

    @tracked()
    def track_host_time_in_columns(self, model: str, batch: int) -> Samples:
        """The same where tokens are taken in columns; commits that have events only skip it."""
        return _host_figure("host_time_in_columns", model, batch)

    @tracked()
    def track_step_time(self, model: str, batch: int) -> Samples:
        """Seconds of a step in which every sequence decodes."""
        return _host_figure("step_time", model, batch)


class Startup(SharesRuns):
    """What every measured process pays before its first token."""

    timeout = 300.0

    def setup(self) -> None:
        check_identity()

    @tracked()
    def track_import(self) -> Samples:
        """Seconds that importing the engine adds to importing torch."""
        return shared_figure("startup", "import", _start_engine)

    @tracked()
    def track_first_token(self) -> Samples:
        """Seconds from the imported engine to the first token of a gpt2-tiny on the CPU."""
        return shared_figure("startup", "first_token", _start_engine)


class GpuStartup(SharesRuns):
    """What a process pays on a GPU before its first token, beyond importing the engine.

    Each figure is of a process of its own, with a cache of compiled kernels of its own.
    """

    timeout = 300.0

    def setup(self) -> None:
        check_identity()
        require_model_here(GPU_MODEL)

    @tracked()
    def track_cold(self) -> Samples:
        """Seconds from the imported engine to the first token where no kernel is compiled yet."""
        return shared_figure("gpu-startup", "cold", _start_engine_on_gpu)

    @tracked()
    def track_warm(self) -> Samples:
        """The same once an engine like it has run before."""
        return shared_figure("gpu-startup", "warm", _start_engine_on_gpu)


def _way_to_append(blocks: KVBlockManager, way: str, batch: int) -> Callable[[], object]:
    if way == "array":
        last_blocks = np.full(batch, -1, np.int32)

        def append_array() -> None:
            np.copyto(last_blocks, blocks.append_to_last_blocks(last_blocks).block_index)

        return append_array
    sequences: list[list[int]] = [[] for _ in range(batch)]
    if way == "batch":
        return lambda: blocks.append_token_batch(sequences)

    def append_one_by_one() -> None:
        for sequence in sequences:
            blocks.append_token(sequence)

    return append_one_by_one


def _step_figure(figure: str, batch: int) -> Samples:
    return shared_figure(f"engine-step-{batch}", figure, lambda: _measure_steps(batch))


def _measure_steps(batch: int) -> dict[str, float]:
    from asv_bench.workloads.drive import run_workload
    from engine import Engine

    # Equal prompts: all sequences reach the end of a block in the same step.
    workload = Workload(
        name="engine-step",
        num_requests=batch,
        batch_size=batch,
        prompt_lengths=(1,),
        new_tokens=10 * SMALL_BLOCK,
    )
    blocks_each = workload.max_length // SMALL_BLOCK + 2
    config = workload.engine_config(
        f"random:{CPU_MODEL}",
        device="cpu",
        dtype="float32",
        block_size=SMALL_BLOCK,
        num_kv_blocks=batch * blocks_each,
    )
    engine = Engine(config)
    run_workload(engine, replace(workload, new_tokens=SMALL_BLOCK), PROMPT_IDS[CPU_MODEL])
    sample = least_disturbed(engine, workload, PROMPT_IDS[CPU_MODEL], runs=RUNS_ON_CPU)
    gaps = sample.traces[0].itl_s
    # Tokens may be seen some steps after they were launched, so which step of the cycle begins the
    # blocks is not known from outside; it is the dearest one.
    by_phase = [float(np.median(gaps[phase::SMALL_BLOCK])) for phase in range(SMALL_BLOCK)]
    return {"step_time": steady_step_s(sample), "boundary_step": max(by_phase)}


def _host_figure(figure: str, model: str, batch: int) -> Samples:
    return shared_figure(f"host-share-{batch}", figure, lambda: _measure_host(model, batch))


def _measure_host(model: str, batch: int) -> dict[str, float]:
    from asv_bench.workloads.drive import run_workload
    from asv_bench.workloads.host_time import BatchTimedEngine, HostTimedEngine, counted_waits
    from engine import Engine

    workload = Workload(
        name="host-share",
        num_requests=batch,
        batch_size=batch,
        prompt_lengths=(1,),
        new_tokens=256,
    )
    config = workload.engine_config(f"random:{model}", device="cuda", dtype="float16")
    engine = Engine(config)
    run_workload(engine, replace(workload, new_tokens=32), PROMPT_IDS[model])
    ways: dict[str, type[HostTimedEngine]] = {"host_time": HostTimedEngine}
    if hasattr(engine, "step_batches"):
        ways["host_time_in_columns"] = BatchTimedEngine
    readings: defaultdict[str, list[float]] = defaultdict(list)
    with counted_waits() as clock:
        # In turn, so that a disturbance that lasts falls on both.
        for _ in range(RUNS_ON_CPU):
            for figure, way in ways.items():
                timed = way(engine, clock)
                sample = run_workload(timed, workload, PROMPT_IDS[model])
                readings[figure].append(statistics.median(timed.full_steps_s(batch)))
                readings["step_time"].append(steady_step_s(sample))
    return {figure: min(seconds) for figure, seconds in readings.items()}


_STARTED_ON_GPU = """
import time

import torch

import engine

torch.zeros(1, device="cuda")
begun = time.perf_counter()
started = engine.Engine(engine.EngineConfig(model="random:{model}", device="cuda"))
started.generate([[1]], engine.SamplingParams(max_new_tokens=1, ignore_eos=True))
print(time.perf_counter() - begun)
"""


def _start_engine_on_gpu() -> dict[str, float]:
    """Seconds of two processes one after the other, which share an empty cache of kernels."""
    figures = {}
    with TemporaryDirectory() as cache:
        # The engine is that of this process.
        path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
        for name in ("cold", "warm"):
            done = subprocess.run(
                [sys.executable, "-P", "-c", _STARTED_ON_GPU.format(model=GPU_MODEL)],
                env={**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": cache},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            figures[name] = float(done.stdout)
    return figures


def _start_engine() -> dict[str, float]:
    import torch  # noqa: F401  (its own import is not the engine's cost)

    before_import = time.perf_counter()
    import engine

    before_engine = time.perf_counter()
    config = engine.EngineConfig(model=f"random:{CPU_MODEL}", device="cpu", max_batch_size=1)
    started = engine.Engine(config)
    params = engine.SamplingParams(max_new_tokens=1, ignore_eos=True)
    started.generate([[1]], params)
    first_token = time.perf_counter()
    return {"import": before_engine - before_import, "first_token": first_token - before_engine}
