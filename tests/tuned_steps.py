"""Steps to tune without a GPU: a table, its slots, and a bench whose times tests decide."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from asv_bench.lab.tune.candidates import Choice, StepPoint, Timer, slots_of
from engine.fused.weights import step_shapes
from engine.models.registry import RANDOM_CONFIGS
from kernels.tiles.table import ConfigTable, committed_table
from kernels.tiles.tile import LinearTile, RingTile

GPT2 = RANDOM_CONFIGS["gpt2"]
SHAPES = step_shapes(GPT2)
# The committed table with a few choices pinned, so that the tests outlive the next tuning.
_COMMITTED = committed_table()
TABLE = _COMMITTED.with_tile(
    _COMMITTED.place(64), "head", LinearTile(64, 384, 64, stages=4, tma=True)
).with_ring(0, RingTile(32, 8, 128, ((3.5, 6), (6.0, 4), (math.inf, 2))))
BUCKETS = [TABLE.buckets[place] for place in TABLE.places(SHAPES)]
"""Those of a GPT-2."""
SLOTS = slots_of(TABLE, GPT2.head_dim, SHAPES)
[HEAD] = [slot for slot in SLOTS if slot.role == "head" and slot.points[0].rows == 64]
RING = SLOTS[-1]


@dataclass
class FakeBench:
    """Steps that take what a function of the table and the point says, on a machine that drifts.

    `noise` is the deviation of a measurement and `luck` that of a capture, which all measurements
    of it share; the whole machine slows down by `drift` each one.
    """

    cost: Callable[[ConfigTable, StepPoint], float]
    noise: float = 0.0
    luck: float = 0.0
    drift: float = 0.0
    seed: int = 0
    prepared: list[tuple[ConfigTable, StepPoint]] = field(default_factory=list)
    measured: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def prepare(self, table: ConfigTable, point: StepPoint) -> Timer:
        self.prepared.append((table, point))
        cost = self.cost(table, point) * math.exp(self._random.gauss(0, self.luck))

        def timer() -> float:
            self.measured += 1
            slow = 1 + self.drift * self.measured
            return cost * slow * math.exp(self._random.gauss(0, self.noise))

        return timer


def head_cost(best: LinearTile, gain: float) -> Callable[[ConfigTable, StepPoint], float]:
    return lambda table, point: 300.0 * (1 - gain * (table.tiles(point.rows).head == best))


def head_tiles(count: int) -> list[Choice]:
    return [LinearTile(64, 128, 64, stages=stages) for stages in range(2, 2 + count)]


def optimum() -> tuple[Callable[[ConfigTable, StepPoint], float], LinearTile]:
    """A cost with its least two steps away from the committed head of 64 rows."""
    present = TABLE.tiles(64).head
    goal = replace(present, block_m=128, stages=2)

    def cost(table: ConfigTable, point: StepPoint) -> float:
        head = table.tiles(point.rows).head
        away = abs(math.log2(head.block_m / goal.block_m)) + abs(head.stages - goal.stages)
        return 300.0 + 10.0 * away + 50.0 * (head.tma != goal.tma)

    return cost, goal
