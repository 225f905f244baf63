"""Pairs of rungs for the compare procedure: two processes that take turns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from asv_bench.measure.places import Place
from asv_bench.measure.processes import LifeFailed
from asv_bench.measure.samples import Absence, Pair, Reading, Round, SampleFailed
from asv_bench.measure.turns import in_turns
from asv_bench.process.gpu import why_discarded
from asv_bench.studies.ladder.claims import SECONDS_PER_TOKEN, Trial
from asv_bench.studies.ladder.paired_turns import paired_seconds
from asv_bench.studies.ladder.rung_process import RungAnswer
from asv_bench.studies.ladder.rungs import Rung

OnAnswer = Callable[[Rung, RungAnswer], None]


class MeasuresRungs(Protocol):
    """What measures rungs: `RungProcesses`, or a test's stand-in."""

    def measure(
        self,
        rung: Rung,
        workloads: Sequence[str],
        place: Place,
        *,
        check: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> RungAnswer: ...

    def stop(self) -> None: ...


class RungPairs:
    """A `RoundSource` whose commits are rungs and whose benchmarks are claims.

    Parameters
    ----------
    processes
        Measures rungs.
    trials
        The claims to try; a benchmark is a claim's seed, its commits the labels of the rungs.
    places
        Where to measure.
    on_answer
        Told of every process that ended well, in the thread that waited for it.

    Attributes
    ----------
    pairs
        For each claim the pairs of every figure that the write-up reports, in the order in which
        they were measured.
    """

    def __init__(
        self,
        processes: MeasuresRungs,
        trials: Sequence[Trial],
        places: Sequence[Place],
        on_answer: OnAnswer | None = None,
    ) -> None:
        self._processes = processes
        self._trials = {trial.claim.seed: trial for trial in trials}
        self._places = {place.device: place for place in places}
        self._on_answer = on_answer
        self.pairs: dict[str, list[Mapping[str, Pair]]] = {seed: [] for seed in self._trials}

    @property
    def devices(self) -> Sequence[str]:
        """See `RoundSource`."""
        return tuple(self._places)

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        """See `RoundSource`: rungs are of one tree, and there is nothing to make ready."""
        return {}

    def stop(self) -> None:
        """See `RoundSource`."""
        self._processes.stop()

    def round(
        self, cells: Sequence[str], order: Sequence[int], metrics: Collection[str], device: str = ""
    ) -> Round:
        """See `RoundSource`: both rungs of one claim, in turns."""
        [seed] = metrics or self._trials
        trial = self._trials[seed]
        place = self._places[device or self.devices[0]].for_turns()
        places = tuple(order)
        rungs = [(trial.base, trial.head)[one] for one in places]

        def measure(number: int, variables: Mapping[str, str]) -> RungAnswer:
            answer = self._processes.measure(
                rungs[number], [trial.claim.workload], place, variables=variables
            )
            if self._on_answer is not None:
                self._on_answer(rungs[number], answer)
            return answer

        try:
            answers = dict(zip(rungs, in_turns(measure), strict=True))
        except LifeFailed as failure:
            raise SampleFailed(cells[1], (seed,), str(failure)) from None
        pairs = {
            reported.figure: _pair(trial, reported.figure, answers, place, places == (1, 0))
            for reported in trial.claim.reported
        }
        self.pairs[seed].append(pairs)
        pair = pairs[SECONDS_PER_TOKEN]
        return Round(places, ({seed: pair.base}, {seed: pair.head}))

    def whole(self, seed: str, pair: Pair) -> Collection[Pair]:
        """The pairs of all figures that came with this one of seconds a token.

        Other devices measure meanwhile: the last of the claim may be another's.
        """
        return next(
            pairs.values()
            for pairs in self.pairs[seed]
            if pairs[SECONDS_PER_TOKEN].base.samples is pair.base.samples
        )


def _pair(
    trial: Trial, figure: str, answers: Mapping[Rung, RungAnswer], place: Place, head_first: bool
) -> Pair:
    base, head = (
        _reading(trial, rung, figure, answers[rung], place) for rung in (trial.base, trial.head)
    )
    if figure == SECONDS_PER_TOKEN:
        turns = (
            answers[rung].workloads[trial.claim.workload]["turns"]
            for rung in (trial.base, trial.head)
        )
        if (seconds := paired_seconds(*turns)) is not None:
            base, head = replace(base, value=seconds[0]), replace(head, value=seconds[1])
    return Pair(base, head, head_first, why_discarded(base.gpu, head.gpu))


def _reading(trial: Trial, rung: Rung, figure: str, answer: RungAnswer, place: Place) -> Reading:
    measured = answer.workloads[trial.claim.workload]
    return Reading(
        commit=rung.label,
        benchmark=f"{trial.claim.seed} {figure}",
        value=measured["figures"][figure],
        samples=tuple(run[figure] for run in measured["runs"]),
        device=place.device,
        started_at=answer.started_at,
        process_s=answer.process_s,
        gpu=answer.gpu,
    )
