"""Pairs on disk: what was measured is not measured again, and nothing else is taken for it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from measured_rounds import pair_of_lives

from asv_bench.measure import log
from asv_bench.measure.log import Log, Logged
from asv_bench.measure.samples import Pair, Reading
from asv_bench.process.gpu import GpuConditions
from tests.simulations.commits import SimulatedCommits
from tests.simulations.noise import Noise


def machine(seed: int = 0) -> SimulatedCommits:
    return SimulatedCommits({"a": 0.0, "b": 0.1, "c": 0.2}, Noise(), seed)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where pairs are kept."""
    return tmp_path / "state" / "x.jsonl"


def test_a_pair_is_the_same_after_it_was_written() -> None:
    gpu = GpuConditions(1980.0, 1965.0, 1980.0, ("gpu_idle",), 41, 12)
    base = Reading("a" * 40, "x", 0.5, (0.4, 0.5, 0.6), "GPU-1", 12.5, 3.25, gpu)
    head = Reading("b" * 40, "x", 0.75, (0.75,), "cpu", 13.5, 3.0)
    pair = Pair(base, head, head_first=True, discarded="the clock moved")
    assert msgspec.convert(json.loads(json.dumps(pair.to_json())), Pair) == pair


def test_pairs_come_in_order_and_only_to_their_part_and_commits(path: Path) -> None:
    source = Logged(machine(), Log(path), "gate")
    measured = [pair_of_lives(source, "a", "b") for _ in range(3)]
    again, kept = machine(1), Log(path)
    assert (kept.restored, kept.finished) == (3, False)
    gate = Logged(again, kept, "gate")
    # All that was measured together is told, whichever metric is asked for.
    metrics: list[Sequence[str]] = [(), (), list(measured[2])[:1]]
    assert [pair_of_lives(gate, "a", "b", metrics=names) for names in metrics] == measured
    assert again.measured["simulated"] == 0
    for part, head in (("gate", "b"), ("gate", "c"), ("search", "b")):
        fresh = pair_of_lives(Logged(again, kept, part), "a", head)
        assert fresh not in measured
    assert again.measured["simulated"] == 3
    kept.finish()
    assert Log(path).finished


def test_a_line_that_was_cut_off_is_dropped_and_the_next_one_is_whole(path: Path) -> None:
    source = Logged(machine(), Log(path), "gate")
    for _ in range(2):
        pair_of_lives(source, "a", "b")
    path.write_bytes(path.read_bytes()[:-40])
    kept = Log(path)
    assert kept.restored == 1
    pair_of_lives(Logged(machine(), kept, "search"), "a", "b")
    # And one of anything else is left out with a sentence.
    odd = ['{"settings": {"good": "z"}}', "no JSON", "[]", "3", ""]
    path.write_text("\n".join([*odd, path.read_text()]))
    kept = Log(path)
    assert kept.restored == 2
    numbers = [sentence.partition(" of ")[0] for sentence in kept.complaints]
    assert numbers == [f"line {number}" for number in range(1, 6)]


def test_the_oldest_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "FOLDER", tmp_path)
    monkeypatch.setattr(log, "_KEPT_FILES", 2)
    for number in range(4):
        kept = Log.of_settings({"number": number}, "compare")
        pair_of_lives(Logged(machine(), kept, "pairs"), "a", "b")
        os.utime(kept.path, (number, number))
    # Removed before the last was written: two older ones are left.
    assert len(list(tmp_path.iterdir())) == 3
    assert kept.path.is_file()


def test_the_ruler_is_its_code_and_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "RULER", tmp_path)
    found = set()
    for name in ("code.py", "table.toml", "notes.txt"):
        (tmp_path / name).write_text(name)
        found.add(log.ruler.__wrapped__())
    assert len(found) == 2
