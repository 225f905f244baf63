"""Pairs of rungs for the compare procedure: rounds in which every rung runs once, in order.

In a round the rungs of all claims run one after the other, in ascending order or, where the head
goes first, in descending order. So the two rungs of a claim are neighbours in time, as two commits
are in `compare`, and a rung that two claims share runs once for both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from asv_bench.process.gpu_watch import why_discarded
from asv_bench.process.measured_process import Place, ProcessFailed
from asv_bench.process.samples import Absence, Pair, Reading, SampleFailed
from asv_bench.studies.ladder.claims import SECONDS_PER_TOKEN, Trial
from asv_bench.studies.ladder.rung_process import RungAnswer
from asv_bench.studies.ladder.rungs import Rung

OnAnswer = Callable[[Rung, RungAnswer], None]


class Processes(Protocol):
    """What measures rungs: `RungProcesses`, or a test's stand-in."""

    def measure(
        self, rung: Rung, workloads: Sequence[str], place: Place, *, check: bool = False
    ) -> RungAnswer: ...

    def stop(self) -> None: ...


class RungPairs:
    """A `PairSource` whose commits are rungs and whose benchmarks are claims.

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
        they were handed out.
    """

    def __init__(
        self,
        processes: Processes,
        trials: Sequence[Trial],
        places: Sequence[Place],
        on_answer: OnAnswer | None = None,
    ) -> None:
        self._processes = processes
        self._trials = {trial.claim.seed: trial for trial in trials}
        self._places = {place.device: place for place in places}
        self._on_answer = on_answer
        self._open = list(self._trials)
        self._ready: dict[tuple[str, str, bool], deque[Mapping[str, Pair]]] = {}
        self.pairs: dict[str, list[Mapping[str, Pair]]] = {seed: [] for seed in self._trials}

    @property
    def devices(self) -> Sequence[str]:
        """See `PairSource`."""
        return tuple(self._places)

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        """See `PairSource`: rungs are of one tree, and there is nothing to make ready."""
        return {}

    def stop(self) -> None:
        """See `PairSource`."""
        self._processes.stop()

    def close(self, seed: str) -> None:
        """Leave a claim that has its answer out of further rounds."""
        self._open.remove(seed)

    def pair(
        self,
        base: str,
        head: str,
        *,
        head_first: bool,
        benchmarks: Collection[str] | None = None,
        device: str | None = None,
    ) -> Mapping[str, Pair]:
        """See `PairSource`: the next pair of one claim, from a round that has it."""
        [seed] = benchmarks or self._open
        place = self._places[device or self.devices[0]]
        key = (place.device, seed, head_first)
        if not self._ready.get(key):
            try:
                self._measure_round(place, head_first)
            except ProcessFailed as failure:
                raise SampleFailed(head, (seed,), str(failure)) from None
        pairs = self._ready[key].popleft()
        self.pairs[seed].append(pairs)
        return {seed: pairs[SECONDS_PER_TOKEN]}

    def whole(self, seed: str, pair: Pair) -> Collection[Pair]:
        """The pairs of all figures that came with this one of seconds a token.

        Other devices hand out pairs meanwhile: the last of the claim may be another's.
        """
        return next(
            pairs.values() for pairs in self.pairs[seed] if pairs[SECONDS_PER_TOKEN] is pair
        )

    def _measure_round(self, place: Place, head_first: bool) -> None:
        trials = [self._trials[seed] for seed in self._open]
        workloads: dict[Rung, list[str]] = {}
        for trial in trials:
            for rung in (trial.base, trial.head):
                wanted = workloads.setdefault(rung, [])
                if trial.claim.workload not in wanted:
                    wanted.append(trial.claim.workload)
        order = sorted(workloads, key=lambda rung: rung.number, reverse=head_first)
        answers: dict[Rung, RungAnswer] = {}
        for rung in order:
            answers[rung] = self._processes.measure(rung, workloads[rung], place)
            if self._on_answer is not None:
                self._on_answer(rung, answers[rung])
        for trial in trials:
            pairs = {
                reported.figure: _pair(trial, reported.figure, answers, place, head_first)
                for reported in trial.claim.reported
            }
            key = (place.device, trial.claim.seed, head_first)
            self._ready.setdefault(key, deque()).append(pairs)


def _pair(
    trial: Trial, figure: str, answers: Mapping[Rung, RungAnswer], place: Place, head_first: bool
) -> Pair:
    base, head = (
        _reading(trial, rung, figure, answers[rung], place) for rung in (trial.base, trial.head)
    )
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
