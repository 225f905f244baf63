"""Costs of the host: bookkeeping, block tables, a step's overhead, start-up."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.workloads.named import Workload

from . import sharing
from .sharing import CommitBenchmark, Figures, SharesRuns, median_s, shared, tracked

if TYPE_CHECKING:
    from asv_bench.workloads.drive import RunSample
    from engine import TokenEvent

BLOCK_SIZE = 64
CYCLES = 12
BATCHES = [8, 64, 256]
SMALL_BLOCK = 16


class AppendBookkeeping(CommitBenchmark, way=["one_by_one", "batch", "array"], batch=BATCHES):
    """Finding the block and slot of one new token for each of `batch` sequences.

    A reading spans as many appends as a block has tokens, so that each holds one block boundary.
    """

    def prepare(self, way: str, batch: int) -> None:
        blocks = self.blocks = sharing.block_manager()((CYCLES + 3) * batch, BLOCK_SIZE)
        last_blocks = np.full(batch, -1, np.int32)
        sequences: list[list[int]] = [[] for _ in range(batch)]

        def one_by_one() -> None:
            for sequence in sequences:
                blocks.append_token(sequence)

        def array() -> None:
            np.copyto(last_blocks, blocks.append_to_last_blocks(last_blocks).block_index)

        ways: dict[str, Callable[[], object]] = {
            "one_by_one": one_by_one,
            "batch": lambda: blocks.append_token_batch(sequences),
            "array": array,
        }
        self.append: Callable[[], object] = ways[way]

    @tracked()
    def track_append(self, way: str, batch: int) -> float:
        """Seconds for the whole batch, per token of each sequence."""

        def fill_a_block() -> None:
            for _ in range(BLOCK_SIZE):
                self.append()

        return median_s(fill_a_block, CYCLES) / BLOCK_SIZE


class BlockMetadata(CommitBenchmark, batch=BATCHES):
    """Allocating, sharing and freeing blocks: reference counts."""

    def prepare(self, batch: int) -> None:
        self._blocks = sharing.block_manager()(8 * batch, BLOCK_SIZE)

    @tracked()
    def track_hold_and_release(self, batch: int) -> float:
        """Seconds per sequence of 8 blocks: allocate, share with a second holder, free twice."""
        blocks = self._blocks

        def hold_and_release() -> None:
            held = [blocks.allocate_blocks(8) for _ in range(batch)]
            for change in (blocks.incref_blocks, blocks.free_blocks, blocks.free_blocks):
                for block_ids in held:
                    change(block_ids)

        return median_s(hold_and_release, CYCLES) / batch


class BlockTables(CommitBenchmark, batch=BATCHES):
    """Block tables: building one for a prompt, and copy-on-write of its last block."""

    def prepare(self, batch: int) -> None:
        manager = sharing.block_manager()
        if not hasattr(manager, "extend"):
            raise SkipNotImplemented("this commit does not extend a block table by many tokens")
        self._blocks = manager(8 * batch, BLOCK_SIZE)
        self._tables: list[list[int]] = []

    @tracked()
    def track_build(self, batch: int) -> float:
        """Seconds per sequence: the table of a prompt that ends within its 8th block."""
        build = partial(self._build, batch, 8 * BLOCK_SIZE - 1)
        return median_s(build, CYCLES, before=self._free) / batch

    @tracked()
    def track_copy_on_write(self, batch: int) -> float:
        """Seconds per sequence: one token more where every sequence's last block is shared."""

        def share() -> None:
            self._free()
            self._build(batch, BLOCK_SIZE // 2)
            self._tables += [list(block_ids) for block_ids in self._tables]
            for block_ids in self._tables[batch:]:
                self._blocks.incref_blocks(block_ids)

        def append() -> None:
            copies = self._blocks.append_token_batch(self._tables[:batch]).copies
            if len(copies) != batch:
                raise RuntimeError(f"{len(copies)} of {batch} shared blocks were copied.")

        return median_s(append, CYCLES, before=share) / batch

    def _build(self, batch: int, tokens: int) -> None:
        self._tables = [[] for _ in range(batch)]
        for block_ids in self._tables:
            self._blocks.extend(block_ids, tokens)

    def _free(self) -> None:
        for block_ids in self._tables:
            self._blocks.free_blocks(block_ids)


class EngineStep(SharesRuns, batch=[8, 64]):
    """Steps of an engine whose model is so small that the host's work counts, on the CPU."""

    def run(self, batch: int) -> Figures:
        # Equal prompts: all sequences reach the end of a block in the same step.
        workload = Workload("engine-step", batch, batch, (1,), 10 * SMALL_BLOCK)
        sizes = {"warmup_tokens": SMALL_BLOCK, "block_size": SMALL_BLOCK}
        return sharing.windowed(workload, sharing.CPU_MODEL, _step_figures, **sizes)

    track_step_time = shared("step_time", "Seconds of one step in which every sequence decodes.")
    track_boundary_step = shared(
        "boundary_step",
        "Seconds of a step in which every sequence begins a block and its block table grows.",
    )


class HostShare(sharing.OfModel, model=sharing.MODELS, batch=BATCHES):
    """The host's own work in a decode step on the GPU, which must hide behind the device's.

    The least disturbed of several runs is kept, as on a CPU.
    """

    is_for_cpu = False

    def run(self, model: str, batch: int) -> Figures:
        from asv_bench.workloads.drive import run_workload

        workload = Workload("host-share", batch, batch, (1,), 256)
        engine = sharing.warm_engine(workload, model, 32, device="cuda", dtype="float16")
        ways = ["host_time"]
        if hasattr(engine, "step_batches"):
            ways.append("host_time_in_columns")
        readings: defaultdict[str, list[float]] = defaultdict(list)
        # In turn, so that a lasting disturbance affects both.
        for way in ways * sharing.RUNS_ON_CPU:
            with host_timed(engine, batch, in_columns=way != "host_time") as steps:
                sample = run_workload(engine, workload, sharing.PROMPT_IDS[model])
            readings[way].append(statistics.median(steps))
            readings["step_time"].append(sharing.steady_step_s(sample))
        return {figure: min(seconds) for figure, seconds in readings.items()}

    track_host_time = shared(
        "host_time", "Seconds of a step in which the host does not wait for the device."
    )
    track_host_time_in_columns = shared(
        "host_time_in_columns",
        "The same where tokens are taken in columns; commits that have events only skip it.",
    )
    track_step_time = shared("step_time", "Seconds of a step in which every sequence decodes.")


class Startup(SharesRuns):
    """What every measured process pays before its first token."""

    def run(self) -> Figures:
        """In a process with the engine of this one, which may have been forked from one that had
        imported much of what the engine needs."""
        code = f"MODEL = {f'random:{sharing.CPU_MODEL}'!r}\n{_START}"
        path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
        said = subprocess.check_output(
            [sys.executable, "-P", "-c", code], env={**os.environ, "PYTHONPATH": path}, text=True
        )
        return dict(zip(("import", "first_token"), map(float, said.split()), strict=True))

    track_import = shared("import", "Seconds that importing the engine adds to importing torch.")
    track_first_token = shared(
        "first_token", "Seconds from the imported engine to the first token of a gpt2-tiny."
    )


def _step_figures(sample: RunSample) -> dict[str, float]:
    gaps = sample.traces[0].itl_s
    # Tokens may be seen some steps after their launch, so the step that begins blocks is not known
    # from outside; it is the slowest of the cycle.
    by_phase = [float(np.median(gaps[phase::SMALL_BLOCK])) for phase in range(SMALL_BLOCK)]
    return {"step_time": sharing.steady_step_s(sample), "boundary_step": max(by_phase)}


@contextmanager
def host_timed(engine: Any, batch: int, *, in_columns: bool = False) -> Iterator[list[float]]:
    """Seconds that the host did not wait, in steps that deliver a token for each of `batch` rows.

    Waits are those for an event, a stream or the device. `in_columns` takes tokens by
    `step_batches`, which engines of older commits lack; converting them to events is not timed.
    """
    from unittest.mock import patch

    import torch

    take = engine.step_batches if in_columns else engine.step
    steps: list[float] = []
    waited = 0.0

    def counted(wait: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            nonlocal waited
            started = time.perf_counter()
            try:
                return wait(*args, **kwargs)
            finally:
                waited += time.perf_counter() - started

        return timed

    def step() -> Sequence[TokenEvent]:
        before, started = waited, time.perf_counter()
        taken = take()
        elapsed = time.perf_counter() - started - (waited - before)
        events = [event for batch in taken for event in batch.events()] if in_columns else taken
        if len(events) == batch:
            steps.append(elapsed)
        return events

    with ExitStack() as stack:
        for owner in (torch.cuda.Event, torch.cuda.Stream, torch.cuda):
            stack.enter_context(patch.object(owner, "synchronize", counted(owner.synchronize)))
        stack.enter_context(patch.object(engine, "step", step))
        yield steps


_START = """
import time

import torch

before_import = time.perf_counter()
import engine

before_engine = time.perf_counter()
started = engine.Engine(engine.EngineConfig(model=MODEL, device="cpu", max_batch_size=1))
started.generate([[1]], engine.SamplingParams(max_new_tokens=1, ignore_eos=True))
print(before_engine - before_import, time.perf_counter() - before_engine)
"""
