"""Planted slowdowns: of the length they claim, in a clone only, and what their verdicts must be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_pairs import BASE, HEAD
from toy_project import ToyProject, make_project, run_ruler
from typer.testing import CliRunner

from asv_bench.cli import calibrate as command
from asv_bench.cli.calibrate import effects_named, minutes_named
from asv_bench.cli.commands import build_app
from asv_bench.compare.catalog import Entry
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.git.repository import Commit
from asv_bench.lab.calibration import planting
from asv_bench.lab.calibration.planting import ScratchClone, SpinTimes
from asv_bench.lab.calibration.trials import PlantedTrial, Trials, are_sound, trial_table
from asv_bench.measure import log
from asv_bench.measure.lives import Place
from asv_bench.session import session
from asv_bench.subjects.own_suite import OwnSuite

PLAN = ComparisonPlan()

RUNNER = '''
import time


class ModelRunner:
    """A step of 1 ms."""

    def decode(self, num_rows, *, is_sampled):
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
'''

BENCHMARK = """
import statistics
import time

from .sharing import SharesRuns, check_identity, shared_figure, tracked


def steps():
    from engine.running.runner import ModelRunner

    runner, readings = ModelRunner(), []
    for _ in range(8):
        started = time.perf_counter()
        runner.decode(1, is_sampled=False)
        readings.append(time.perf_counter() - started)
    return {"step_time": min(readings)}


class Toy(SharesRuns):
    def setup(self):
        check_identity()

    @tracked()
    def track_step_time(self):
        return shared_figure("toy", "step_time", steps)
"""


@pytest.fixture
def toy(tmp_path: Path) -> ToyProject:
    project = make_project(tmp_path / "project", commits=1)
    runner = project.root / "engine" / "running" / "runner.py"
    runner.parent.mkdir()
    runner.write_text(RUNNER)
    (project.root / "asv_bench" / "benchmarks" / "toy.py").write_text(BENCHMARK)
    project.commits.append(project.commit("steps that take their time"))
    return project


def planted_module(clone: ScratchClone) -> dict[str, Any]:
    module: dict[str, Any] = {}
    exec((clone.root / planting.PLANTED_IN).read_text(), module)
    return module


def test_a_planted_wait_lasts_as_long_as_it_says(toy: ToyProject, tmp_path: Path) -> None:
    clone = ScratchClone(tmp_path / "clone", Place(), toy.root)
    base = clone.plant(0.0)
    assert base.seconds == 0
    planted = clone.plant(0.05)
    assert planted.seconds == planted.length == 0.05
    runner = planted_module(clone)["ModelRunner"]()
    started = time.perf_counter()
    runner.decode(1, is_sampled=False)
    assert time.perf_counter() - started >= 0.051
    assert len({base.hash, planted.hash, toy.commits[-1]}) == 3
    # Each is planted in the original, not on top of the one before.
    assert (clone.root / planting.PLANTED_IN).read_text().count("def _plant") == 1


def test_a_planted_spin_follows_the_step_on_the_device(
    toy: ToyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    torch = SimpleNamespace(cuda=SimpleNamespace(_sleep=calls.append))
    runner = toy.root / "engine" / "running" / "runner.py"
    runner.write_text(
        "class ModelRunner:\n"
        "    def decode(self, num_rows, *, is_sampled):\n"
        "        torch.cuda._sleep((num_rows, is_sampled))\n"
        "        return 'states'\n"
    )
    toy.commit("as on a GPU")
    spins = SpinTimes({0: 1e-6, 1000: 1.5e-6, 20_000: 11e-6})
    monkeypatch.setattr(planting, "measure_spins", lambda place: spins)
    clone = ScratchClone(tmp_path / "clone", Place(("GPU-a",)), toy.root)
    planted = clone.plant(5e-6)
    assert planted.length == 10_000
    assert planted.seconds == pytest.approx(5e-6)
    module = planted_module(clone)
    module["torch"] = torch
    assert module["ModelRunner"]().decode(7, is_sampled=True) == "states"
    assert calls == [(7, True), 10_000]
    assert clone.plant(0.0).length == 0


def test_spins_that_are_not_proportional_are_read_between_measured_ones() -> None:
    # A short spin costs more than its cycles; long ones grow by 0.5 ns a cycle.
    spins = SpinTimes({0: 2e-6, 1000: 3.5e-6, 10_000: 8e-6, 20_000: 13e-6})
    assert spins.cycles_for(0.0) == 0
    assert spins.seconds(10_000) == pytest.approx(6e-6)
    assert spins.seconds(11_000) == pytest.approx(6.5e-6)
    for seconds in (1.4e-6, 6.2e-6, 11e-6):
        assert spins.seconds(spins.cycles_for(seconds)) == pytest.approx(seconds, rel=1e-3)
    with pytest.raises(Refused, match="50 µs cannot be planted: spins of up to 11 µs"):
        spins.cycles_for(50e-6)


def test_only_the_clone_is_changed(toy: ToyProject, tmp_path: Path) -> None:
    (toy.root / "untracked").write_text("")
    states = []
    for change in (lambda: None, lambda: ScratchClone(tmp_path / "c", Place(), toy.root)):
        made = change()
        if made is not None:
            made.plant(0.01)
        names = ("status", "--porcelain"), ("for-each-ref",), ("worktree", "list"), ("reflog",)
        states.append([toy.git(*name) for name in names])
    assert states[0] == states[1]


def test_a_commit_without_a_runner_is_refused(toy: ToyProject, tmp_path: Path) -> None:
    toy.git("rm", "--quiet", "engine/running/runner.py")
    toy.commit("no runner")
    with pytest.raises(Refused, match="has no ModelRunner"):
        ScratchClone(tmp_path / "clone", Place(), toy.root)


def trial(planted: float, verdict: Verdict, name: str = "a trial") -> PlantedTrial:
    comparison = Comparison("b", BASE, HEAD, verdict, effect=0.01, interval=(0.0, 0.02))
    return PlantedTrial(name, planted, comparison, 60.0, PLAN)


@pytest.mark.parametrize(
    ("planted", "allowed"),
    [
        (0.0, {"equivalent", "inconclusive"}),
        (0.005, {"slower", "equivalent", "inconclusive"}),
        (0.0098, {"slower", "inconclusive"}),
        (0.012, {"slower", "inconclusive"}),
        (0.0199, {"slower"}),
        (0.05, {"slower"}),
    ],
)
def test_which_verdicts_a_truth_allows(planted: float, allowed: set[str]) -> None:
    assert {str(v) for v in Verdict if trial(planted, v).holds} == allowed


def test_on_a_users_machine_a_missed_slowdown_is_no_contradiction() -> None:
    missed = trial(0.05, Verdict.INCONCLUSIVE)
    assert not missed.holds
    assert replace(missed, must_find=False).holds
    for wrong in (Verdict.FASTER, Verdict.EQUIVALENT, Verdict.FAILED):
        assert not replace(trial(0.05, wrong), must_find=False).holds


def test_one_false_alarm_in_twenty_is_allowed_and_none_in_eight() -> None:
    null, alarm = trial(0.0, Verdict.EQUIVALENT), trial(0.0, Verdict.FASTER)
    assert are_sound([*[null] * 19, alarm])
    assert not are_sound([*[null] * 7, alarm])
    assert not are_sound([*[null] * 18, alarm, alarm])
    assert not are_sound([*[null] * 20, trial(0.03, Verdict.INCONCLUSIVE)])


Calibrated = Callable[[Callable[[Trials], None]], tuple[int, str, dict[str, Any], str]]


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibrated:
    """The code, output, record and page of a command whose trials are made up."""
    name = "scheduler.Scheduler.track_step_time('gpt2-tiny')"
    monkeypatch.setattr(OwnSuite, "all_entries", lambda suite: [Entry(name, name, "seconds")])
    monkeypatch.setattr(OwnSuite, "resolve", lambda suite, name: Commit(BASE))
    ground = SimpleNamespace(facts=dict, remarks=[])
    monkeypatch.setattr(command, "ground_of", lambda *_: contextlib.nullcontext(ground))
    # Another test may measure in this checkout meanwhile.
    monkeypatch.setattr(session, "WORKPLACE", tmp_path)
    monkeypatch.setattr(log, "FOLDER", tmp_path / "pairs")

    def calibrate(run: Callable[[Trials], None]) -> tuple[int, str, dict[str, Any], str]:
        monkeypatch.setattr(Trials, "run", lambda trials, *_: run(trials))
        path, page = tmp_path / "record.json", tmp_path / "page.md"
        arguments = ["calibrate", "--json", str(path), "--markdown", str(page)]
        done = CliRunner().invoke(build_app(), arguments)
        return done.exit_code, done.output, json.loads(path.read_text()), page.read_text()

    return calibrate


def test_verdicts_that_contradict_the_truth_are_a_failure_that_names_them(
    calibrated: Calibrated,
) -> None:
    missed = trial(0.03, Verdict.INCONCLUSIVE, "planted 3.0 %")
    code, said, record, page = calibrated(lambda trials: trials.done.append(missed))
    assert (code, record["results"]["is_sound"]) == (1, False)
    for text in (said, page):
        assert "contradict what was planted: planted 3.0 %: inconclusive" in " ".join(text.split())


@pytest.mark.parametrize("made", [[], [Verdict.EQUIVALENT], [Verdict.FASTER]])
def test_an_interrupted_calibration_is_written_down_and_passes_for_nothing(
    made: list[Verdict], calibrated: Calibrated
) -> None:
    def interrupted(trials: Trials) -> None:
        trials.done += [trial(0.0, verdict) for verdict in made]
        trials.record.samples.append({"trial": "itself"})
        os.kill(os.getpid(), signal.SIGTERM)

    code, said, record, page = calibrated(interrupted)
    assert code == 130
    assert record["results"]["is_sound"] is None
    assert record["results"]["interrupted"] is True
    assert [entry["verdict"] for entry in record["results"]["trials"]] == made
    assert record["samples"] == [{"trial": "itself"}]
    assert record["notes"] == [command.INTERRUPTED]
    assert command.INTERRUPTED in said
    assert command.INTERRUPTED in page


def test_the_markdown_marks_what_the_truth_does_not_allow() -> None:
    trials = [trial(0.03, Verdict.INCONCLUSIVE, "missed"), trial(0.0, Verdict.EQUIVALENT)]
    page = trial_table(trials, "here").to_markdown()
    assert "| missed | +3.00 % | inconclusive (!) | +1.00 % | +0.00 % to +2.00 % |" in page
    assert "| equivalent |" in page


def test_effects_are_per_cents_and_minutes_positive_numbers() -> None:
    assert effects_named("1,2.5, 5") == [0.01, 0.025, 0.05]
    assert effects_named("none") == []
    assert minutes_named("5, 0.5") == [5.0, 0.5]
    for wrong in ("0", "-1", "a lot", ""):
        with pytest.raises(Refused, match="per cents"):
            effects_named(wrong)
    for wrong in ("0", "-1", "soon", "", "inf"):
        with pytest.raises(Refused, match="minutes, such as"):
            minutes_named(wrong)


@pytest.mark.thorough
def test_trials_from_the_command_line(toy: ToyProject) -> None:
    path, page = toy.root.parent / "calibration.json", toy.root.parent / "calibration.md"
    done = run_ruler(
        *(toy.root, "calibrate", "--null", "1", "--planted", "50", "-b", "track_step_time"),
        *("--pairs", "10", "--json", str(path), "--markdown", str(page)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(path.read_text())
    null, slow = record["results"]["trials"]
    assert null["verdict"] in ("equivalent", "inconclusive")
    assert slow["verdict"] == "slower"
    assert slow["planted"] == pytest.approx(0.5, rel=0.2)
    assert slow["effect"] == pytest.approx(slow["planted"], rel=0.2)
    assert {sample["trial"] for sample in record["samples"]} == {null["name"], slow["name"]}
    pairs = sum(one["pairs_used"] + one["pairs_discarded"] for one in (null, slow))
    assert len(record["samples"]) == pairs
    assert slow["name"] in page.read_text()
    assert record["results"]["planted"][1]["seconds"] == pytest.approx(
        0.5 * record["results"]["step_s"]
    )
    assert [one["metric"] for one in record["results"]["noise"]] == [null["benchmark"]]
    assert toy.git("status", "--porcelain") == ""
