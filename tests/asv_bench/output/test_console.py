"""Tables in a file and on narrow terminals: names give way, figures stay whole."""

from __future__ import annotations

import io

import pytest
from printed_tables import printed

from asv_bench.output.console import LEAST_WIDTH, make_console, print_table
from asv_bench.output.table import Column, Table

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
