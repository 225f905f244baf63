"""How often `judge` errs, and what it tells, by files a side, their noise and the true change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from asv_bench.cli.judge import plan_of_files
from asv_bench.compare.judging import verdicts, weigh_costs
from asv_bench.compare.plan import DEFAULT_MARGIN, Criterion
from asv_bench.compare.verdict import Verdict
from asv_bench.output.table import Column, Table, percent
from asv_bench.stats.paired import Floats

Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]
"""Runs of either side as logarithms, [runs, files]."""
SIDES = ((3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (10, 10), (3, 6), (5, 10))
EFFECTS = (0.05, -0.15, 0.15, 0.3)
_AT_ONCE = 10_000


def _normal(deviation: float) -> Draw:
    return lambda random, shape: random.normal(0, deviation, shape)


def _two_modes(share: float, width: float) -> Draw:
    def draw(random: np.random.Generator, shape: tuple[int, int]) -> Floats:
        return random.normal(0, width, shape) + 0.15 * (random.random(shape) < share)

    return draw


NOISES: dict[str, tuple[Draw, Draw]] = {
    **{
        f"normal {deviation:.0%}": (_normal(deviation),) * 2
        for deviation in (0.01, 0.02, 0.04, 0.08)
    },
    "t with 3, 4%": (lambda random, shape: 0.04 / math.sqrt(3) * random.standard_t(3, shape),) * 2,
    "uniform 4%": (lambda random, shape: random.uniform(-0.0693, 0.0693, shape),) * 2,
    "exponential 4%": (lambda random, shape: random.exponential(0.04, shape),) * 2,
    "half of the runs +15%": (_two_modes(0.5, 0.002),) * 2,
    "30% of the runs +15%": (_two_modes(0.3, 0.01),) * 2,
    "head 3 times as wide": (_normal(0.02), _normal(0.06)),
    "head 10 times as wide": (_normal(0.01), _normal(0.1)),
}
"""Of base and head, by name."""


class Case(NamedTuple):
    """So many files of either side, of one noise."""

    base: int
    head: int
    noise: str
    seed: int


CASES = [
    Case(*sides, noise, seed)
    for seed, (sides, noise) in enumerate((sides, noise) for sides in SIDES for noise in NOISES)
]


def parts(case: Case, runs: int) -> list[partial[dict[str, int]]]:
    """The runs of a case, split in the same way whoever simulates them."""
    sizes = [min(_AT_ONCE, runs - begun) for begun in range(0, runs, _AT_ONCE)]
    seeds = np.random.SeedSequence(case.seed).spawn(len(sizes))
    return [partial(_counts, case, *one) for one in zip(sizes, seeds, strict=True)]


def _counts(case: Case, runs: int, seed: np.random.SeedSequence) -> dict[str, int]:
    random, none = np.random.default_rng(seed), np.empty(0)
    plan = plan_of_files(case.base, case.head, DEFAULT_MARGIN)
    base, head = (
        draw(random, (runs, count))
        for draw, count in zip(NOISES[case.noise], (case.base, case.head), strict=True)
    )
    counts = {"runs": runs}
    for effect in (0.0, DEFAULT_MARGIN, *EFFECTS):
        moved = head + math.log1p(effect)
        entry = weigh_costs(base, moved, plan, Criterion.UNPAIRED, none, none)
        found = verdicts(entry, entry.p <= plan.difference_level(0, 1), 0, plan)
        for verdict in (Verdict.SLOWER, Verdict.FASTER, Verdict.EQUIVALENT):
            counts[f"{effect:+} {verdict}"] = int((found == verdict).sum())
        low, high = entry.interval
        counts[f"{effect:+} covered"] = int(((low <= effect) & (effect <= high)).sum())
    return counts


def row_of(case: Case, done: Sequence[dict[str, int]]) -> dict[str, Any]:
    """What a case comes to, as shares of its runs."""
    share = {name: sum(one[name] for one in done) / done[0]["runs"] / len(done) for name in done[0]}
    told = {
        f"told_{effect:+}": share[f"{effect:+} {Verdict.SLOWER if effect > 0 else Verdict.FASTER}"]
        for effect in EFFECTS
    }
    margin = f"{DEFAULT_MARGIN:+} {Verdict.EQUIVALENT}"
    return {
        "files": f"{case.base} and {case.head}",
        "noise": case.noise,
        "level": plan_of_files(case.base, case.head, DEFAULT_MARGIN).alpha,
        "false": share[f"+0.0 {Verdict.SLOWER}"] + share[f"+0.0 {Verdict.FASTER}"],
        **told,
        "wrong": max(
            share[f"{effect:+} {Verdict.FASTER if effect > 0 else Verdict.SLOWER}"]
            for effect in EFFECTS
        ),
        "equivalent": share[margin],
        "coverage": share["+0.0 covered"],
    }


COLUMNS = (
    Column("files", "files of base and head", kind="text"),
    Column("noise", "noise of a file", kind="text"),
    Column("level", "level said", show=percent(2)),
    Column("false", "told of no change", show=percent(2)),
    *(Column(f"told_{one:+}", f"{one:+.0%} told", show=percent(1)) for one in EFFECTS),
    Column("wrong", "told the wrong way", show=percent(2)),
    Column("equivalent", "+1% equivalent", show=percent(2)),
    Column("coverage", "coverage", show=percent(1)),
)


def table_of(rows: Sequence[dict[str, Any]], runs: int) -> Table:
    """A row for each case."""
    shown = [tuple(row[column.key] for column in COLUMNS) for row in rows]
    title = f"verdicts on one figure in {runs:,} simulated sets of files each"
    return Table(COLUMNS, shown, title, "Noise is the standard deviation of a file's logarithm.")
