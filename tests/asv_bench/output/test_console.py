"""Tables in a file and on narrow terminals: names give way, figures stay whole."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from printed_tables import printed

import asv_bench
from asv_bench.bisect.account import commit_table
from asv_bench.bisect.finding import CurvePoint, Direction, Finding, Outcome
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.tables import comparison_table
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.git.repository import Commit
from asv_bench.output.console import LEAST_WIDTH, make_console, print_table
from asv_bench.output.table import Column, Table


@pytest.mark.parametrize("width", [40, 80, LEAST_WIDTH])
def test_neither_figures_nor_names_are_ever_cut(width: int) -> None:
    name = "a_kernel_whose_name_is_longer_than_any_console_is_wide_" * 3
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
    assert make_console().width >= LEAST_WIDTH
    assert make_console(stderr=True).width >= LEAST_WIDTH
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


@pytest.mark.parametrize(
    ("pattern", "what"),
    [(r"\bConsole\(", "consoles"), (r"console\.print\(\s*\w*(?:table|drawn)", "tables")],
)
def test_every_command_prints_on_the_common_console(pattern: str, what: str) -> None:
    folder = Path(asv_bench.__file__).parent
    found = [path.name for path in folder.rglob("*.py") if re.search(pattern, path.read_text())]
    assert found == ["console.py"], what


NAME = "scheduler.Scheduler.track_decode_seconds_per_token('gpt2-tiny')"
SUBJECT = "Take parts of the engine from wherever the measured commit happens to have them today"
HASHES = [f"{number:08x}" + "0" * 32 for number in range(0xABC0, 0xABC3)]
COMPARED = Comparison(
    NAME,
    HASHES[0],
    HASHES[1],
    Verdict.INCONCLUSIVE,
    effect=0.1234,
    interval=(-0.1234, 0.2345),
    p=0.00012,
    pairs_used=24,
    pairs_discarded=12,
    base_value=1.3e-3,
    head_value=1.4e-3,
)
FINDING = Finding(
    outcome=Outcome.FOUND,
    direction=Direction.REGRESSION,
    benchmark=NAME,
    good=HASHES[0],
    bad=HASHES[2],
    reason="",
    gate=Comparison(NAME, HASHES[0], HASHES[2], Verdict.SLOWER),
    suspects=(HASHES[1],),
    probability=0.99,
    posterior=dict.fromkeys(HASHES, 0.33),
    unmeasurable={HASHES[2]: "it cannot be built"},
    curve=(CurvePoint(HASHES[1], 0.1234, (0.1111, 0.1357), 24),),
)


@pytest.mark.parametrize(
    ("table", "wholes"),
    [
        (
            comparison_table([COMPARED], {NAME: "seconds"}, "b against a", ComparisonPlan()),
            [NAME, "-12.34 % to +23.45 %", "24 (+12 discarded)", "inconclusive"],
        ),
        (
            commit_table(FINDING, [Commit(one, SUBJECT, "Somebody") for one in HASHES]),
            [*(one[:8] for one in HASHES), "cannot be measured", "+12.34 %", "33.0 %"],
        ),
    ],
    ids=["compare", "bisect"],
)
def test_a_table_fits(table: Table, wholes: list[str]) -> None:
    shown = printed(table, 80)
    assert max(map(len, shown.splitlines())) <= 80, shown
    for whole in wholes:
        assert any(whole in line for line in shown.splitlines()), f"{whole} in\n{shown}"
