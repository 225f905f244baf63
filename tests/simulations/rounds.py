"""How often `fixed`, `swap` and `compare` of several heads err: contrasts between the same lives.

Those of a metric of `fixed` and `swap` are tested in turns (`stats.families.rejected_in_turns`);
beside that stands what dividing the error among all of them comes to, by Holm's procedure, which is
what `compare` does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy

from asv_bench.cli.fixed import ROLES
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.measure.rounds import Design, four_cells, in_a_row, three_cells
from asv_bench.output.table import Column, Table, digits, percent

from .many_comparisons import Drawn, compare_many
from .noise import SITUATIONS

DESIGNS = {
    "fixed": three_cells(ROLES, ROLES),
    "swap": four_cells(("", ""), "0123"),
    "compare": in_a_row("base", {one: one for one in "ABCDEFGHIJK"}),
}
TRUTHS: dict[str, Sequence[tuple[float, ...]]] = {
    # By commits, each after the parent.
    "fixed": (
        *((0.0, 0.0), (0.14, 0.0), (0.14, 0.14), (0.14, 0.07), (0.0, 0.14)),
        *((0.03, 0.0), (0.03, 0.03), (0.03, 0.015), (0.0, 0.03)),
    ),
    # Base under the new label, head under the old one, head under the new one.
    "swap": (
        *((0.0, 0.0, 0.0), (0.14, 0.0, 0.14), (0.0, 0.14, 0.14), (0.0, 0.0, 0.14)),
        *((0.14, 1 / 1.14 - 1, 0.0), (0.03, 0.0, 0.03), (0.0, 0.03, 0.03)),
    ),
}
"""True effects of cells against the first one."""
NOISES = ("normal 0.3 %", "normal 1 %", "two modes", "head 5 times noisier", "autocorrelated")
COLUMNS = (
    Column("verb", "verb", kind="text"),
    Column("noise", "noise", kind="text"),
    Column("effects", "true effects", kind="text"),
    Column("rule", "rule", kind="text"),
    Column("false", "family errs", show=percent(2)),
    Column("told", "all told", show=percent(1)),
    Column("first", "first told", show=percent(1)),
    Column("first_rounds", "first after rounds", show=digits(1)),
    Column("rounds", "all clear after", show=digits(1)),
    Column("broken", "broken promise", kind="text"),
)
_AT_ONCE = 1000
_NONE = 1e-9


@dataclass(frozen=True, slots=True)
class Case:
    """Comparisons of three commits, of four cells or of twelve commits, to simulate."""

    verb: str
    noise: str
    effects: tuple[float, ...]
    is_in_turns: bool  # None of the levels is divided among the contrasts of the metric
    seed: int

    @property
    def design(self) -> Design:
        return DESIGNS[self.verb]

    def logs(self) -> list[float]:
        """Of the cells."""
        return [0.0, *map(math.log1p, self.effects)]

    def truths(self) -> list[float]:
        """Of the contrasts."""
        logs = self.logs()
        means = (
            [np.mean([logs[place] for place in places]) for places in ends]
            for ends in self.design.tested.values()
        )
        return [float(head - base) for base, head in means]


def cases() -> list[Case]:
    """Every truth under every noise, in turns and divided."""
    every = [
        (verb, noise, effects)
        for verb, truths in TRUTHS.items()
        for effects in truths
        for noise in NOISES
    ]
    return [
        Case(*one, is_in_turns, seed)
        for seed, one in enumerate(every)
        for is_in_turns in (False, True)
    ]


def parts(case: Case, runs: int, plan: ComparisonPlan) -> list[partial[Counter[str]]]:
    """The runs of a case, split in the same way whoever simulates them."""
    sizes = [min(_AT_ONCE, runs - begun) for begun in range(0, runs, _AT_ONCE)]
    seeds = np.random.SeedSequence(case.seed).spawn(len(sizes))
    return [
        partial(_counts, case, size, seed, plan) for size, seed in zip(sizes, seeds, strict=True)
    ]


def draw(case: Case, random: np.random.Generator, runs: int, rounds: int) -> Drawn:
    """Contrasts in place of benchmarks, as their lives are ordered in rounds."""
    design, situation = case.design, SITUATIONS[case.noise]
    cells = len(design.cells)
    orders = np.array([design.order(number) for number in range(rounds)])
    at = np.argsort(orders, axis=1)  # [rounds, cells] of each cell, its place in the round
    states = situation.noise.states(random, (runs, rounds * cells))
    lives = np.stack(
        [
            (situation.head if cell and situation.head else situation.noise).own(
                random, (runs, rounds)
            )
            + states[:, np.arange(rounds) * cells + at[:, cell]]
            + level
            for cell, level in enumerate(case.logs())
        ]
    )
    contrasts = design.tested.values()
    ends = [[lives[list(places)].mean(axis=0) for places in one] for one in contrasts]
    base, head = (np.stack(side, axis=1) for side in zip(*ends, strict=True))
    firsts = [at[:, after[0]] < at[:, before[0]] for before, after in contrasts]
    pools = situation.pools(random, (runs, 1))
    return Drawn(
        base,
        head,
        np.repeat(pools, len(firsts), axis=1),
        head_first=np.array(firsts),
        turns=design.turns if case.is_in_turns else (0,) * len(firsts),
    )


def _counts(
    case: Case, runs: int, seed: np.random.SeedSequence, plan: ComparisonPlan
) -> Counter[str]:
    answers = compare_many(draw(case, np.random.default_rng(seed), runs, plan.cap), plan)
    truths = np.array(case.truths())
    said = (answers.verdict == Verdict.SLOWER) * 1 - (answers.verdict == Verdict.FASTER) * 1
    real = np.where(np.abs(truths) < _NONE, 0, np.sign(truths))
    first, asked = said[:, 0] != 0, len(truths) - len(case.design.contrasts)
    said, real, pairs = said[:, asked:], real[asked:], answers.pairs[:, asked:]
    return Counter(
        {
            "runs": runs,
            "false": int(((said != 0) & (said != real)).any(axis=1).sum()),
            "told": int((said == real)[:, real != 0].all(axis=1).sum()) if real.any() else 0,
            "first": int(first.sum()),
            "first_rounds": int(answers.pairs[first, 0].sum()),
            "rounds": int(pairs.max(axis=1).sum()),
        }
    )


def row_of(case: Case, parts: Sequence[Counter[str]], plan: ComparisonPlan) -> dict[str, Any]:
    """A row of the report as JSON-ready values."""
    total = sum(parts, Counter[str]())
    runs = total["runs"]
    rates = {name: total[name] / runs for name in ("false", "told", "first", "rounds")}
    is_broken = scipy.stats.binom.sf(total["false"] - 1, runs, plan.alpha) < 0.001
    return {
        **asdict(case),
        "effects": ", ".join(f"{effect:+.1%}" for effect in case.effects),
        "rule": "in turns" if case.is_in_turns else "divided",
        "runs": runs,
        **rates,
        "first_rounds": total["first_rounds"] / total["first"] if total["first"] else None,
        "broken": "family errs" if is_broken else "",
    }


def rounds_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row for each case."""
    cells = [[row[column.key] for column in COLUMNS] for row in rows]
    caption = (
        "True effects: of culprit and head, or of the base under the new label, the head under the "
        "old and the head under the new one. Family errs: a contrast without an effect was called "
        "slower or faster, or one in the wrong direction. First: the culprit against its parent, "
        "or from end to end, which is no answer. Divided: by Holm's procedure among all contrasts; "
        "in turns: as they are."
    )
    return Table(COLUMNS, cells, f"verdicts of {rows[0]['runs']:,} simulated rounds each", caption)
