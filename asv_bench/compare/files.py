"""Comparing what files say that somebody measured, which nothing pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from asv_bench.compare.comparison import with_evidence
from asv_bench.compare.judging import judge, weigh_costs, why_open
from asv_bench.compare.plan import ComparisonPlan, Criterion, Look
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.measure.samples import Absence, Metric
from asv_bench.output.table import percentage
from asv_bench.stats.paired import printed_digit

LEAST = 3
_UNLIKE = 0.7
"""Of a level that modes leave to so few files, what a test has: sides may scatter unlike."""

Figures: TypeAlias = Mapping[Metric, tuple[Sequence[float], Sequence[float]]]
"""Of base and head, one a file."""


def plan_of_files(base: int, head: int, margin: float) -> ComparisonPlan:
    """How so many files a side are judged: at the plan's levels, or at those that can be kept."""
    if (fewest := min(base, head)) < LEAST:
        raise Refused(
            f"{base} and {head} files are too few to judge by; give at least {LEAST} a side, each "
            f"of a run of its own."
        )
    plan = ComparisonPlan().with_margin(margin)
    # Runs with two modes, narrow and far apart, lie apart by side as often by chance.
    modes = 2 * 4.0**-fewest
    share = 1.0 if modes <= plan.alpha else _UNLIKE
    return replace(
        plan,
        alpha=max(plan.alpha, modes),
        equivalence_alpha=max(plan.equivalence_alpha, modes / 2),
        looks=(Look(fewest, Criterion.UNPAIRED, share, 1.0),),
    )


def why_so_wide(plan: ComparisonPlan) -> list[str]:
    """A sentence where so few files cannot keep the level of other comparisons."""
    if plan.alpha <= (usual := ComparisonPlan().alpha):
        return []
    return [
        f"So few files keep a level of {percentage(plan.alpha, 2)}, and no test keeps a lower one: "
        f"runs that have two modes lie apart as often by chance. Five a side keep "
        f"{percentage(usual, 1)}."
    ]


def compare_files(
    figures: Figures,
    lacking: Mapping[Metric, Absence],
    names: tuple[str, str],
    plan: ComparisonPlan,
) -> list[Comparison]:
    """The answer for each metric of two sides that are called so, all of them one family.

    `lacking` says why others cannot be judged.
    """
    test, none, evidence = Criterion.UNPAIRED, np.empty(0), {}
    for metric, sides in figures.items():
        base, head = ((-1 if metric.better == "higher" else 1) * np.log(one) for one in sides)
        digit = printed_digit([*sides[0], *sides[1]])
        evidence[metric.name] = weigh_costs(base, head, plan, test, none, none, digit)
    verdicts = judge(evidence, 0, dict.fromkeys(evidence), plan)
    answers = []
    for metric, sides in figures.items():
        entry, verdict = evidence[metric.name], verdicts[metric.name]
        reason = "" if verdict.is_clear else why_open(entry, 0, plan)
        files = len(sides[0]), len(sides[1])
        answer = Comparison(
            metric.name, *names, verdict, reason=reason, unit=metric.unit, files=files
        )
        is_inverted = metric.better == "higher"
        answers.append(with_evidence(answer, entry, *sides, is_inverted=is_inverted))
    for metric, absence in lacking.items():
        verdict = Verdict.FAILED if absence.has_failed else Verdict.NOT_MEASURED
        reason = absence.reason
        answers.append(Comparison(metric.name, *names, verdict, reason=reason, unit=metric.unit))
    return answers
