"""How long measuring will take is said first, and what takes hours wants a yes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from toy_project import ToyProject, make_project

from asv_bench.cli import bench as bench_module
from asv_bench.cli import history as history_module
from asv_bench.errors import Refused
from asv_bench.history import checkout_session
from asv_bench.history import estimate as module
from asv_bench.history.asv_selection import Selection
from asv_bench.history.estimate import (
    ASSUMED_SECONDS,
    STORED,
    Estimate,
    agree_to,
    estimate,
    long_time,
)

LONG = Estimate(465 * 3 * 51.0, f"465 commits x 3 rounds, 51 s each, {STORED}")


def store(folder: Path, name: str, rows: dict[str, list[Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"result_columns": ["result", "params", "duration"], "results": rows}
    (folder / name).write_text(json.dumps(content))


def test_stored_results_tell_how_long_a_round_takes(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {
        "a.A.track": [[1.0, 2.0, None], [["8", "64", "256"]], 10.0],
        "b.B.track": [[1.0], [], 3.0],
        "c.C.track": [[float("nan")], [], 100.0],
    }
    store(tmp_path / "own", "one.json", rows)
    both = estimate(tmp_path, "own", 4, Selection((r"^[abc]\.",), rounds=5))
    assert both.seconds == 260.0
    # One of the two that were measured.
    half = estimate(tmp_path, "own", 1, Selection((r"^a\..*\(64\)",), rounds=1))
    assert half.seconds == 5.0
    assert "4 min: 4 commits x 5 rounds, 13 s each, as stored" in both.sentence


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"result_columns": 3, "results": {}}'])
def test_without_stored_results_it_is_assumed(tmp_path: Path, text: str) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "one.json").write_text(text)
    expected = estimate(tmp_path, "own", 2, Selection((".",), rounds=3))
    assert expected.seconds == 6 * ASSUMED_SECONDS
    assert "assumed" in expected.sentence


def test_what_takes_hours_is_refused_without_a_terminal_unless_it_was_agreed_to() -> None:
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(Refused, match=r"about 20 hours: 465 commits x 3 rounds.*--yes"):
        agree_to(LONG, console, yes=False)
    agree_to(LONG, console, yes=True)
    agree_to(Estimate(153.0, "1 commit x 3 rounds, 51 s each"), console, yes=False)
    assert "expected to take about 3 min: 1 commit x 3 rounds" in console.file.getvalue()


@pytest.mark.parametrize("answer", [True, False])
def test_at_a_terminal_it_is_asked(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    monkeypatch.setattr(module.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(module.typer, "confirm", lambda question: answer)
    console = Console(file=io.StringIO(), force_terminal=True)
    if answer:
        agree_to(LONG, console, yes=False)
    else:
        with pytest.raises(Refused, match="nothing was measured"):
            agree_to(LONG, console, yes=False)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.1, "13 s"), (600, "10 min"), (5400, "1 h 30 min"), (71145, "20 hours")],
)
def test_times_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert long_time(seconds) == text


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToyProject:
    project = make_project(tmp_path / "project", commits=3)
    monkeypatch.setenv("KVTRAIL_MACHINE", "toy")
    return project


def test_a_long_history_and_a_long_bench_do_not_begin_by_themselves(
    toy: ToyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any) -> None:
        raise AssertionError("it began")

    monkeypatch.setattr(history_module, "REPOSITORY", toy.root)
    monkeypatch.setattr(checkout_session, "measure_with_progress", forbidden)
    with pytest.raises(Refused, match=r"3 commits x 99 rounds.*--yes"):
        history_module.history(["HEAD"], rounds=99)
    with pytest.raises(AssertionError, match="it began"):
        history_module.history(["HEAD"], rounds=99, yes=True)
    monkeypatch.setattr(bench_module, "REPOSITORY", toy.root)
    monkeypatch.setattr(bench_module, "measure_with_progress", forbidden)
    with pytest.raises(Refused, match=r"1 commit x 999 rounds.*--yes"):
        bench_module.bench(rounds=999)
