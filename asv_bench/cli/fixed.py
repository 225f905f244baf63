"""Commands that measure more than two cells a round.

`fixed PARENT CULPRIT HEAD`: is the regression of a commit fixed now, and wholly?
`swap BASE HEAD OLD NEW`: does a change belong to the commits or to the labels?

Each answer of `fixed` follows from verdicts that `compare` would give, with its errors:

- The three comparisons of a metric have an order, the culprit against the parent first, and do not
  divide its error: where these two differ, the head can be like one of them only, so that each of
  the other two comparisons has all of it (`stats.families.rejected_in_turns`). Holm's procedure
  shares `plan.alpha` among metrics. So the chance that any of "the culprit is slower", "the head is
  slower" or "a part is back" is said of two commits that do not differ is at most alpha, all looks
  together.
- "Wholly fixed" needs the head to be equivalent to the parent (or faster), and "not fixed" to be
  equivalent to the culprit (or slower). Where the true difference is the margin, an equivalence
  is wrong with at most `plan.equivalence_alpha`, as in `compare`.
- Where these do not suffice for an answer, it is inconclusive.

The share that is back is an estimate with an interval, and decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from asv_bench.cli.compare import plan_of
from asv_bench.compare.plan import QUICK_PAIRS
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.git.repository import Commit
from asv_bench.measure.rounds import (
    BY_BOTH,
    BY_COMMITS,
    BY_LABELS,
    four_cells,
    in_a_row,
    named,
    three_cells,
)
from asv_bench.measure.samples import Pair, judged
from asv_bench.output.table import interval, percentage
from asv_bench.session import options
from asv_bench.session.comparing import Comparing, Conclusion, Question, by_gate
from asv_bench.session.exit_codes import GATES, ExitCode
from asv_bench.stats.families import LEAD
from asv_bench.stats.paired import Share, share_in_rounds
from asv_bench.subjects.axis import UNDER
from asv_bench.subjects.declared import DeclaredSubject

ROLES = ("parent", "culprit", "head")
NAMES = len(ROLES)
_LOST = (Verdict.FAILED, Verdict.VOID, Verdict.NOT_MEASURED)
"""Answers without which there is none, the worst first."""


def fixed(
    commits: Annotated[
        list[str],
        typer.Argument(
            metavar="[PARENT] CULPRIT [HEAD] [-- COMMAND...]",
            help="Three commits, or labels: before the regression, with it, and now (. is the "
            "working tree as it stands); or the culprit alone. A command whose wall time is "
            "measured, as in compare, needs all three.",
        ),
    ],
    benchmark: options.ComparedMetrics = None,
    *,
    asked: options.EngineOptions,
    rounds: options.MostRounds = None,
    quick: Annotated[bool, typer.Option("--quick", help=f"{QUICK_PAIRS} rounds at most.")] = False,
    how: options.MeasuringOptions,
    files: options.AnswerOutputs,
    list_benchmarks: options.ListBenchmarks = False,
) -> None:
    """Say whether the regression of a commit is fixed now, and wholly: not fixed, partly fixed (how
    much of the effect is back), wholly fixed, no regression to fix, or inconclusive.

    The commit before it, the commit and HEAD are all measured in every round. fixed CULPRIT alone
    asks about its first parent, it, and HEAD.

    Exit code 0: wholly fixed, or there was no regression; 3: not or only partly fixed, or HEAD is
    slower than PARENT; 4: inconclusive; 5: nothing could be measured; 1: a failure; 2: refused;
    130: interrupted, and the same command goes on where it stopped.
    """
    is_alone = len(commits) == 1
    if not is_alone and len(commits) < NAMES:
        raise Refused(
            "fixed needs three commits or labels: kvtrail fixed PARENT CULPRIT HEAD; or the "
            "culprit alone, without a command behind it."
        )
    names = [*commits, "HEAD"] if is_alone else commits[:NAMES]
    chosen = asked.choice(commits[NAMES:], benchmark, how, near=names).subject("fixed")
    if is_alone:
        names = [options.parent_of(chosen, commits[0]), *names]
    plan = plan_of(rounds, how.margin, len(chosen.metrics) / LEAD, quick=quick)
    three = options.ends_of(chosen, names, files.console)
    question = _question(chosen, three, plan.confidence, anyway=how.anyway, is_alone=is_alone)
    Comparing(chosen, question, plan).with_options(files, how).answer()


def _question(
    subject: DeclaredSubject,
    three: Sequence[tuple[str, Commit]],
    confidence: float,
    *,
    anyway: bool,
    is_alone: bool,  # whether the culprit alone was named
) -> Question:
    commits = [commit for _, commit in three]
    parent, culprit, head = hashes = [commit.hash for commit in commits]
    design = three_cells((parent, culprit, head), ROLES)
    if anyway and len({*hashes}) < NAMES:
        raise Refused("--anyway measures three commits, and two of these are the same one.")
    step, way, back = design.contrasts
    ends = {step: (parent, culprit), way: (parent, head), back: (culprit, head)}
    same = [] if anyway else [name for name in ends if subject.are_same(*ends[name])]
    known = []
    for metric in subject.metrics:
        for contrast, pair in ends.items():
            name = named(metric.name, contrast)
            if contrast in same:
                known.append(Comparison.of_same(name, *pair, metric.unit))
            elif step in same or way in same:
                known.append(Comparison(name, *pair, Verdict.NOT_MEASURED))
    # A head that holds what the culprit does mended nothing: the culprit alone is in question.
    if back in same:
        design = in_a_row(parent, {step: culprit})

    def conclude(
        comparisons: Sequence[Comparison], pairs: Mapping[str, Sequence[Pair]]
    ) -> Conclusion:
        by_name = {one.benchmark: one for one in comparisons}
        repairs = []
        for metric in judged(subject.metrics):
            first, whole, second = (by_name.get(named(metric.name, one)) for one in ends)
            assert first is not None
            assert second is not None
            share = None
            if (first.verdict, second.verdict) == (Verdict.SLOWER, Verdict.FASTER):
                # In one round both contrasts have the same life of the culprit.
                lost = {one.head.started_at: one.log_ratio for one in pairs[first.benchmark]}
                won = {one.base.started_at: -one.log_ratio for one in pairs[second.benchmark]}
                share = share_in_rounds(lost, won, confidence)
            whole = whole or replace(first, head=head)
            repairs.append(Repair(metric.name, first, whole, second, share))
        return _conclusion(repairs)

    return Question(
        "fixed",
        three,
        design,
        conclude,
        known,
        roles=ROLES,
        where=f", of all {len(design.cells)} in every round",
        details={ROLES[1]: commits[1].to_json()},
        # HEAD moves, though nobody named it.
        names={three[1][0]: tuple(one.short for one in commits)} if is_alone else {},
    )


def _conclusion(repairs: Sequence[Repair]) -> Conclusion:
    states = Counter(repair.state for repair in repairs)
    if any(repair.is_slower for repair in repairs):
        code = ExitCode.REGRESSION
    elif State.FAILED in states:
        code = ExitCode.FAILED
    elif states.keys() == {State.NOT_MEASURED}:
        code = ExitCode.NOTHING_MEASURED
    else:
        is_open = not states.keys().isdisjoint((State.INCONCLUSIVE, State.VOID))
        code = ExitCode.INCONCLUSIVE if is_open else ExitCode.GOOD
    sentences = [repair.sentence() for repair in repairs]
    heading = ", ".join(f"{states[state]} {state}" for state in State if states[state])
    if len(repairs) == 1:
        [heading] = sentences
    results = {"fixed": [repair.to_json() for repair in repairs]}
    return Conclusion(heading, [*sentences, heading], code, results)


def swap(
    base: Annotated[str, typer.Argument(help="The older commit.")],
    head: Annotated[str, options.HEAD],
    old: Annotated[str, typer.Argument(help="A label, such as the old version of a dependency.")],
    new: Annotated[str, typer.Argument(help="The new one.")],
    benchmark: options.Metrics = None,
    subject: options.SubjectPath = None,
    rounds: options.MostRounds = None,
    devices: options.Devices = None,
    *,
    how: options.MeasuringOptions,
    files: options.AnswerOutputs,
) -> None:
    """Measure two commits under two labels, and say which of the two a change belongs to.

    The four cells run next to each other in every round. The subject's file gives setup and measure
    the commit's tree and $KVTRAIL_LABEL. Exit codes are those of compare.
    """
    asked = options.EngineOptions(subject=subject, axis="commits", devices=devices)
    chosen = asked.choice((), benchmark, how).subject("swap")
    if not chosen.lists_packages:
        raise Refused("swap needs a subject with labels; name its file with --subject.")
    if old == new:
        raise Refused(f"{old} is both the old and the new label; give two of them.")
    plan = plan_of(rounds, how.margin, len(chosen.metrics) / LEAD)
    given = options.ends_of(chosen, (base, head), files.console)
    commits, labels = (given[0][1].hash, given[1][1].hash), (old, new)
    cells = [f"{commit}{UNDER}{label}" for commit in commits for label in labels]
    question = Question(
        "swap",
        given,
        four_cells(commits, cells),
        by_gate(GATES, belonging),
        where=f", under {old} and {new}",
        details={"labels": list(labels)},
    )
    Comparing(chosen, question, plan).with_options(files, how).answer()


def belonging(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence a metric that says which axis its change belongs to."""
    verdicts = {comparison.benchmark: comparison.verdict for comparison in comparisons}
    if {Verdict.FAILED, Verdict.VOID, Verdict.NOT_MEASURED} & {*verdicts.values()}:
        return []
    ends = named("", BY_BOTH)
    metrics = [name.removesuffix(ends) for name in verdicts if name.endswith(ends)]
    return [f"{metric}: {_belongs_to(metric, verdicts)}" for metric in metrics]


def _belongs_to(metric: str, verdicts: Mapping[str, Verdict]) -> str:
    of = {one: verdicts[named(metric, one)] for one in (BY_COMMITS, BY_LABELS, BY_BOTH)}
    moved = [one for one, verdict in of.items() if verdict in (Verdict.SLOWER, Verdict.FASTER)]
    if BY_BOTH in moved:
        return "what the commits do depends on the label; compare under one label alone"
    if not moved:
        return "no change was shown along either axis"
    if len(moved) > 1:
        return "the change belongs to the commits and to the labels, each on its own"
    other = BY_LABELS if BY_COMMITS in moved else BY_COMMITS
    belongs = f"the change belongs to the {moved[0].removeprefix('by ')}"
    if of[other] is Verdict.EQUIVALENT:
        return belongs
    return f"{belongs}; whether the {other.removeprefix('by ')} do something too is not shown"


class State(StrEnum):
    """What became of a regression; the worst first.

    `NOT_WHOLLY`: the head is slower than the parent, and whether less so than the culprit was not
    shown. `NO_REGRESSION`: the culprit is not slower than its parent.
    """

    NOT = "not fixed"
    NOT_WHOLLY = "not wholly fixed"
    PARTLY = "partly fixed"
    FAILED = "failed"
    VOID = "void"
    NOT_MEASURED = "not measured"
    INCONCLUSIVE = "inconclusive"
    NO_REGRESSION = "no regression to fix was found"
    WHOLLY = "wholly fixed"


@dataclass(frozen=True, slots=True)
class Repair:
    """The answer for one metric."""

    metric: str
    regression: Comparison  # the culprit against the parent
    remainder: Comparison  # the head against the parent
    repair: Comparison  # the head against the culprit
    # The part of the regression that the head takes back, as logarithms; None unless the culprit
    # is slower and the head faster than it.
    back: Share | None = None

    @property
    def state(self) -> State:
        """The answer in short."""
        return self._answer()[0]

    @property
    def is_slower(self) -> bool:
        """Whether something is left, of this regression or of another."""
        return self.remainder.verdict is Verdict.SLOWER

    def sentence(self) -> str:
        """The answer and what it rests on."""
        state, why = self._answer()
        return f"{self.metric}: {state}{why}."

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON-ready values; the comparisons are elsewhere in the record."""
        return {
            "metric": self.metric,
            "state": str(self.state),
            "slower": self.is_slower,
            "back": None if self.back is None else asdict(self.back),
            "sentence": self.sentence(),
        }

    def _answer(self) -> tuple[State, str]:
        """The state, and what it follows from."""
        regression, remainder, repair = self.regression, self.remainder, self.repair
        verdicts = regression.verdict, remainder.verdict, repair.verdict
        its_parent, the_culprit = _said(regression, "its parent"), _said(repair, "the culprit")
        before = f": the culprit is {its_parent}"
        now = f": the head is {_said(remainder, 'the parent')}"
        unclear = (one for one in (regression, remainder, repair) if not one.verdict.is_clear)
        reason = next((one.reason for one in unclear if one.reason), "")
        back = ""
        if self.back is not None:
            low, high = (percentage(bound, 0) for bound in self.back.interval)
            share = percentage(self.back.value, 0)
            back = f", {share} of the effect is back ({low} to {high})"
        match verdicts:
            # Commits that hold the same need no measuring: known as no regression, or as its end.
            case (Verdict.SAME, _, _):
                return State.NO_REGRESSION, before
            case (_, Verdict.SAME, _):
                return State.WHOLLY, now
            case _ if lost := [one for one in _LOST if one in verdicts]:
                return State(str(lost[0])), f": {reason}".rstrip(".")
            case (Verdict.EQUIVALENT | Verdict.FASTER, _, _):
                also = f", and{now[1:]}" if remainder.verdict is Verdict.SLOWER else ""
                return State.NO_REGRESSION, before + also
            case (Verdict.INCONCLUSIVE, _, _):
                return State.INCONCLUSIVE, before
            case (_, Verdict.SLOWER, Verdict.FASTER):
                return State.PARTLY, f"{back};{now[1:]}"
            case (_, Verdict.SLOWER, Verdict.INCONCLUSIVE):
                open_as = "and whether less so than the culprit was not shown"
                return State.NOT_WHOLLY, f"{now}, {open_as}"
            case (_, Verdict.SLOWER, _):
                return State.NOT, f": the head is {the_culprit}, which is {its_parent}"
            case (_, Verdict.EQUIVALENT | Verdict.FASTER, Verdict.FASTER | Verdict.INCONCLUSIVE):
                return State.WHOLLY, now
        # Verdicts that contradict each other; or a regression that is hardly wider than the margin,
        # after which the head may be like both ends.
        is_small = repair.verdict is Verdict.EQUIVALENT
        why = ", for the regression is hardly wider than the margin; a smaller one can tell"
        return State.INCONCLUSIVE, f"{now} and {the_culprit}{why if is_small else ''}"


def _said(comparison: Comparison, base: str) -> str:
    """A verdict against the base, with its effect."""
    words = {
        Verdict.SLOWER: f"{comparison.word} than {base}",
        Verdict.FASTER: f"{comparison.word} than {base}",
        Verdict.EQUIVALENT: f"equivalent to {base}",
        Verdict.SAME: f"the same as {base} in what is measured",
    }.get(comparison.verdict, f"neither shown to differ from {base} nor to equal it")
    if comparison.effect is None or comparison.interval is None:
        return words
    effect = percentage(comparison.effect, 2, signed=True)
    return f"{words} ({effect}, {interval(2)(comparison.interval)})"
