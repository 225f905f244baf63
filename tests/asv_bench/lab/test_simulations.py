"""How often the procedures err, on figures whose truth is known; seeded: a red run repeats."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_pairs import pairs_with_itself

from asv_bench.bisect.finding import SearchPlan
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import Refused
from asv_bench.output.record import REPOSITORY
from tests.simulations import __main__ as command
from tests.simulations import bisect as simulate_bisect
from tests.simulations import changes as simulate_changes
from tests.simulations import compare as simulate_compare
from tests.simulations import labelled as score_labelled
from tests.simulations import rounds as simulate_rounds
from tests.simulations.bisect import Scenario, bisect_often, bisect_once
from tests.simulations.changes import KINDS, HistoryKind, judge
from tests.simulations.compare import Tally, simulate
from tests.simulations.noise import SITUATIONS, Noise, Situation

RUNS = 2000
VERDICTS = REPOSITORY / "reports" / "verdicts"


def tally(effect: float, noise: str, runs: int = RUNS, **extra) -> Tally:
    return simulate(effect, SITUATIONS[noise], runs, seed=7, **extra)


KEPT = [
    name
    for name, noise in SITUATIONS.items()
    if name not in ("a mode of the head", "pool blind to modes")
    and not name.startswith(("states of 1.25", "skewed head"))
]
"""Where all that is promised is kept."""


def some(every: Iterable[Any], is_quick: Callable[[Any], bool]) -> list[Any]:
    """All of them as parameters; what is not quick is thorough."""
    return [
        one if is_quick(one) else pytest.param(one, marks=pytest.mark.thorough) for one in every
    ]


QUICK = (
    *("ordinary", "two modes", "head 10 times noisier", "pool 4 times too tight"),
    "states of 2, pool of 1 session",
)
EACH_NOISE = pytest.mark.parametrize("noise", some(KEPT, QUICK.__contains__))


@EACH_NOISE
def test_a_commit_is_hardly_ever_different_from_itself(noise: str) -> None:
    found = tally(0.0, noise)
    # Of 2,000, 4 are promised; 11 would be rarer than 1 in 1,000.
    assert found.false_alarms <= 11
    assert found.rate(Verdict.SLOWER) + found.rate(Verdict.FASTER) == found.false_alarms / RUNS
    assert found.broken(ComparisonPlan()) == []


def test_a_server_that_loads_for_long_is_told_in_time() -> None:
    # Both load for 40 s at the same time, and are asked for 5 s in each of two pairs.
    lives = Noise(process=0.03, drift=0.0, outliers=0.0, lives=2, start=0.01)
    found = simulate(0.10, Situation(lives), 500, seed=7, has_pools=False)
    assert found.rate(Verdict.SLOWER) >= 0.99
    assert found.rate("pairs") * (40 + 2 * 2 * 5) <= 10 * 60
    assert simulate(0.0, Situation(lives), RUNS, seed=7).false_alarms <= 11


def test_nor_is_one_of_ten_benchmarks() -> None:
    assert tally(0.0, "ordinary", runs=300, benchmarks=10).false_alarms <= 5


def rounds_of(verb: str, effects: tuple[float, ...], *, is_in_turns: bool) -> dict[str, Any]:
    case = simulate_rounds.Case(verb, "two modes", effects, is_in_turns, seed=3)
    plan = ComparisonPlan()
    done = [part() for part in simulate_rounds.parts(case, 400, plan)]
    return simulate_rounds.row_of(case, done, plan)


@pytest.mark.thorough
def test_of_several_heads_the_slower_one_alone_is_told() -> None:
    row = rounds_of("compare", (0.0,) * 6 + (0.14,) + (0.0,) * 4, is_in_turns=False)
    assert row["false"] <= 5 / 400
    assert row["told"] == 1


@pytest.mark.parametrize(
    ("verb", "nothing", "change"),
    [("fixed", (0.0, 0.0), (0.14, 0.07)), ("swap", (0.0, 0.0, 0.0), (0.0, 0.14, 0.14))],
)
def test_contrasts_in_turns_err_no_more_and_are_told_as_early_as_one(
    verb: str, nothing: tuple[float, ...], change: tuple[float, ...]
) -> None:
    assert rounds_of(verb, nothing, is_in_turns=True)["false"] <= 5 / 400
    divided, in_turns = (rounds_of(verb, change, is_in_turns=one) for one in (False, True))
    assert divided["first_rounds"] > 9
    assert in_turns["first_rounds"] < 7
    assert in_turns["told"] == 1


@pytest.mark.parametrize("noise", ["normal 0.3 %", "normal 1 %", "lognormal"])
def test_intervals_of_three_and_four_pairs_hold_the_truth(noise: str) -> None:
    found = tally(0.3, noise)
    assert found.rate("pairs") < 6
    assert found.rate("covered") >= 0.94


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
    assert tally(0.05, "quiet", runs=100).rate("pairs") < 6
    assert tally(0.05, "quiet", runs=100, has_pools=False).rate("pairs") < 8
    assert tally(0.0, "quiet", runs=100).rate("pairs") < 12
    assert tally(0.015, "ordinary", runs=100).rate("pairs") > 18


def test_equal_commits_are_equivalent_where_noise_allows_and_intervals_hold_the_truth() -> None:
    assert tally(0.0, "quiet").rate(Verdict.EQUIVALENT) > 0.98
    assert tally(0.0, "ordinary").rate(Verdict.EQUIVALENT) > 0.2
    for effect in (0.0, 0.015):
        assert tally(effect, "ordinary").rate("covered") > 0.92


@EACH_NOISE
def test_what_differs_by_the_margin_is_hardly_ever_called_equivalent(noise: str) -> None:
    found = tally(0.01, noise)
    assert found.rate(Verdict.EQUIVALENT) <= 0.018
    assert found.broken(ComparisonPlan()) == []


def test_a_broken_promise_is_named() -> None:
    alarms = Tally("", 0.0, 1, 1000, {}, false_alarms=9, wrong_signs=0, pairs=0, covered=0)
    assert alarms.broken(ComparisonPlan()) == ["false alarms"]
    equal = replace(alarms, effect=0.01, verdicts={"equivalent": 25}, false_alarms=0)
    assert equal.broken(ComparisonPlan()) == ["equivalent"]
    assert replace(equal, effect=0.009).broken(ComparisonPlan()) == []
    # Half of it again from as few as ten comparisons proves nothing.
    assert replace(equal, independent=10).broken(ComparisonPlan()) == []
    assert replace(alarms, runs=2000).broken(ComparisonPlan()) == []


@pytest.mark.parametrize(
    ("effect", "pairs"),
    [
        pytest.param(0.02, 120, marks=pytest.mark.thorough),
        pytest.param(0.03, 80, marks=pytest.mark.thorough),
        (0.05, 60),
        (0.0, 1000),
    ],
)
def test_simulated_searches_are_right_on_a_noisy_machine(effect: float, pairs: int) -> None:
    row = bisect_often(Scenario("", (effect,) if effect else ()), runs=40, seed=1000)
    assert row["right"] >= 39
    assert row["pairs_mean"] < pairs


def test_a_simulated_search_can_be_wrong() -> None:
    """The simulation must not judge kindly: an answer without certainty is not a right one."""
    plan = SearchPlan(most_pairs=1)
    assert not any(bisect_once(Scenario("", (0.03,)), seed, plan).right for seed in range(5))


HISTORIES = 30
FLAT = [kind for kind in KINDS if not (kind.step or kind.drift or kind.slope)]
MOVING = [kind for kind in KINDS if not kind.step and kind not in FLAT]
STEPS = [kind for kind in KINDS if kind.step]


def is_quick(kind: HistoryKind) -> bool:
    return kind.commits <= 20 or kind in (STEPS[0], FLAT[0])


@pytest.mark.parametrize("kind", some(FLAT, is_quick), ids=str)
def test_a_flat_series_shows_no_more_changes_than_in_asv(kind) -> None:
    rates = judge(kind, HISTORIES, seed=4_000)
    assert rates.found is None
    assert rates.false <= rates.asv_false + 2 / HISTORIES


@pytest.mark.parametrize("kind", some(MOVING, is_quick), ids=str)
def test_a_machine_that_drifts_makes_about_one_change_at_most(kind) -> None:
    rates = judge(kind, HISTORIES, seed=4_000)
    assert rates.false <= (0.3 if kind.memory == 0.5 else 1.1)


@pytest.mark.parametrize("kind", some(STEPS, is_quick), ids=str)
def test_a_step_is_found_more_often_than_by_asv(kind) -> None:
    rates = judge(kind, HISTORIES, seed=4_000)
    assert rates.found is not None
    assert rates.asv_found is not None
    # Twenty single processes say little.
    enough = 0.4 if kind.commits * kind.processes == 20 else 0.85
    assert rates.found >= max(enough, rates.asv_found)


def test_a_stored_comparison_and_a_stored_history_repeat_by_their_seed() -> None:
    """What is kept in `reports` is what the code makes today, figure by figure."""
    stored = json.loads((VERDICTS / "simulation.json").read_text())
    plan = ComparisonPlan()
    [place] = [
        number
        for number, case in enumerate(simulate_compare.cases(SITUATIONS, plan))
        if (case.name, case.effect) == ("quiet", 0.3)
    ]
    kept = stored["results"]["tallies"][place]
    noise = SITUATIONS[kept["noise"]]
    made = simulate(kept["effect"], noise, stored["settings"]["runs"], seed=place)
    assert asdict(replace(made, noise="quiet")) | {"broken": []} == kept
    stored = json.loads((VERDICTS / "changes-simulation.json").read_text())
    place = [kind.name for kind in KINDS].index("a step, one process, 20 commits")
    rates = judge(KINDS[place], stored["settings"]["runs"], stored["settings"]["seed"])
    assert json.loads(json.dumps(asdict(rates))) == stored["results"]["rates"][place]


def results(path: Path, *arguments: str) -> dict:
    """The results that a simulation records."""
    command.main([*arguments, "--json", str(path)])
    return json.loads(path.read_text())["results"]


def labelled_folder(folder: Path) -> Path:
    """A series with a step at 30, one with a step that only a reader saw, and one without any."""
    folder.mkdir()
    draws = np.random.default_rng(0)
    series = {"judged": (30, [[33, "TP"]]), "seen": (20, [[50, "FP"]]), "flat": (60, [])}
    eye = {name: {"steps": [place], "unsure": []} for name, (place, _) in series.items()}
    eye["flat"] = {"steps": [], "unsure": [9]}
    (folder / "eye.json").write_text(json.dumps(eye))
    for name, (place, labels) in series.items():
        values = (100 + 0.5 * draws.standard_normal(60) + 5 * (np.arange(60) >= place)).tolist()
        (folder / f"{name}.json").write_text(json.dumps({"values": values, "labels": labels}))
    return folder


def test_detectors_are_scored_on_labelled_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By eye and by labels; what a detector names beside steps is false, and some are not there."""
    detectors = {
        "kvtrail": score_labelled.DETECTORS["kvtrail"],
        "asv": score_labelled.DETECTORS["asv"],
        "otava": score_labelled.DETECTORS["otava"],
        "a far one": lambda values: [9, 35, 42],
    }
    monkeypatch.setattr(score_labelled, "DETECTORS", detectors)
    monkeypatch.setitem(sys.modules, "otava", None)
    folder = labelled_folder(tmp_path / "series")
    found = results(tmp_path / "record.json", "labelled", "--data", str(folder), "--runs", "3")
    scores = {one["detector"]: one for one in found["scores"]}
    assert found["not_installed"] == ["otava"]
    assert "otava is not installed; `nox -s detectors` has it" in capsys.readouterr().out
    assert scores["kvtrail"]["found"] == {"flat": [], "judged": [30], "seen": [20]}
    counts = {
        name: [one[key] for key in ("hits", "missed", "false", "flat")]
        for name, one in scores.items()
    }
    assert counts["kvtrail"] == counts["asv"] == [2, 0, 0, 0.0]
    # Near the step at 30, and near what the reader was unsure of.
    assert counts["a far one"] == [1, 1, 7, 3.0]
    assert scores["kvtrail"]["f1"] == pytest.approx(2 / 3)


def test_what_is_no_labelled_series_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        command.main(["labelled"])
    with pytest.raises(Refused, match="holds no labelled series"):
        command.main(["labelled", "--data", str(tmp_path)])
    folder = labelled_folder(tmp_path / "series")
    (folder / "odd.json").write_text('{"values": [1.0], "labels": []}')
    with pytest.raises(Refused, match="KeyError 'odd'"):
        command.main(["labelled", "--data", str(folder)])


def test_simulations_are_counted_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, page = tmp_path / "record.json", tmp_path / "page.md"
    monkeypatch.setattr(simulate_compare, "EFFECTS", (0.0, 0.05))
    monkeypatch.setattr(command, "SITUATIONS", {"quiet": SITUATIONS["quiet"]})
    monkeypatch.setattr(simulate_compare, "SEVERAL_AT_ONCE", ("quiet",))
    measured = tmp_path / "calibrated.json"
    measured.write_text(json.dumps({"samples": pairs_with_itself(48)}))
    options = ("--runs", "5", "--workers", "2", "--replay", str(measured))
    tallies = results(record, "compare", *options)["tallies"]
    assert [(entry["effect"], entry["benchmarks"]) for entry in tallies] == [
        *((0.0, 1), (0.05, 1), (0.0, 1), (0.05, 1), (0.0, 10), (0.03, 10)),
    ]
    assert tallies[1]["verdicts"] == tallies[3]["verdicts"] == {"slower": 5}
    monkeypatch.setattr(simulate_rounds, "TRUTHS", {"fixed": ((0.14, 0.0),)})
    rows = results(record, "rounds", "--runs", "4", "--only", "normal 0.3")["rows"]
    assert [(row["rule"], row["told"]) for row in rows] == [("divided", 1), ("in turns", 1)]
    scenarios = (Scenario("5 %", (0.05,), commits=8), Scenario("nothing", (), commits=8))
    monkeypatch.setattr(simulate_bisect, "SCENARIOS", scenarios)
    rows = results(record, "bisect", "--runs", "2", "--markdown", str(page))["rows"]
    assert [row["right"] for row in rows] == [2, 2]
    assert "| nothing | 2 | 2 | 0 | 0 |" in page.read_text()
    monkeypatch.setattr(simulate_changes, "KINDS", (FLAT[0], STEPS[0]))
    flat, step = results(record, "changes", "--runs", "2", "--workers", "2")["rates"]
    assert (flat["false"], flat["found"], step["found"]) == (0.0, None, 1.0)
