"""Runs that several figures share."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.benchmarks import sharing
from asv_bench.benchmarks.sharing import WrongEngineError, samples_of, shared_figure


def test_a_figure_that_a_machine_does_not_have_is_skipped(any_engine: Path) -> None:
    # Of what is raised after setup, asv takes only this for a skip, the rest for a failure.
    with pytest.raises(SkipNotImplemented, match="no time_over_floor on this machine"):
        shared_figure("run", "time_over_floor", lambda: {"step_time": 1.0})


def test_a_run_is_shared_by_figures_and_made_again_for_the_same_one(any_engine: Path) -> None:
    runs = itertools.count(1)

    def measure() -> dict[str, float]:
        run = next(runs)
        return {"ttft": run, "tpot": 10 * run}

    def taken(figure: str) -> float:
        value: float = shared_figure("run", figure, measure)["samples"][0]
        return value

    assert [taken("ttft"), taken("tpot")] == [1, 10]
    assert [taken("ttft"), taken("tpot")] == [2, 20]
    assert [taken("tpot"), taken("ttft")] == [30, 3]
    assert shared_figure("run-8", "ttft", lambda: {"ttft": 9.0})["samples"] == [9.0]


def test_a_run_of_another_commit_is_refused(
    any_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_figure("run", "ttft", lambda: {"ttft": 1.0, "tpot": 1.0})
    monkeypatch.setattr(sharing, "check_identity", lambda: "d" * 40)
    with pytest.raises(WrongEngineError, match="is of commit cccccccc, not of dddddddd"):
        shared_figure("run", "tpot", lambda: {"ttft": 1.0, "tpot": 1.0})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_figure_that_is_none_is_an_error(value: float) -> None:
    with pytest.raises(ValueError, match="no time or ratio"):
        samples_of(value)
