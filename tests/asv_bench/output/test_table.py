"""One table: shown on a terminal, and written as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest
from printed_tables import printed

from asv_bench.errors import Refused
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
