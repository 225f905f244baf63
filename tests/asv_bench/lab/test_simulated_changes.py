"""How often `changes` sees what is not there, and misses what is; seeded: a red run repeats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from asv_bench.lab.calibration import simulate_changes
from asv_bench.lab.calibration.simulate_changes import KINDS, judge

RUNS = 30
FLAT = [kind for kind in KINDS if not kind.step]
STEPS = [kind for kind in KINDS if kind.step]


def test_what_is_judged_covers_noise_modes_and_sessions() -> None:
    assert {kind.modes is None for kind in FLAT} == {True, False}
    assert {kind.session_commits for kind in FLAT} >= {None, 1, 10, 50}
    assert {kind.step for kind in STEPS} == {0.03, 0.05}


@pytest.mark.parametrize("kind", FLAT, ids=str)
def test_a_flat_series_shows_no_more_changes_than_in_asv(kind) -> None:
    rates = judge(kind, RUNS, seed=4_000)
    assert rates.found is None
    assert rates.false <= rates.asv_false + 2 / RUNS


@pytest.mark.parametrize("kind", STEPS, ids=str)
def test_a_step_is_found_more_often_than_by_asv(kind) -> None:
    rates = judge(kind, RUNS, seed=4_000)
    assert rates.found is not None
    assert rates.asv_found is not None
    # Twenty single processes say little.
    enough = 0.4 if kind.commits * kind.processes == 20 else 0.85
    assert rates.found >= max(enough, rates.asv_found)


def test_sessions_that_are_as_far_apart_as_a_step_is_high_hide_it_seldom() -> None:
    kind = replace(STEPS[0], noise=0.003, session_commits=10, sessions_apart=0.03)
    rates = judge(kind, RUNS, seed=4_000)
    assert rates.false <= 1 / RUNS
    assert rates.found is not None
    assert rates.found >= 0.8


def test_the_command_prints_and_records_the_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate_changes, "KINDS", (FLAT[0], STEPS[0]))
    app = typer.Typer()
    app.command()(simulate_changes.run)
    path = tmp_path / "rates.json"
    printed = CliRunner().invoke(app, ["--runs", "2", "--json", str(path)])
    assert printed.exit_code == 0, printed.output
    assert "a step" in printed.output
    flat, step = json.loads(path.read_text())["results"]["rates"]
    assert (flat["false"], flat["found"]) == (0.0, None)
    assert step["found"] == 1.0
