"""Suspicions from stored results: compared together where they can be, named for what they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from simulated_pairs import BASE, HEAD, ScriptedPairs

from asv_bench.compare.catalog import Entry
from asv_bench.compare.confirmation import Standing, Suspicion, confirm, entry_named
from asv_bench.errors import Refused

OTHER = "d" * 40
EFFECTS = {"slow": 1.05, "fast": 0.95, "same": 1.0, "unclear": 1.0}


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
    suspicions = [
        Suspicion("slow", BASE, HEAD, 0.05),
        Suspicion("slow", BASE, OTHER, -0.05),
        Suspicion("fast", BASE, HEAD, -0.05),
        Suspicion("fast", BASE, OTHER, 0.05),
        Suspicion("same", BASE, HEAD, 0.03),
        Suspicion("unclear", BASE, HEAD, 0.03),
    ]
    sources = Sources()
    found = confirm(suspicions, sources).confirmations
    assert [entry.suspicion for entry in found] == suspicions
    assert [entry.standing for entry in found] == [
        Standing.REGRESSION,
        Standing.REFUTED,
        Standing.IMPROVEMENT,
        Standing.REFUTED,
        Standing.REFUTED,
        Standing.UNRESOLVED,
    ]
    assert sources.asked == [("slow", "fast", "same", "unclear"), ("slow", "fast")]
    assert found[0].to_json()["standing"] == "regression"
    assert found[0].to_json()["effect"] == pytest.approx(0.05, abs=0.001)


def test_a_commit_that_is_unusable_now_is_no_verdict_and_stops_nothing() -> None:
    suspicions = [Suspicion("slow", BASE, OTHER, 0.05), Suspicion("slow", BASE, HEAD, 0.05)]
    sources = Sources(unusable={OTHER: "it has no engine"})
    found = confirm(suspicions, sources).confirmations
    assert [entry.standing for entry in found] == [Standing.NOT_COMPARED, Standing.REGRESSION]
    assert "it has no engine" in found[0].comparison.reason


def test_stored_series_are_found_among_todays_benchmarks() -> None:
    entries = [
        Entry("m.C.track_x('p', 1)", "m.C.track_x-0", "seconds"),
        Entry("m.C.track_x('q', 1)", "m.C.track_x-1", "seconds"),
        Entry("m.f", "m.f", "seconds"),
    ]
    assert entry_named(entries, "m.C.track_x", ("q", "1")).identifier == "m.C.track_x-1"
    assert entry_named(entries, "m.f", ()).identifier == "m.f"
    with pytest.raises(Refused, match=r"no m.C.track_x\(q, 2\)"):
        entry_named(entries, "m.C.track_x", ("q", "2"))
