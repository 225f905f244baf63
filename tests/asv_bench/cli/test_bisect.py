"""`bisect`: from two names to an answer, a record, an exit code and a state to go on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from simulated_pairs import SourcedSuite
from toy_repository import ToyRepository
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.measure import log
from asv_bench.measure.samples import CommitUnusable, Pair, SampleFailed
from asv_bench.session import session
from asv_bench.session.exit_codes import ExitCode
from asv_bench.subjects import choose
from tests.simulations.commits import SIMULATED_BENCHMARK, SimulatedCommits
from tests.simulations.noise import Noise

QUIET = Noise(process=0.002, drift=0.002, outliers=0.0)


class Interrupted(SimulatedCommits):
    """A machine at which somebody presses Ctrl-C after some pairs."""

    def __init__(self, log_times: Mapping[str, float], after: int | None, seed: int) -> None:
        super().__init__(log_times, QUIET, seed)
        self.after = after

    def pair(self, base: str, head: str, **options) -> Mapping[str, Pair]:
        if self.after is not None and self.measured["simulated"] >= self.after:
            raise KeyboardInterrupt
        return super().pair(base, head, **options)


class Bench:
    """A repository of 20 commits, a machine, and the command line."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        changes = [(str(number), f"Change number {number}") for number in range(21)]
        self.repository = ToyRepository(root)
        self.hashes = self.repository.begin("number", *changes)
        self.benchmarks = [SIMULATED_BENCHMARK]
        self.machine = self.with_step(None)
        monkeypatch.setattr(session, "WORKPLACE", root)
        monkeypatch.setattr(log, "FOLDER", root / ".asv" / "pairs")
        monkeypatch.setattr(choose, "OwnSuite", self.suite)
        monkeypatch.setattr(choose, "REPOSITORY", root)
        monkeypatch.chdir(root)

    def with_step(
        self, place: int | None, effect: float = 0.04, after: int | None = None, seed: int = 5
    ) -> Interrupted:
        times = {
            commit: effect if place is not None and number >= place else 0.0
            for number, commit in enumerate(self.hashes)
        }
        self.machine = Interrupted(times, after, seed)
        return self.machine

    def suite(self, root: Path) -> SourcedSuite:
        return SourcedSuite(root, self.machine, self.benchmarks)

    def run(self, *arguments: str) -> tuple[int, str, dict]:
        path = self.root / "record.json"
        path.unlink(missing_ok=True)
        good, options = "HEAD~20", arguments
        if arguments and arguments[0].startswith("HEAD"):
            good, *options = arguments
        result = CliRunner().invoke(
            build_app(), ["bisect", good, "HEAD", "--json", str(path), *options]
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        record = json.loads(path.read_text()) if path.exists() else {}
        return result.exit_code, result.output, record

    @property
    def measured(self) -> int:
        return self.machine.measured["simulated"]


def with_packages(bench: Bench, engines: str) -> None:
    """Make the history anew: an engine for each letter, the same for the same letter."""
    bench.hashes = []
    bench.repository.git("checkout", "--quiet", "--orphan", "with-packages")
    (bench.root / "engine").mkdir()
    for number, engine in enumerate(engines):
        (bench.root / "engine" / "__init__.py").write_text(engine)
        bench.repository.git("add", "engine")
        bench.repository.git("commit", "--quiet", "--allow-empty", "-m", f"Change number {number}")
        bench.hashes.append(bench.repository.git("rev-parse", "HEAD"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


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


@pytest.mark.parametrize(("step", "options"), [(None, ()), (8, ("--margin", "10"))])
def test_nothing_or_less_than_the_margin_is_no_regression(
    bench: Bench, step: int | None, options: tuple[str, ...]
) -> None:
    bench.with_step(step)
    code, said, record = bench.run(*options)
    assert code == ExitCode.GOOD
    assert "no regression: the last commit is equivalent to the first" in said
    assert record["results"]["finding"]["gate"]["verdict"] == "equivalent"
    plan = record["settings"]["plan"]["comparison"]
    assert plan["margin"] == plan["minimum_effect"] == (0.1 if options else 0.01)


def test_an_improvement_is_looked_for_where_asked(bench: Bench) -> None:
    bench.with_step(8, effect=-0.04)
    assert bench.run()[0] == ExitCode.GOOD
    code, said, record = bench.run("--improvement")
    assert code == ExitCode.REGRESSION
    assert record["results"]["outcome"] == "improvement"
    assert f"first faster commit: {bench.hashes[8][:8]}" in said


def test_too_few_pairs_are_inconclusive(bench: Bench) -> None:
    bench.with_step(8)
    code, said, record = bench.run("--most-pairs", "1")
    assert (code, record["results"]["finding"]["outcome"]) == (4, "inconclusive")
    assert "inconclusive: " in said


def test_a_bisection_goes_on_where_it_was_interrupted_and_starts_over_after_its_answer(
    bench: Bench,
) -> None:
    bench.with_step(8, after=6)
    code, said, record = bench.run()
    assert (code, bench.measured) == (ExitCode.INTERRUPTED, 6)
    assert record["results"]["finding"] is None
    assert "Interrupted" in said
    with pytest.raises(Refused, match="no pairs of the same bisect"):
        bench.run("--resume", "--certain", "0.99")
    bench.with_step(8, seed=6)
    code, said, record = bench.run()
    assert code == ExitCode.REGRESSION
    assert "going on with 6 pairs" in said
    assert len(record["samples"]) == bench.measured + 6
    bench.with_step(8, seed=7)
    bench.run("--resume")
    assert bench.measured == 0
    _, said, record = bench.run()
    assert "going on" not in said
    assert len(record["samples"]) == bench.measured > 0
    bench.with_step(8, after=6)
    bench.run()
    bench.with_step(8)
    _, said, record = bench.run("--fresh")
    assert "going on" not in said
    assert len(record["samples"]) == bench.measured


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SampleFailed("b" * 40, (SIMULATED_BENCHMARK,), "a hiccup"), ExitCode.FAILED),
        (CommitUnusable("b" * 40, "a hiccup"), ExitCode.FAILED),
        (CommitUnusable("b" * 40, "a hiccup", is_lacking=True), ExitCode.NOTHING_MEASURED),
    ],
)
def test_an_end_that_gives_no_figure_leaves_a_record(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: MeasurementFailed, code: ExitCode
) -> None:
    def fails(*_: str, **options: object) -> None:
        raise error

    monkeypatch.setattr(bench.machine, "pair", fails)
    ended, said, record = bench.run()
    assert ended == code == record["results"]["exit_code"]
    assert "a hiccup" in said
    assert "a hiccup" in record["notes"][0]


def test_what_cannot_be_searched_is_refused(bench: Bench) -> None:
    result = CliRunner().invoke(build_app(), ["bisect", "HEAD~3", "."])
    assert isinstance(result.exception, Refused)
    assert "commit what is to be searched" in str(result.exception)
    bench.benchmarks = ["a.track_x(8)", "a.track_x(64)"]
    with pytest.raises(Refused, match=r"finds 2 metrics.*one is bisected at a time"):
        bench.run("--benchmark", "track_x")
    assert bench.measured == 0


def test_commits_left_out_are_listed_with_their_reason(bench: Bench) -> None:
    machine = bench.with_step(8)
    del machine._log_times[bench.hashes[8]]
    del machine._log_times[bench.hashes[7]]
    code, said, _ = bench.run()
    assert code == ExitCode.REGRESSION
    assert "one of these 3, of which only the last could be measured" in said
    assert f"{bench.hashes[7][:8]} was left out" in said


def test_commits_with_the_engine_of_the_one_before_are_stepped_over(bench: Bench) -> None:
    # The engine goes back to an earlier one at number 16, which is a change too.
    with_packages(bench, "aaabbbcddddeffffaggggg")
    bench.with_step(11)
    _, said, record = bench.run("HEAD~21")
    kept = [entry["hash"] for entry in record["settings"]["commits"]]
    assert kept == [bench.hashes[number] for number in (3, 6, 7, 11, 12, 16, 17)]
    assert "14 of 21 commits are not measured" in said
    assert "--anyway measures them" in said
    assert record["results"]["finding"]["suspects"] == [bench.hashes[11]]
    assert {probe["commit"] for probe in record["samples"]} <= set(kept)
    _, said, record = bench.run("HEAD~21", "--anyway")
    assert len(record["settings"]["commits"]) == 21
    assert "are not measured" not in said


def test_the_same_engine_at_both_ends_is_not_measured(bench: Bench) -> None:
    with_packages(bench, "a" * 10 + "b" * 5 + "a" * 6)
    code, said, record = bench.run()
    assert code == record["results"]["exit_code"] == ExitCode.GOOD
    assert "no regression: what is measured is the same in both, nothing to measure" in said
    assert record["results"]["finding"]["gate"]["verdict"] == "same"
    assert bench.measured == 0
    bench.with_step(None)
    bench.run("--anyway")
    assert bench.measured > 0
