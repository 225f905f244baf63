"""How long measuring will take is said first, and what takes hours wants a yes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from asv_bench.errors import Refused
from asv_bench.history import estimate as module
from asv_bench.history.estimate import Estimate, agree_to, long_time

LONG = Estimate(465 * 3 * 51.0, "465 commits x 3 rounds, 51 s each, as the first took")


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
