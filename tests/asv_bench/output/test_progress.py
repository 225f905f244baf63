"""Progress: a line that changes on a terminal, lines elsewhere, with the time that is left."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from rich.console import Console

from asv_bench.output import console as module
from asv_bench.output.console import Progress, doing


@contextmanager
def shown(
    total: int, *, is_terminal: bool = False
) -> Iterator[tuple[Progress, io.StringIO, SimpleNamespace]]:
    """Progress, what it says, and a clock that a test moves."""
    file, now = io.StringIO(), SimpleNamespace(at=1000.0)
    console = Console(file=file, force_terminal=is_terminal, width=120)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.at))
        with Progress(console, "measuring", total, "runs") as progress:
            yield progress, file, now


def test_without_a_terminal_a_line_comes_at_once_and_then_every_half_minute_at_most() -> None:
    with shown(100) as (progress, file, now):
        assert file.getvalue() == "measuring: 100 runs\n"
        for _ in range(30):
            now.at += 4.0
            progress.advance()
    lines = file.getvalue().splitlines()
    # 30 runs of 4 s are 120 s.
    assert lines[1:] == [
        "measuring: 8 of 100 runs, 0:32 gone, about 6:08 left",
        "measuring: 16 of 100 runs, 1:04 gone, about 5:36 left",
        "measuring: 24 of 100 runs, 1:36 gone, about 5:04 left",
    ]


def test_what_comes_before_the_first_or_was_kept_says_nothing_of_the_rest() -> None:
    with shown(31) as (progress, file, now):
        now.at += 500.0
        with doing("compiling"):
            assert file.getvalue().splitlines()[-1] == "compiling: 0 of 31 runs, 8:20 gone"
        progress.show(21)
        now.at += 10.0
        progress.advance()
        now.at += 62.0
        progress.show(30)
        assert file.getvalue().endswith("30 of 31 runs, 9:32 gone, about 0:08 left\n")


def test_a_terminal_has_a_line_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with shown(10, is_terminal=True) as (progress, file, now):
        for _ in range(3):
            now.at += 60.0
            progress.advance()
    assert "3 of 10 runs, 3:00 gone, about 7:00 left" in file.getvalue()
