"""A run of the ladder: every rung once, checked and counted, then every claim in pairs."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from asv_bench.compare.comparison import CommitComparison
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.errors import MeasurementFailed
from asv_bench.measure.places import Place
from asv_bench.measure.rounds import two_cells
from asv_bench.measure.samples import Metric, Pair
from asv_bench.studies.ladder.claims import Trial
from asv_bench.studies.ladder.findings import FoundClaim, find
from asv_bench.studies.ladder.rung_pairs import MeasuresRungs, RungPairs
from asv_bench.studies.ladder.rung_process import RungAnswer
from asv_bench.studies.ladder.rung_run import STEP_TIME, WATERFALL_WORKLOAD
from asv_bench.studies.ladder.rungs import Rung


class CountingProcesses(MeasuresRungs, Protocol):
    """What measures and counts rungs: `rung_process.RungProcesses`, or a test's stand-in."""

    def count(self, rungs: Sequence[Rung]) -> dict[str, dict[str, int]]: ...


class Watcher(Protocol):
    """Who is told how far a run is."""

    def ran(self, rung: Rung, answer: RungAnswer) -> None:
        """Say that a process ended."""
        ...

    def found(self, claim: FoundClaim) -> None:
        """Say that a claim has its answer."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredRung:
    """One rung of the waterfall.

    Attributes
    ----------
    rung
        Which.
    step_ms
        Milliseconds of a decode step, in the least disturbed of the process's runs.
    runs_ms
        Of each run.
    same_requests, requests
        Requests that generated what the lowest rung's did, of so many.
    parted
        Requests of the token check whose fused tokens part from the plain ones at a near tie.
    counters
        Of one steady step.
    answer
        Everything that the process said.
    """

    rung: Rung
    step_ms: float
    runs_ms: tuple[float, ...]
    same_requests: int
    requests: int
    parted: int
    counters: Mapping[str, int]
    answer: RungAnswer

    def to_json(self) -> dict[str, Any]:
        """The rung as JSON-ready values, without the process's own."""
        return {
            "rung": self.rung.label,
            "what": self.rung.what,
            "seed": self.rung.seed,
            "step_ms": self.step_ms,
            "runs_ms": list(self.runs_ms),
            "same_requests": self.same_requests,
            "requests": self.requests,
            "parted": self.parted,
            "counters": dict(self.counters),
            "gpu": None if self.answer.gpu is None else asdict(self.answer.gpu),
        }


def measure_waterfall(
    processes: CountingProcesses,
    rungs: Sequence[Rung],
    places: Sequence[Place],
    watcher: Watcher,
    *,
    is_exact: bool,
) -> list[MeasuredRung]:
    """Check every rung's tokens, measure it in one process, and count a step of it.

    Parameters
    ----------
    processes
        Starts them.
    rungs
        In order.
    places
        Where to measure, one process at a time on each.
    watcher
        Told of each process.
    is_exact
        Whether the measured runs' tokens must be equal too: in full precision.

    Raises
    ------
    MeasurementFailed
        If a rung's tokens differ from the lowest one's.
    LifeFailed
        If a process gave no answer.
    """
    free: queue.SimpleQueue[Place] = queue.SimpleQueue()
    for place in places:
        free.put(place)

    def measure(rung: Rung) -> RungAnswer:
        place = free.get()
        try:
            answer = processes.measure(rung, [WATERFALL_WORKLOAD], place, check=True)
        finally:
            free.put(place)
        watcher.ran(rung, answer)
        return answer

    with ThreadPoolExecutor(len(places) + 1) as pool:
        try:
            counting = pool.submit(processes.count, rungs)
            if not places[0].gpus:
                # Where the processor is what is measured, nothing runs beside it.
                counting.result()
            answers = list(pool.map(measure, rungs))
            counters = counting.result()
        except BaseException:
            # The threads wait for processes, and leaving the pool waits for the threads.
            processes.stop()
            raise
    require_equal_tokens(rungs, answers, is_exact=is_exact)
    first = answers[0].workloads[WATERFALL_WORKLOAD]["digests"]
    return [
        _measured(rung, answer, first, counters[rung.label])
        for rung, answer in zip(rungs, answers, strict=True)
    ]


def require_equal_tokens(
    rungs: Sequence[Rung], answers: Sequence[RungAnswer], *, is_exact: bool
) -> None:
    """Raise MeasurementFailed unless every rung generated the lowest one's tokens."""
    for rung, answer in zip(rungs[1:], answers[1:], strict=True):
        compared = {"the token check": (_checked(answers[0]), _checked(answer))}
        if is_exact:
            compared |= {
                name: (answers[0].workloads[name]["digests"], answer.workloads[name]["digests"])
                for name in answer.workloads
            }
        for where, (expected, digests) in compared.items():
            differing = [place for place, digest in enumerate(digests) if digest != expected[place]]
            if differing or len(digests) != len(expected):
                raise MeasurementFailed(
                    f"rung {rung.label} generated other tokens than rung {rungs[0].label} for "
                    f"{len(differing)} of {len(expected)} requests of {where}, the first of them "
                    f"number {min(differing, default=0)}; rungs may differ in time only."
                )


def try_claims(
    processes: MeasuresRungs,
    trials: Sequence[Trial],
    places: Sequence[Place],
    plan: ComparisonPlan,
    watcher: Watcher,
    samples: list[dict[str, Any]],
) -> list[FoundClaim]:
    """Compare the rungs of every claim; pairs are put into `samples` as they come."""
    source = RungPairs(processes, trials, places, watcher.ran)
    found: list[FoundClaim] = []
    for trial in trials:
        seed = trial.claim.seed

        def on_pair(progress: object, measured: Mapping[str, Pair], seed: str = seed) -> None:
            if measured:
                samples.extend(pair.to_json() for pair in source.whole(seed, measured[seed]))

        design, metric = two_cells(trial.base.label, trial.head.label), Metric(seed, "seconds")
        [comparison] = CommitComparison(design, [metric], plan).run(source, on_pair)
        found.append(find(trial, comparison, source.pairs[seed], plan))
        watcher.found(found[-1])
    return found


def processes_expected(rungs: Sequence[Rung], trials: Sequence[Trial], pairs: int) -> int:
    """How many measured processes a run takes at most, replaced pairs left out."""
    return len(rungs) + 2 * pairs * len(trials)


def _measured(
    rung: Rung, answer: RungAnswer, first: Sequence[str], counters: Mapping[str, int]
) -> MeasuredRung:
    measured = answer.workloads[WATERFALL_WORKLOAD]
    same = sum(one == other for one, other in zip(measured["digests"], first, strict=True))
    return MeasuredRung(
        rung=rung,
        step_ms=1e3 * measured["figures"][STEP_TIME],
        runs_ms=tuple(1e3 * run[STEP_TIME] for run in measured["runs"]),
        same_requests=same,
        requests=len(first),
        parted=answer.check["parted"] if answer.check else 0,
        counters=counters,
        answer=answer,
    )


def _checked(answer: RungAnswer) -> list[str]:
    if answer.check is None:
        raise MeasurementFailed("a rung's process was not asked to check its tokens.")
    digests: list[str] = answer.check["digests"]
    return digests
