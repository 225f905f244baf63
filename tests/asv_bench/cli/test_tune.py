"""`tune` as a command: what it refuses, and the table and the record that it writes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import asv_bench.cli.tune as command
from asv_bench.cli.commands import build_app
from asv_bench.cli.tune import decision_json
from asv_bench.errors import Refused
from asv_bench.lab.tune.search import Decision, Tried
from asv_bench.lab.tune.table_text import table_text
from asv_bench.output.record import write_json
from kernels.tiles.table import TABLE_FILE, Measured, committed_table, read_table
from kernels.tiles.tile import LinearTile, RingTile
from tests.tuned_steps import HEAD, RING, TABLE, FakeBench, optimum


def test_a_table_survives_being_written() -> None:
    ring = RingTile(64, 16, 256, ((1.5, 8), (math.inf, 3)), ((math.inf, 4),), 3, even=True)
    figures = {"B=1, context 256": Measured(200.25, 210.5), "B=64, context 257": Measured(300.0)}
    changed = (
        replace(TABLE, origin='a "GPU", torch 2')
        .with_tile(1, "head", LinearTile(16, 64, 128, stages=6, warps=8), Measured(280.5, 281.25))
        .with_tile(0, "attention_out", LinearTile(64, 64, 256, split_k=4, tma=True), Measured(9.0))
        .with_ring(0, ring, figures)
    )
    assert read_table(table_text(changed)) == changed
    assert read_table(table_text(TABLE)) == TABLE


def test_the_committed_file_is_what_tune_would_write() -> None:
    """Nobody edits it by hand, and one changed choice is a diff of one line and its bucket's."""
    text = TABLE_FILE.read_text("utf-8")
    assert table_text(committed_table()) == text
    text = table_text(TABLE)
    tile = replace(TABLE.tiles(64).head, block_n=64)
    changed = table_text(TABLE.with_tile(HEAD.place, "head", tile, Measured(1.0, 2.0)))
    pairs = zip(text.splitlines(), changed.splitlines(), strict=True)
    differing = [new for old, new in pairs if old != new]
    assert [line.split(" = ")[0] for line in differing] == ["step_us", "head"]
    assert differing[1].endswith("step_us = 1.0, next_us = 2.0 }")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "cpu"], "tune needs a GPU"),
        (["--roles", "head,tail"], "there is no role 'tail'"),
        (["--rows", "63"], "--rows has '63'"),
        (["--device", "cuda"], "table.toml is of a reference machine"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRAIL_MACHINE", "box")
    before = TABLE_FILE.read_bytes()
    done = CliRunner().invoke(build_app(), ["tune", *arguments])
    assert isinstance(done.exception, Refused)
    assert sentence in str(done.exception)
    assert TABLE_FILE.read_bytes() == before


def test_the_command_writes_table_and_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost, goal = optimum()
    monkeypatch.setenv("KVTRAIL_MACHINE", "box")
    monkeypatch.setattr("kernels.tiles.table.committed_table", lambda: TABLE)
    monkeypatch.setattr(command, "_workbench", lambda *_: FakeBench(cost))
    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "runs")
    output = tmp_path / "own.toml"
    arguments = ["--device", "cuda", "--roles", "head", "--rows", "64", "--output", str(output)]
    done = CliRunner().invoke(build_app(), ["tune", *arguments])
    assert done.exit_code == 0, done.output + repr(done.exception)
    written = read_table(output.read_text())
    assert written.tiles(64).head == goal
    assert "torch" in written.origin
    [copy] = (tmp_path / "runs").glob("tune-*.toml")
    assert copy.read_text() == output.read_text()
    [record] = (tmp_path / "runs").glob("tune-*.json")
    assert '"adopted": 2' in record.read_text()
    assert "block_m 64 to 128" in done.output


def test_a_decision_is_json(tmp_path: Path) -> None:
    trial = Tried(replace(TABLE.ring(64), split=64), 0.9, {"B=1": 1.0}, is_finalist=True)
    decision = Decision(
        RING, TABLE.ring(64), TABLE.ring(64), {"B=1": 2.0}, {"B=1": 2.0}, 1.0, (trial,)
    )
    content = decision_json(decision)
    write_json(tmp_path / "x.json", content)
    assert content["trials"][0]["choice"]["split"] == 64
    assert not content["adopted"]
    assert decision.measured == {"B=1": Measured(2.0, 1.0)}
