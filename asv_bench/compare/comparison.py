"""Comparing two commits: pairs in ABBA order, looks as planned, an answer for each benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from asv_bench.compare.judging import judge, weigh
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.process.samples import Absence, Pair, PairSource, SampleFailed

MOST_FAILURES = 3
"""Failed processes of a commit that can be measured, after which its benchmarks are given up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a comparison is.

    Attributes
    ----------
    measured
        Pairs, discarded ones included.
    kept
        Pairs that the benchmark with the fewest has.
    next_look, cap
        Kept pairs at which the evidence is judged next, and the last time.
    open_benchmarks
        Those without an answer yet.
    """

    measured: int
    kept: int
    next_look: int
    cap: int
    open_benchmarks: tuple[str, ...]


OnPair = Callable[[Progress, Mapping[str, Pair]], None]
"""Called in the caller's thread after each pair, with what it measured."""
OnAnswer = Callable[[Comparison], None]
"""Called in the caller's thread when a benchmark has its answer."""


@dataclass(slots=True)
class _Case:
    """One benchmark on its way to a verdict."""

    kept: list[Pair] = field(default_factory=list)
    discarded: list[Pair] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    answer: Comparison | None = None


def compare_commits(
    source: PairSource,
    base: str,
    head: str,
    benchmarks: Sequence[str],
    plan: ComparisonPlan | None = None,
    on_pair: OnPair | None = None,
    on_answer: OnAnswer | None = None,
) -> list[Comparison]:
    """Compare two commits until every benchmark has a clear answer or the plan's cap is reached.

    Pairs alternate in order (base first, head first, head first, base first), on each of the
    source's devices by itself, so that a drift of the machine favours neither commit. Pairs that
    the source discards are replaced. A benchmark with a clear answer is measured no further.

    Parameters
    ----------
    source
        Measures pairs.
    base, head
        Full hashes; a positive effect means that `head` is slower.
    benchmarks
        Names with parameters.
    plan
        None: the standard one.
    on_pair
        Told of every pair.
    on_answer
        Told of every answer, so that those given before an interruption are not lost.

    Returns
    -------
    list of Comparison
        One for each benchmark, in their order.

    Raises
    ------
    CommitUnusable
        If one of the commits cannot be measured.
    """
    plan = plan or ComparisonPlan()
    return _Comparing(source, base, head, benchmarks, plan, on_pair, on_answer).run()


def summarize_pairs(
    base: str,
    head: str,
    benchmark: str,
    pairs: Sequence[Pair],
    plan: ComparisonPlan,
    verdict: Verdict = Verdict.INCONCLUSIVE,
    *,
    discarded: int = 0,
    reason: str = "",
) -> Comparison:
    """A comparison with this verdict, and the effect that the pairs show, whatever their number."""
    if not pairs:
        return Comparison(benchmark, base, head, verdict, pairs_discarded=discarded, reason=reason)
    entry = weigh([pair.log_ratio for pair in pairs], plan)
    return Comparison(
        benchmark=benchmark,
        base=base,
        head=head,
        verdict=verdict,
        effect=entry.effect,
        interval=entry.interval,
        confidence=plan.confidence,
        p=entry.p,
        wilcoxon_p=entry.wilcoxon_p,
        equivalence_p=entry.equivalence_p,
        pairs_used=len(pairs),
        pairs_discarded=discarded,
        base_value=statistics.median(pair.base.value for pair in pairs),
        head_value=statistics.median(pair.head.value for pair in pairs),
        reason=reason,
    )


class _Comparing:
    def __init__(
        self,
        source: PairSource,
        base: str,
        head: str,
        benchmarks: Sequence[str],
        plan: ComparisonPlan,
        on_pair: OnPair | None,
        on_answer: OnAnswer | None,
    ) -> None:
        self._source = source
        self._base, self._head = base, head
        self._plan = plan
        self._on_pair = on_pair
        self._on_answer = on_answer
        self._cases = {name: _Case() for name in benchmarks}
        self._measured = 0
        self._next_look = plan.looks[0]
        # Devices start in turn with either order, so that few pairs on many are balanced too.
        self._turns = {device: 2 * index for index, device in enumerate(source.devices)}

    def run(self) -> list[Comparison]:
        for commit in (self._base, self._head):
            for name, absence in self._source.prepare(commit).items():
                self._leave_out(name, commit, absence)
        with ThreadPoolExecutor(len(self._source.devices)) as pool:
            try:
                for look, pairs in enumerate(self._plan.looks):
                    if not self._open():
                        break
                    self._next_look = pairs
                    self._gather(pairs, pool)
                    self._look(look, pairs)
            except BaseException:
                # The threads wait for processes, and leaving the pool waits for the threads.
                self._source.stop()
                raise
        answers = [case.answer for case in self._cases.values()]
        return [answer for answer in answers if answer is not None]

    def _leave_out(self, name: str, commit: str, absence: Absence) -> None:
        case = self._cases.get(name)
        if case is not None and case.answer is None:
            verdict = Verdict.FAILED if absence.has_failed else Verdict.NOT_MEASURED
            reason = f"commit {commit[:8]}: {absence.reason}"
            self._close(name, (), verdict, reason)

    def _open(self) -> list[str]:
        return [name for name, case in self._cases.items() if case.answer is None]

    def _missing(self, wanted: int) -> int:
        """Pairs that some open benchmark lacks; none where too many were measured in vain."""
        lacks = 0
        for name in self._open():
            case = self._cases[name]
            if len(case.discarded) + len(case.failures) < self._plan.max_discarded:
                lacks = max(lacks, wanted - len(case.kept))
        return lacks

    def _gather(self, wanted: int, pool: ThreadPoolExecutor) -> None:
        running: dict[Future[Mapping[str, Pair]], str] = {}
        idle = list(self._source.devices)
        while True:
            while idle and len(running) < self._missing(wanted):
                device = idle.pop(0)
                running[self._submit(device, pool)] = device
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                idle.append(running.pop(future))
                self._take(future)

    def _submit(self, device: str, pool: ThreadPoolExecutor) -> Future[Mapping[str, Pair]]:
        head_first = self._turns[device] % 4 in (1, 2)
        self._turns[device] += 1
        return pool.submit(
            self._source.pair,
            self._base,
            self._head,
            head_first=head_first,
            benchmarks=tuple(self._open()),
            device=device,
        )

    def _take(self, future: Future[Mapping[str, Pair]]) -> None:
        self._measured += 1
        try:
            pairs = future.result()
        except SampleFailed as failure:
            self._count(failure)
            pairs = {}
        for name, pair in pairs.items():
            case = self._cases[name]
            (case.kept if pair.discarded is None else case.discarded).append(pair)
        if self._on_pair is not None:
            open_benchmarks = tuple(self._open())
            kept = min((len(self._cases[name].kept) for name in open_benchmarks), default=0)
            progress = Progress(
                self._measured, kept, self._next_look, self._plan.cap, open_benchmarks
            )
            self._on_pair(progress, pairs)

    def _count(self, failure: SampleFailed) -> None:
        for name in failure.benchmarks:
            case = self._cases[name]
            case.failures.append(str(failure))
            if len(case.failures) >= MOST_FAILURES and case.answer is None:
                self._close(name, case.kept, Verdict.FAILED, str(failure))

    def _look(self, look: int, pairs: int) -> None:
        is_last = look == len(self._plan.looks) - 1
        used = {name: self._cases[name].kept[:pairs] for name in self._open()}
        enough = {name: kept for name, kept in used.items() if len(kept) == pairs}
        evidence = {
            name: weigh([pair.log_ratio for pair in kept], self._plan)
            for name, kept in enough.items()
        }
        verdicts = judge(evidence, look, self._hypotheses(), self._plan)
        for name, verdict in verdicts.items():
            if verdict.is_clear or is_last:
                self._close(name, enough[name], verdict, "")
        for name in used.keys() - enough.keys():
            case = self._cases[name]
            reason = (
                f"{len(case.discarded) + len(case.failures)} pairs were measured in vain, more "
                f"than may be replaced; {self._example(case)}"
            )
            self._close(name, used[name], Verdict.INCONCLUSIVE, reason)

    def _hypotheses(self) -> int:
        """Benchmarks that Holm's procedure counts: all that were measured and did not differ."""
        counted = (None, Verdict.EQUIVALENT, Verdict.INCONCLUSIVE)
        verdicts = [case.answer and case.answer.verdict for case in self._cases.values()]
        return sum(verdict in counted for verdict in verdicts)

    def _example(self, case: _Case) -> str:
        if case.failures:
            return case.failures[-1]
        return case.discarded[-1].discarded or ""

    def _close(self, name: str, pairs: Sequence[Pair], verdict: Verdict, reason: str) -> None:
        """Give a benchmark its answer."""
        case = self._cases[name]
        case.answer = summarize_pairs(
            self._base,
            self._head,
            name,
            pairs,
            self._plan,
            verdict,
            discarded=len(case.discarded) + len(case.failures),
            reason=reason,
        )
        if self._on_answer is not None:
            self._on_answer(case.answer)
