"""How often `compare` errs where builds of one source differ by luck, and how many builds mend it.

Each of them is built anew, so that a build is as much luck as a life; lives of a build share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from asv_bench.compare.plan import ComparisonPlan
from asv_bench.output.table import Column, Table, digits, percent
from asv_bench.stats.paired import Floats

from .compare import VERDICTS
from .many_comparisons import compare_many
from .noise import Noise, Situation

COLUMNS = (
    Column("luck", "luck of a build", kind="text"),
    Column("builds", "builds"),
    Column("margin", "margin", show=percent(0)),
    Column("effect", "true effect", show=percent(1, signed=True)),
    *(Column(str(verdict), str(verdict), show=percent(2)) for verdict in VERDICTS),
    Column("pairs", "pairs", show=digits(1)),
    Column("coverage", "coverage", show=percent(1)),
)
_LIVES = Situation(Noise())
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Luck:
    """How the builds of one source differ, as logarithms."""

    deviation: float = 0.0
    modes: float = 0.0  # the fraction of builds that are slower by `mode_size`
    mode_size: float = 0.0

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """What builds add to each of their lives."""
        is_slow = random.random(shape) < self.modes
        return random.normal(0, self.deviation, shape) + is_slow * self.mode_size


LUCK = {
    "1 %": Luck(0.01),
    "3 %": Luck(0.03),
    "5 %": Luck(0.05),
    "one in three +5 %": Luck(modes=1 / 3, mode_size=0.05),
}


@dataclass(frozen=True, slots=True)
class Case:
    """Comparisons of two sources, each with so many builds."""

    luck: str
    builds: int  # an end; 1: what is compared without the key
    margin: float
    effect: float
    seed: int = 0


ASKED = ((0.01, 0.0), (0.02, 0.0), (0.05, 0.0), (0.01, 0.05), (0.05, 0.05))
"""Margins and effects."""
CASES = [
    Case(luck, builds, *asked, seed=seed)
    for seed, (luck, builds, asked) in enumerate(
        (luck, builds, asked) for luck in LUCK for builds in (1, 3, 6, 12, 30) for asked in ASKED
    )
]


def parts(case: Case, runs: int) -> list[partial[Counter[str]]]:
    """The runs of a case, split in the same way whoever simulates them."""
    sizes = [min(_AT_ONCE, runs - begun) for begun in range(0, runs, _AT_ONCE)]
    seeds = np.random.SeedSequence(case.seed).spawn(len(sizes))
    return [partial(_counts, case, *one) for one in zip(sizes, seeds, strict=True)]


def _counts(case: Case, runs: int, seed: np.random.SeedSequence) -> Counter[str]:
    plan, random = ComparisonPlan().with_margin(case.margin), np.random.default_rng(seed)
    drawn = _LIVES.draw(random, [case.effect], runs, plan.cap)
    builds = np.arange(plan.cap) % case.builds
    base, head = (
        LUCK[case.luck].draw(random, (runs, 1, case.builds))[..., builds] for _ in range(2)
    )
    drawn = replace(
        drawn, base=drawn.base + base, head=drawn.head + head, pools=drawn.pools[..., :0]
    )
    answers = compare_many(drawn, plan, builds if case.builds > 1 else None)
    covered = (answers.low <= case.effect) & (case.effect <= answers.high)
    found = {str(verdict): int((answers.verdict == verdict).sum()) for verdict in VERDICTS}
    sums = {"pairs": int(answers.pairs.sum()), "covered": int(covered.sum())}
    return Counter({"runs": runs, **found, **sums})


def row_of(case: Case, counts: Sequence[Counter[str]]) -> dict[str, object]:
    """What the parts of a case come to, as fractions of the runs."""
    total = sum(counts, Counter[str]())
    names = {str(verdict): str(verdict) for verdict in VERDICTS}
    names |= {"pairs": "pairs", "coverage": "covered"}
    shares = {name: total[counted] / total["runs"] for name, counted in names.items()}
    return {**asdict(case), **shares}


def table_of(rows: Sequence[dict[str, object]], runs: int) -> Table:
    """A row for each case."""
    shown = [tuple(row[column.key] for column in COLUMNS) for row in rows]
    title = f"verdicts of {runs:,} simulated comparisons each, where builds differ by luck"
    return Table(COLUMNS, shown, title, f"lives: {_LIVES}")
