"""`bisect`: from two names to an answer, a record, an exit code and a state to go on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from simulated_pairs import Answer, SourcedSuite
from toy_repository import ToyRepository

from asv_bench.errors import Refused
from asv_bench.measure.samples import CommitUnusable, Pair
from asv_bench.session.exit_codes import ExitCode
from asv_bench.subjects import choose
from tests.simulations.commits import SIMULATED_BENCHMARK, SimulatedCommits
from tests.simulations.noise import Noise

QUIET = Noise(process=0.002, drift=0.002, outliers=0.0)


class Machine(SimulatedCommits):
    """A machine at which somebody presses Ctrl-C after some pairs, or all of whose pairs fail."""

    after: int | None = None
    fails: Exception | None = None

    def pair(self, base: str, head: str, **options) -> Mapping[str, Pair]:
        if self.fails is not None:
            raise self.fails
        if self.after is not None and self.measured["simulated"] >= self.after:
            raise KeyboardInterrupt
        return super().pair(base, head, **options)


class Bench:
    """A repository with a commit for each engine, a machine, and the command line."""

    def __init__(self, root: Path, invoke: Callable[..., Answer], engines: str) -> None:
        self.repository = ToyRepository(root)
        changes = [(engine, f"Change number {at}") for at, engine in enumerate(engines)]
        self.hashes = self.repository.begin("engine/__init__.py", *changes)
        self.benchmarks = [SIMULATED_BENCHMARK]
        self.invoke = invoke

    def with_step(
        self,
        place: int = 99,
        effect: float = 0.04,
        after: int | None = None,
        seed: int = 5,
        lost: Sequence[int] = (),
    ) -> None:
        """Another machine, on which commits from a place on are slower, and some not to be had."""
        times = {one: effect * (at >= place) for at, one in enumerate(self.hashes)}
        for number in lost:
            del times[self.hashes[number]]
        self.machine = Machine(times, QUIET, seed)
        self.machine.after = after

    def run(self, *options: str, good: str = "HEAD~20", bad: str = "HEAD") -> Answer:
        suite = SourcedSuite(self.repository.root, self.machine, self.benchmarks)
        return self.invoke(suite, "bisect", good, bad, *options)

    @property
    def measured(self) -> int:
        return self.machine.measured["simulated"]


@pytest.fixture
def bench(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    invoke: Callable[..., Answer],
    request: pytest.FixtureRequest,
) -> Bench:
    """One of 21 engines, or of those that a test names."""
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.setattr(choose, "REPOSITORY", root)
    monkeypatch.chdir(root)
    return Bench(root, invoke, getattr(request, "param", "abcdefghijklmnopqrstu"))


def test_the_culprit_is_named_with_subject_and_author(bench: Bench) -> None:
    bench.with_step(8)
    code, said, record = bench.run()
    assert code == ExitCode.REGRESSION
    assert f"first slower commit: {bench.hashes[8][:8]} Change number 8 (Test)" in said
    assert f"{bench.hashes[8][:8]} against {bench.hashes[7][:8]}" in said
    results = record["results"]
    assert results["finding"]["suspects"] == [bench.hashes[8]]
    assert results["outcome"] == "regression"
    assert results["exit_code"] == code
    assert sum(results["pairs"].values()) == len(record["samples"]) == bench.measured
    assert record["settings"]["commits"][7]["subject"] == "Change number 8"
    searched = [sample for sample in record["samples"] if sample["stage"] == "search"]
    assert all(sample["guess"]["probability"] <= 1 for sample in searched)
    assert all(sample["pair"]["log_ratio"] is not None for sample in searched)


@pytest.mark.parametrize(
    ("effect", "options", "code", "outcome", "words"),
    [
        (0.0, (), ExitCode.GOOD, "none", "no regression: the last commit is equivalent"),
        # Less than the margin.
        (0.04, ("--margin", "10"), ExitCode.GOOD, "none", "no regression: the last commit is"),
        (-0.04, (), ExitCode.GOOD, "none", "no regression"),
        (-0.04, ("--improvement",), ExitCode.REGRESSION, "found", "first faster commit: "),
        (0.04, ("--most-pairs", "1"), ExitCode.INCONCLUSIVE, "inconclusive", "inconclusive: "),
    ],
)
def test_the_outcome_is_said_recorded_and_an_exit_code(
    bench: Bench,
    effect: float,
    options: tuple[str, ...],
    code: ExitCode,
    outcome: str,
    words: str,
) -> None:
    bench.with_step(8, effect)
    ended, said, record = bench.run(*options)
    assert (ended, record["results"]["finding"]["outcome"]) == (code, outcome)
    assert words in said
    plan = record["settings"]["plan"]["comparison"]
    assert plan["margin"] == plan["minimum_effect"] == (0.1 if "--margin" in options else 0.01)


def test_a_bisection_goes_on_where_it_was_interrupted(bench: Bench) -> None:
    bench.with_step(8, after=6)
    code, said, record = bench.run()
    assert (code, bench.measured) == (ExitCode.INTERRUPTED, 6)
    assert record["results"]["so_far"] is True
    assert record["results"]["finding"]["outcome"] == "inconclusive"
    assert "it was interrupted" in said
    with pytest.raises(Refused, match="no pairs of the same bisect"):
        bench.run("--resume", "--certain", "0.99")
    bench.with_step(8, seed=6)
    code, said, record = bench.run()
    assert code == ExitCode.REGRESSION
    assert "going on with 6 pairs" in said
    assert len(record["samples"]) == bench.measured + 6


def test_an_end_that_gives_no_figure_leaves_a_record(bench: Bench) -> None:
    bench.with_step()
    bench.machine.fails = CommitUnusable("b" * 40, "a hiccup", is_lacking=True)
    ended, said, record = bench.run()
    assert ended == ExitCode.NOTHING_MEASURED == record["results"]["exit_code"]
    assert "a hiccup" in said
    assert "a hiccup" in record["notes"][0]


def test_what_cannot_be_searched_is_refused(bench: Bench) -> None:
    bench.with_step()
    with pytest.raises(Refused, match="commit what is to be searched"):
        bench.run(bad=".")
    bench.benchmarks = ["a.track_x(8)", "a.track_x(64)"]
    with pytest.raises(Refused, match=r"'8' 'no' finds 2 metrics.*one is bisected at a time"):
        bench.run("--benchmark", "8", "--metric", "no")
    assert bench.measured == 0


def test_commits_left_out_are_listed_with_their_reason(bench: Bench) -> None:
    bench.with_step(8, lost=(7, 8))
    code, said, _ = bench.run()
    assert code == ExitCode.REGRESSION
    assert "one of these 3, of which only the last could be measured" in said
    assert f"{bench.hashes[7][:8]} was left out" in said


# The engine goes back to an earlier one at number 7, which is a change too.
@pytest.mark.parametrize("bench", ["aabbcddaee"], indirect=True)
def test_commits_with_the_engine_of_the_one_before_are_stepped_over(bench: Bench) -> None:
    bench.with_step(5)
    _, said, record = bench.run(good="HEAD~9")
    kept = [entry["hash"] for entry in record["settings"]["commits"]]
    assert kept == [bench.hashes[number] for number in (2, 4, 5, 7, 8)]
    assert "4 of 9 commits are not measured" in said
    assert record["results"]["finding"]["suspects"] == [bench.hashes[5]]
    assert {probe["commit"] for probe in record["samples"]} <= set(kept)
    _, said, record = bench.run("--anyway", good="HEAD~9")
    assert len(record["settings"]["commits"]) == 9
    # The same engine at both ends.
    bench.with_step(5)
    code, said, record = bench.run(good="HEAD~9", bad="HEAD~2")
    assert code == record["results"]["exit_code"] == ExitCode.GOOD
    assert "what is measured is the same in both, nothing to measure" in said
    assert record["results"]["finding"]["gate"]["verdict"] == "same"
    assert bench.measured == 0
