"""What `tune` times on a GPU: captured steps that were checked, and a device that stays usable."""

from __future__ import annotations

import gc

import pytest
import torch

from asv_bench.lab.tune.candidates import Rejected, StepPoint
from asv_bench.lab.tune.step_bench import StepBench
from engine.models.registry import RANDOM_CONFIGS
from kernels.tiles.table import committed_table
from kernels.tiles.tile import LinearTile

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: run `nox -s kernels` on one"
)

POINT = StepPoint(8, 100)


@pytest.fixture(scope="module")
def bench() -> StepBench:
    return StepBench(RANDOM_CONFIGS["gpt2"], torch.device("cuda"), torch.float16)


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_the_committed_table_is_right_and_takes_time(bench: StepBench, rows: int) -> None:
    timer = bench.prepare(committed_table(), StepPoint(rows, 100))
    times = [timer() for _ in range(3)]
    assert all(50 < one < 5000 for one in times)


def test_a_candidate_that_does_not_fit_is_rejected_and_the_next_one_is_not(
    bench: StepBench,
) -> None:
    table = committed_table()
    huge = LinearTile(128, 256, 256, stages=6, warps=8)
    with pytest.raises(Rejected):
        bench.prepare(table.with_tile(table.place(POINT.rows), "feed_forward_in", huge), POINT)
    assert bench.prepare(committed_table(), POINT)() > 0


def test_other_tiles_are_timed_as_such(bench: StepBench) -> None:
    """A head of 16 columns a program is so much slower that no noise hides it."""
    table = committed_table()
    slow = table.with_tile(table.place(POINT.rows), "head", LinearTile(16, 16, 32, stages=2))
    good = bench.prepare(committed_table(), POINT)
    assert bench.prepare(slow, POINT)() > 1.05 * good()


def test_a_timer_keeps_the_scratch_that_its_graph_writes(bench: StepBench) -> None:
    timer = bench.prepare(committed_table(), POINT)
    # What nobody holds any more goes back to the device, where a replay must not write.
    gc.collect()
    torch.cuda.empty_cache()
    assert timer() > 0
    torch.cuda.synchronize()
