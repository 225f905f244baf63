"""How often the whole procedure errs, on simulated processes; seeded, so that a red run repeats."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from stored_pairs import pairs_with_itself
from typer.testing import CliRunner

from asv_bench.compare.plan import ComparisonPlan, Criterion, Look
from asv_bench.compare.verdict import Verdict
from asv_bench.lab.calibration import simulate as simulate_module
from asv_bench.lab.calibration import simulate_bisect
from asv_bench.lab.calibration.simulate import Tally, simulate
from asv_bench.lab.calibration.simulate_bisect import Scenario
from asv_bench.lab.calibration.simulated_noise import BASE, HEAD, Noise, SimulatedPairs
from asv_bench.lab.calibration.situations import SITUATIONS, Situation

RUNS = 2000


def tally(effect: float, noise: str, runs: int = RUNS, **extra) -> Tally:
    return simulate(effect, SITUATIONS[noise], runs, seed=7, **extra)


KEPT = [
    name
    for name, noise in SITUATIONS.items()
    if name not in ("a mode of the head", "pool blind to modes")
]
"""Where all that is promised is kept."""


@pytest.mark.parametrize("noise", KEPT)
def test_a_commit_is_hardly_ever_different_from_itself(noise: str) -> None:
    found = tally(0.0, noise)
    # Of 2,000, 4 are promised; 11 would be rarer than 1 in 1,000.
    assert found.false_alarms <= 11
    assert found.rate(Verdict.SLOWER) + found.rate(Verdict.FASTER) == found.false_alarms / RUNS
    assert found.broken(ComparisonPlan()) == []


def test_nor_is_one_of_ten_benchmarks() -> None:
    found = tally(0.0, "ordinary", runs=300, benchmarks=10)
    assert found.false_alarms <= 5


@pytest.mark.parametrize(
    ("noise", "effect", "power"),
    [
        ("ordinary", 0.02, 0.90),
        ("ordinary", 0.03, 0.98),
        ("quiet", 0.015, 0.98),
        ("quiet", 0.02, 0.99),
        ("heavy", 0.03, 0.96),
        ("heavy", 0.05, 0.99),
    ],
)
def test_a_difference_is_found(noise: str, effect: float, power: float) -> None:
    slower = tally(effect, noise, runs=200)
    faster = tally(1 / (1 + effect) - 1, noise, runs=200)
    assert slower.rate(Verdict.SLOWER) >= power
    assert faster.rate(Verdict.FASTER) >= power
    assert slower.rate(Verdict.EQUIVALENT) == slower.rate(Verdict.FASTER) == 0


def test_clear_answers_come_early() -> None:
    assert tally(0.05, "quiet", runs=100).mean_pairs < 6
    assert tally(0.05, "quiet", runs=100, has_pools=False).mean_pairs < 8
    assert tally(0.0, "quiet", runs=100).mean_pairs < 12
    assert tally(0.015, "ordinary", runs=100).mean_pairs > 18


@pytest.mark.parametrize("noise", KEPT)
def test_what_differs_by_the_margin_is_hardly_ever_called_equivalent(noise: str) -> None:
    found = tally(0.01, noise)
    assert found.rate(Verdict.EQUIVALENT) <= 0.018
    assert found.broken(ComparisonPlan()) == []


def test_a_broken_promise_is_named() -> None:
    sure = {"runs": 1000, "benchmarks": 1, "noise": "", "pairs": 0, "covered": 0}
    alarms = Tally(effect=0.0, verdicts={}, false_alarms=9, wrong_signs=0, **sure)
    assert alarms.broken(ComparisonPlan()) == ["false alarms"]
    equal = Tally(effect=0.01, verdicts={"equivalent": 25}, false_alarms=0, wrong_signs=0, **sure)
    assert equal.broken(ComparisonPlan()) == ["equivalent"]
    smaller = replace(equal, effect=0.009)
    assert smaller.broken(ComparisonPlan()) == []
    # Half of it again from as few as ten comparisons proves nothing.
    assert replace(equal, independent=10).broken(ComparisonPlan()) == []
    assert (alarms + replace(alarms, false_alarms=0)).broken(ComparisonPlan()) == []


def test_equal_commits_are_shown_to_be_equivalent_where_noise_allows() -> None:
    assert tally(0.0, "quiet").rate(Verdict.EQUIVALENT) > 0.98
    assert tally(0.0, "ordinary").rate(Verdict.EQUIVALENT) > 0.2


def test_intervals_hold_the_truth() -> None:
    for effect in (0.0, 0.015):
        assert tally(effect, "ordinary").coverage > 0.92


def test_four_looks_at_location_err_as_often_as_one_may() -> None:
    """At a level that 6,000 runs can tell from twice itself, however small the effect."""
    looks = tuple(Look(pairs, Criterion.LOCATION) for pairs in (12, 16, 20, 24))
    plan = ComparisonPlan(alpha=0.05, minimum_effect=0.0, equivalence_alpha=1e-9, looks=looks)
    found = simulate(0.0, Situation(Noise(outliers=0.0)), 6000, seed=3, plan=plan)
    assert 0.042 < found.false_alarms / 6000 < 0.059


def test_noise_is_what_it_says() -> None:
    noise = Noise(process=0.004, drift=0.01, memory=0.95, outliers=0.0)
    series = [
        np.array(list(itertools.islice(noise.figures(np.random.default_rng(seed)), 200)))
        for seed in range(200)
    ]
    values = np.array(series)
    assert values.std() == pytest.approx(math.hypot(0.004, 0.01), rel=0.05)
    correlation = np.corrcoef(values[:, 100], values[:, 101])[0, 1]
    assert correlation == pytest.approx(0.95 * 0.01**2 / (0.004**2 + 0.01**2), abs=0.1)
    spread = Noise(process=0.01, tail=3.0, drift=0.0, outliers=0.0)
    heavy = np.array(list(itertools.islice(spread.figures(np.random.default_rng(1)), 100_000)))
    assert heavy.std() == pytest.approx(0.01, rel=0.15)
    late = Noise(process=0.0, drift=0.0, outliers=0.1, outlier_size=0.05)
    slow = np.array(list(itertools.islice(late.figures(np.random.default_rng(2)), 20_000)))
    assert (slow > 0).mean() == pytest.approx(0.1, abs=0.01)
    assert slow[slow > 0].mean() == pytest.approx(0.05, rel=0.1)


def test_a_simulated_effect_is_the_heads_in_both_orders() -> None:
    silent = Noise(process=0.0, drift=0.0, outliers=0.0)
    source = SimulatedPairs({"a": 0.02, "b": 0.0}, silent, seed=1)
    for head_first in (False, True):
        pairs = source.pair(BASE, HEAD, head_first=head_first)
        assert pairs["a"].log_ratio == pytest.approx(math.log(1.02))
        assert pairs["b"].log_ratio == 0.0


def test_the_command_prints_a_table_and_writes_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate_module, "EFFECTS", (0.0, 0.05))
    monkeypatch.setattr(simulate_module, "SITUATIONS", {"quiet": SITUATIONS["quiet"]})
    monkeypatch.setattr(simulate_module, "SEVERAL_AT_ONCE", ("quiet",))
    app = typer.Typer()
    app.command()(simulate_module.run)
    path = tmp_path / "simulation.json"
    measured = tmp_path / "calibrated.json"
    measured.write_text(json.dumps({"samples": pairs_with_itself(48)}))
    arguments = ["--runs", "5", "--workers", "2", "--replay", str(measured), "--json", str(path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    tallies = json.loads(path.read_text())["results"]["tallies"]
    assert [(entry["effect"], entry["benchmarks"]) for entry in tallies] == [
        *((0.0, 1), (0.05, 1), (0.0, 1), (0.05, 1), (0.0, 10), (0.03, 10)),
    ]
    assert tallies[1]["verdicts"] == tallies[3]["verdicts"] == {"slower": 5}
    assert [entry["noise"] for entry in tallies[:4:2]] == ["quiet", "calibrated"]
    assert "+5.0 %" in done.output


def test_simulated_bisections_are_counted_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios = (Scenario("5 %", (0.05,), commits=8), Scenario("nothing", (), commits=8))
    monkeypatch.setattr(simulate_bisect, "SCENARIOS", scenarios)
    app = typer.Typer()
    app.command()(simulate_bisect.run)
    record, page = tmp_path / "record.json", tmp_path / "page.md"
    arguments = ["--runs", "2", "--json", str(record), "--markdown", str(page)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    rows = json.loads(record.read_text())["results"]["rows"]
    assert [row["right"] for row in rows] == [2, 2]
    assert "| nothing | 2 | 2 | 0 | 0 |" in page.read_text()
