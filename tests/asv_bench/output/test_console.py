"""Tables on a terminal of any width, in a file, as Markdown, CSV and JSON; and progress.

Progress is a line that changes on a terminal, lines elsewhere, with the time that is left.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from asv_bench.errors import Refused
from asv_bench.output import console as module
from asv_bench.output.console import LEAST_WIDTH, Progress, doing, make_console, print_table
from asv_bench.output.table import Cell, Column, Table, digits, interval, percent, to_csv
from asv_bench.session.options import Outputs

COLUMNS = (
    Column("benchmark", "benchmark", kind="name"),
    Column("step_ms", "step", unit="ms", show=digits(2)),
    Column("change", "change", show=percent(1, signed=True)),
    Column("interval", "interval", show=interval(1), parts=("low", "high")),
    Column("machine", "machine", kind="data"),
)
TABLE = Table(
    COLUMNS,
    [
        ("a|b_c", Cell(1234.5678, note="±3 %"), 0.0123456, (-0.5, math.inf), "here"),
        (),
        ("_d_", math.nan, None, None, Cell(None)),
    ],
    title="a title",
    caption="a caption",
)


def printed(table: Table, width: int = 80) -> str:
    """The text of a table on a terminal of so many columns."""
    file = io.StringIO()
    print_table(Console(width=width, file=file), table)
    return file.getvalue()


def test_people_see_values_as_columns_show_them() -> None:
    shown = printed(TABLE)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.split("\n")]
    assert ["a|b_c", "1,234.57", "+1.2 %", "-50.0 % to ∞"] in lines
    assert ["", "±3 %", "", ""] in lines
    assert ["_d_", "-", "-", "-"] in lines
    assert "here" not in shown
    assert shown.count("┼") > 0, "a line between the sections"


def test_markdown_makes_nothing_of_what_names_hold() -> None:
    assert TABLE.to_markdown() == (
        "a title\n\n"
        "| benchmark | step ms | change | interval |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| a\\|b_c | 1,234.57 ±3 % | +1.2 % | -50.0 % to ∞ |\n"
        "| \\_d\\_ | - | - | - |\n\n"
        "a caption\n"
    )


def test_programs_get_raw_values() -> None:
    first, second = TABLE.to_json()
    assert first == {
        **{"benchmark": "a|b_c", "step_ms": 1234.5678, "change": 0.0123456, "machine": "here"},
        **{"interval_low": -0.5, "interval_high": math.inf},
    }
    assert second == {**dict.fromkeys(first), "benchmark": "_d_"}
    (row, other) = csv.DictReader(io.StringIO(to_csv([TABLE])))
    assert float(row["step_ms"]) == 1234.5678
    assert row["machine"] == "here"
    assert other["step_ms"] == other["interval_low"] == ""


def test_several_tables_in_one_file_are_told_apart() -> None:
    other = Table((Column("benchmark", "benchmark"), Column("pairs", "pairs")), [("e", 3)], "other")
    *_, row = csv.DictReader(io.StringIO(to_csv([TABLE, other])))
    assert (row["table"], row["benchmark"], row["pairs"]) == ("other", "e", "3")


def test_tables_go_to_the_files_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Outputs(markdown=tmp_path / "t.md", csv=tmp_path / "t.csv").show(TABLE)
    assert (tmp_path / "t.md").read_text() == TABLE.to_markdown()
    assert (tmp_path / "t.csv").read_text() == to_csv([TABLE])
    assert "1,234.57" in capsys.readouterr().out
    # Nothing else goes to standard output where a file does.
    Outputs(csv=Path("-")).show(TABLE)
    said = capsys.readouterr()
    assert said.out == to_csv([TABLE])
    assert "1,234.57" in said.err
    with pytest.raises(Refused, match="two files cannot both go to standard output"):
        Outputs(json=Path("-"), csv=Path("-"))


LONG = "a_kernel_whose_name_is_longer_than_any_console_is_wide_" * 3


@pytest.mark.parametrize(
    ("name", "width"), [(LONG, 40), (LONG, 80), ("short", 80), (LONG, LEAST_WIDTH)]
)
def test_neither_figures_nor_names_are_ever_cut(name: str, width: int) -> None:
    figures = [f"{number},234.56 µs" for number in range(6)]
    columns = [Column("name", "name", kind="name")]
    columns += [Column(str(number), f"label\n{number} a step") for number in range(6)]
    table = Table(columns, [(name, *figures)], "A title " * 30, "A caption " * 30)
    text = printed(table, width)
    assert "…" not in text
    assert all(whole in text for whole in (*figures, "5 a step"))
    assert name in text.splitlines()
    words = " ".join(text.split())
    assert ("A title " * 30).strip() in words
    assert ("A caption " * 30).strip() in words
    if width < LEAST_WIDTH:
        assert max(len(line) for line in text.splitlines() if line != name) <= width


def test_a_file_gets_enough_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert min(make_console().width, make_console(stderr=True).width) >= LEAST_WIDTH
    # Whoever says how many there are is believed.
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert make_console().width == columns


def test_names_of_any_bytes_reach_any_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", terminal)
    name = b"f\xfcr \xe4 [/c]".decode(errors="surrogateescape")
    table = Table([Column("of", f"of {name}")], [(name,)], f"ü {name}")
    console = make_console()
    console.print(name, "µs")
    print_table(console, table)
    terminal.flush()
    said = terminal.buffer.getvalue().decode("ascii")
    assert said.startswith(r"f\udcfcr \udce4 [/c] \xb5s")
    assert said.count(r"\udce4 [/c]") == 4


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
