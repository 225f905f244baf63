"""Which files of a change make its effect: parts of the change, halved and one by one.

A part is the base with some of the files' changes made. Parts are compared with the base, halves
first, until no file of the part can be left out (delta debugging, Zeller & Hildebrandt 2002); one
that cannot be measured counts as one without the effect, so that larger ones are tried. Prose and
pictures, which hardly ever matter, are one part, the last, before anything is halved. What is
found is measured again, by pairs of its own and in rounds with the base and the whole change. Where
the whole is still slower than the part, the search goes on among the other files, with that part as
the base.

Errors: a set of files is named only by its confirmation. The first has half of the plan's alpha,
the second a quarter, and so on, for the three comparisons of its rounds in turns, the whole against
the base first. So a set that does not differ from its base is named with a chance of at most alpha,
however many parts were tried. The comparisons of the search have alpha each, and only direct it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from asv_bench.bisect.finding import Direction, Outcome, SearchPlan
from asv_bench.compare.checks import ControlMoved
from asv_bench.compare.comparison import CommitComparison, Headway
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import MeasurementFailed, TimeIsUp
from asv_bench.git.repository import GitError
from asv_bench.measure.rounds import Design, three_cells, two_cells
from asv_bench.measure.samples import CommitUnusable, Metric, Pair, RoundSource
from asv_bench.stats.paired import Share, share_in_rounds

ROLES = ("base", "whole", "files")
Changes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileTry:
    """A part of the change that was compared, or could not be."""

    before: tuple[int, ...]  # changes that its base has beside the parent, by number
    changes: tuple[int, ...]  # those that it adds, by number
    comparison: Comparison | None  # with its base; None where it cannot be measured
    why_not: str = ""  # why it cannot be tried; "" where it was


@dataclass(frozen=True, slots=True)
class Guilty:
    """The smallest set of changes that was found to have an effect."""

    before: tuple[int, ...]  # this and `changes` are as in `FileTry`
    changes: tuple[int, ...]
    comparison: Comparison  # the set against its base, by pairs of their own
    against_whole: Comparison | None
    """The set against the whole change, in the same rounds; None where it is all that was left."""
    share: Share | None
    """How much it is of what the whole change does to that base; None where it is all of that."""
    is_confirmed: bool  # whether the comparison shows the effect that is looked for
    alpha: float  # the error that the rounds were allowed


@dataclass(frozen=True, slots=True)
class FileFinding:
    """The answer."""

    outcome: Outcome
    direction: Direction
    reason: str  # a clause that says why the outcome is what it is
    gate: Comparison  # the whole change against its parent
    guilty: tuple[Guilty, ...] = ()
    """Sets of changes in the order they were found; the last may not be confirmed."""
    tries: tuple[FileTry, ...] = ()  # every part that was compared, in order
    is_cut: bool = False  # whether the search ended because it had taken as many pairs as it may

    @property
    def named(self) -> list[Guilty]:
        """The sets that are confirmed."""
        return [one for one in self.guilty if one.is_confirmed]

    def shares(self) -> list[float]:
        """How much of the whole effect each named set is, as logarithms."""
        left, found = 1.0, []
        for one in self.named:
            of_left = 1.0 if one.share is None else one.share.value
            found.append(left * of_left)
            left *= 1.0 - of_left
        return found

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready values; changes are numbers in the record's list of them."""
        return {**asdict(self), "shares": self.shares()}


@dataclass(slots=True)
class FileSearch:
    """The search for the changes of a commit that make its effect."""

    source_of: Callable[[str], RoundSource]
    """Gives what measures rounds, for a part of the search by its name; each has rounds of its own.
    """
    commit_of: Callable[[Changes], str]
    """Makes the parent with changes made that are given by number, and returns its full hash."""
    parent: str
    whole: str
    count: int  # of changes
    metric: Metric
    controls: Sequence[Metric] = ()
    likely: float = math.inf  # so many changes are tried before all others; infinite: all are alike
    direction: Direction = Direction.REGRESSION
    plan: SearchPlan = field(default_factory=SearchPlan)
    pool: Sequence[float] = ()
    """Differences within one commit that this machine showed before (`judging.within_commit`)."""
    on_pair: Callable[[str, Headway, Mapping[str, Pair]], None] = lambda doing, now, pairs: None
    """Told of every pair, and of what it was measured for."""
    on_try: Callable[[FileTry], None] = lambda tried: None
    """Told of every part that was compared or could not be."""
    stopped: KeyboardInterrupt | None = field(init=False, default=None)
    """Ctrl-C, or that the time was up, before its end."""
    _tries: dict[tuple[Changes, Changes], FileTry] = field(init=False, default_factory=dict)
    _guilty: list[Guilty] = field(init=False, default_factory=list)
    _pairs: int = field(init=False, default=0)
    _is_cut: bool = field(init=False, default=False)

    def run(self) -> FileFinding:
        """Compare the whole change with its parent, search, and confirm; what is known on Ctrl-C.

        Raises CommitUnusable where one of the two cannot be measured, and MeasurementFailed where
        their processes fail.
        """
        gate: Comparison | None = None
        try:
            [gate], _ = self._compare("gate", two_cells(self.parent, self.whole))
            if gate.verdict is Verdict.FAILED:
                raise MeasurementFailed(f"the two ends could not be compared: {gate.reason}")
            if gate.verdict is not self.direction.verdict:
                is_open = gate.verdict is Verdict.INCONCLUSIVE
                outcome = Outcome.INCONCLUSIVE if is_open else Outcome.NONE
                reason = f"the whole change is {gate.word}"
                return FileFinding(outcome, self.direction, reason, gate)
            reason = self._search()
        except KeyboardInterrupt as error:
            if gate is None:
                raise
            self.stopped = error
            reason = "time was up" if isinstance(error, TimeIsUp) else "it was interrupted"
        guilty = self._guilty
        # A whole without a smaller part is an answer, unless something kept from finding one.
        is_whole = not (guilty or self.stopped or self._is_unclear())
        is_found = is_whole or any(one.is_confirmed for one in guilty)
        outcome = Outcome.FOUND if is_found else Outcome.INCONCLUSIVE
        found, tries = tuple(guilty), tuple(self._tries.values())
        return FileFinding(outcome, self.direction, reason, gate, found, tries, self._is_cut)

    def _search(self) -> str:
        """Find the sets; why there are no more."""
        guilty = self._guilty
        before: Changes = ()
        less = Verdict.FASTER if self.direction is Direction.REGRESSION else Verdict.SLOWER
        while True:
            left = tuple(one for one in range(self.count) if one not in before)
            found = self._smallest(left, before)
            if found == left and not guilty:
                return "no smaller part shows it"
            guilty.append(self._confirm(found, before, len(guilty) + 1))
            if not guilty[-1].is_confirmed:
                return "measured again, the set was not shown to have the effect"
            compared = guilty[-1].against_whole
            if compared is None or compared.verdict is not less:
                return "the whole change was not shown to do more than that"
            before = tuple(sorted((*before, *found)))

    def _is_unclear(self) -> bool:
        """Whether some part may have had the effect all the same."""
        return self._is_cut or any(
            one.why_not or (one.comparison and one.comparison.verdict is Verdict.INCONCLUSIVE)
            for one in self._tries.values()
        )

    def _smallest(self, changes: Changes, before: Changes) -> Changes:
        """A part of these changes with the effect of which none can be left out; or all of them."""
        parts = 2
        while len(changes) > 1:
            at = sum(one < self.likely for one in changes)
            kinds = [one for one in (changes[:at], changes[at:]) if one]
            # Of about the same size, neighbours together.
            ends = [len(changes) * number // parts for number in range(parts + 1)]
            chunks = [changes[start:end] for start, end in pairwise(ends)]
            chunks = kinds if parts == len(kinds) else chunks
            # Of two chunks each is what the other leaves, and is tried once.
            smaller = [*chunks, *(tuple(x for x in changes if x not in one) for one in chunks)]
            found = next((one for one in smaller if self._has_effect(one, before)), None)
            if found is not None:
                changes, parts = found, 2 if found in chunks else max(parts - 1, 2)
            elif parts < len(changes):
                parts = min(2 * parts, len(changes))
            else:
                break
        return changes

    def _has_effect(self, changes: Changes, before: Changes) -> bool:
        key = before, changes
        if key not in self._tries:
            if self._pairs >= self.plan.most_pairs:
                self._is_cut = True
                return False
            self._tries[key] = self._try(changes, before)
            self.on_try(self._tries[key])
        compared = self._tries[key].comparison
        return compared is not None and compared.verdict is self.direction.verdict

    def _try(self, changes: Changes, before: Changes) -> FileTry:
        commit = ""
        try:
            base = self.commit_of(before)
            commit = self.commit_of(tuple(sorted((*before, *changes))))
            [compared], _ = self._compare("parts", two_cells(base, commit))
        except GitError as error:
            return FileTry(before, changes, None, str(error))
        except CommitUnusable as error:
            if error.commit != commit:
                raise
            return FileTry(before, changes, None, error.reason)
        if compared.verdict in (Verdict.FAILED, Verdict.NOT_MEASURED):
            return FileTry(before, changes, None, compared.reason)
        return FileTry(before, changes, compared)

    def _compare(
        self, part: str, design: Design, alpha: float | None = None
    ) -> tuple[list[Comparison], CommitComparison]:
        """The answers, at the plan's alpha or another, and the comparison that they come from."""
        plan = replace(self.plan.comparison, alpha=alpha or self.plan.comparison.alpha)
        metrics, names = [self.metric, *self.controls], design.named([self.metric])
        comparison = CommitComparison(design, metrics, plan, dict.fromkeys(names, self.pool))

        def on_pair(now: Headway, pairs: Mapping[str, Pair]) -> None:
            self._pairs += part == "parts"
            self.on_pair(part, now, pairs)

        answers = comparison.run(self.source_of(part), on_pair)
        if answers[0].verdict is Verdict.VOID:
            raise ControlMoved(answers[0].reason)
        return answers[: len(names)], comparison

    def _confirm(self, changes: Changes, before: Changes, number: int) -> Guilty:
        part, alpha = f"confirmation {number}", self.plan.comparison.alpha / 2**number
        base, files = self.commit_of(before), self.commit_of(tuple(sorted((*before, *changes))))
        rest, share, sign = None, None, self.direction.sign
        if files == self.whole:
            [of_files], _ = self._compare(part, two_cells(base, files), alpha)
        else:
            design = three_cells((base, self.whole, files), ROLES)
            (whole, of_files, rest), comparison = self._compare(part, design, alpha)
            # In one round both contrasts have the same life of the base.
            of_whole, of_part = (
                {one.base.started_at: sign * one.log_ratio for one in comparison.kept_pairs(name)}
                for name in (whole.benchmark, of_files.benchmark)
            )
            share = share_in_rounds(of_whole, of_part, self.plan.comparison.confidence)
        is_confirmed = of_files.verdict is self.direction.verdict
        return Guilty(before, changes, of_files, rest, share, is_confirmed, alpha)
