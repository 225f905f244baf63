"""Which verdicts a planted slowdown allows, how calibrate ends, and what its options may be."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated_pairs import BASE, HEAD, Answer, ScriptedPairs, SourcedSuite

from asv_bench.cli.calibrate import UNFINISHED, Calibrating, PlantedTrial, are_sound
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.git.repository import Commit
from asv_bench.words import numbers_of


def trial(planted: float, verdict: Verdict, name: str = "a trial") -> PlantedTrial:
    comparison = Comparison("b", BASE, HEAD, verdict, effect=0.01, interval=(0.0, 0.02))
    return PlantedTrial(name, planted, comparison, 60.0, margin=0.01)


@pytest.mark.parametrize(
    ("planted", "allowed"),
    [
        (0.0, {"equivalent", "inconclusive"}),
        (0.005, {"slower", "equivalent", "inconclusive"}),
        # A machine that is too noisy to find a slowdown contradicts nothing.
        (0.0098, {"slower", "inconclusive"}),
        (0.05, {"slower", "inconclusive"}),
    ],
)
def test_which_verdicts_a_truth_allows(planted: float, allowed: set[str]) -> None:
    assert {str(v) for v in Verdict if trial(planted, v).holds} == allowed


def test_one_false_alarm_in_twenty_is_allowed_and_none_in_eight() -> None:
    null, alarm = trial(0.0, Verdict.EQUIVALENT), trial(0.0, Verdict.FASTER)
    assert are_sound([*[null] * 19, alarm])
    assert not are_sound([*[null] * 7, alarm])
    assert not are_sound([*[null] * 18, alarm, alarm])
    assert not are_sound([*[null] * 20, trial(0.03, Verdict.EQUIVALENT)])


Calibrated = Callable[[Callable[[Calibrating], None]], tuple[int, str, dict[str, Any], str]]


@pytest.fixture
def calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Callable[..., Answer]
) -> Calibrated:
    """The code, output, record and page of a command whose trials are made up."""
    suite = SourcedSuite(tmp_path, ScriptedPairs(lambda *_: 1.0), commits={"HEAD": Commit(BASE)})

    def calibrate(run: Callable[[Calibrating], None]) -> tuple[int, str, dict[str, Any], str]:
        monkeypatch.setattr(Calibrating, "_try_all", lambda calibrating, _: run(calibrating))
        page = tmp_path / "page.md"
        return *invoke(suite, "calibrate", "--markdown", str(page)), page.read_text()

    return calibrate


def test_verdicts_that_contradict_the_truth_are_a_failure_that_names_them(
    calibrated: Calibrated,
) -> None:
    missed = trial(0.03, Verdict.EQUIVALENT, "planted 3.0 %")
    found = trial(0.0, Verdict.EQUIVALENT, "itself")
    code, said, record, page = calibrated(lambda asked: asked._trials.extend([missed, found]))
    assert (code, record["results"]["is_sound"]) == (1, False)
    for text in (said, " ".join(page.split())):
        assert "contradict what was planted: planted 3.0 %: equivalent" in text
    assert "| planted 3.0 % | +3.00 % | equivalent (!) | +1.00 % |" in page


def test_an_interrupted_calibration_is_written_down_and_passes_for_nothing(
    calibrated: Calibrated,
) -> None:
    def interrupted(calibrating: Calibrating) -> None:
        calibrating._trials.append(trial(0.0, Verdict.FASTER))
        calibrating._record.samples.append({"trial": "itself"})
        os.kill(os.getpid(), signal.SIGTERM)

    code, said, record, page = calibrated(interrupted)
    results = record["results"]
    assert (code, results["is_sound"], results["interrupted"]) == (130, None, True)
    assert [entry["verdict"] for entry in results["trials"]] == ["faster"]
    assert record["samples"] == [{"trial": "itself"}]
    assert record["notes"] == [f"Interrupted: {UNFINISHED}"]
    assert UNFINISHED in said
    assert UNFINISHED in page


def test_options_are_positive_numbers_with_commas_between() -> None:
    assert numbers_of(
        "--within", "5, 0.5", "minutes, such as 1,5,15", lambda one: 0 < one < 1e9
    ) == [5.0, 0.5]
    for wrong in ("0", "-1", "soon", "", "inf", "nan"):
        with pytest.raises(Refused, match=r"--within '.*' must be minutes, such as"):
            numbers_of("--within", wrong, "minutes, such as 1,5,15", lambda one: 0 < one < 1e9)
