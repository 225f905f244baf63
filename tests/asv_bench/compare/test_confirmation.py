"""Suspicions from stored results: compared together where they can be, named for what they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from simulated_pairs import BASE, HEAD, ScriptedPairs, seconds

from asv_bench.compare.confirmation import Standing, Suspicion, confirm

OTHER = "d" * 40
EFFECTS = {"slow": 1.05, "fast": 0.95, "same": 1.0, "unclear": 1.0}

METRICS = {metric.name: metric for metric in seconds(*EFFECTS)}


class Sources:
    """Gives scripted pairs and keeps what was asked for."""

    def __init__(self, unusable: dict[str, str] | None = None) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._unusable = unusable or {}

    @contextmanager
    def __call__(self, benchmarks: Sequence[str]) -> Iterator[ScriptedPairs]:
        self.asked.append(tuple(benchmarks))

        def ratio(name: str, number: int) -> float:
            swing = 0.05 if name == "unclear" else 0.0001
            return EFFECTS[name] + (swing if number % 2 else -swing)

        yield ScriptedPairs(ratio, benchmarks=tuple(benchmarks), unusable=self._unusable)


def test_each_suspicion_gets_its_standing_and_equal_commits_one_comparison() -> None:
    seemed = {
        Suspicion(BASE, HEAD, "slow"): (True, Standing.REGRESSION),
        Suspicion(BASE, OTHER, "slow"): (False, Standing.REFUTED),
        Suspicion(BASE, HEAD, "fast"): (False, Standing.IMPROVEMENT),
        Suspicion(BASE, OTHER, "fast"): (True, Standing.REFUTED),
        Suspicion(BASE, HEAD, "same"): (True, Standing.REFUTED),
        Suspicion(BASE, HEAD, "unclear"): (True, Standing.UNRESOLVED),
    }
    sources = Sources()
    answers = confirm(seemed, METRICS, sources).by_suspicion
    for suspicion, (is_worse, standing) in seemed.items():
        assert Standing.of(answers[suspicion], is_worse=is_worse) is standing
    assert sources.asked == [("slow", "fast", "same", "unclear"), ("slow", "fast")]


def test_a_commit_that_is_unusable_now_is_no_verdict_and_stops_nothing() -> None:
    unusable, usable = Suspicion(BASE, OTHER, "slow"), Suspicion(BASE, HEAD, "slow")
    sources = Sources(unusable={OTHER: "it has no engine"})
    answers = confirm([unusable, usable], METRICS, sources).by_suspicion
    assert Standing.of(answers[unusable], is_worse=True) is Standing.NOT_COMPARED
    assert Standing.of(answers[usable], is_worse=True) is Standing.REGRESSION
    assert "it has no engine" in answers[unusable].reason
