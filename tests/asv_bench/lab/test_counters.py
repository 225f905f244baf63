"""`nox -s counters`: what it compares, what it accepts, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.explain.engine_counts import PATHS
from tests import counters as command
from tests.counters import counters, differences, installed_versions, read_baseline
from tests.fresh_python import ROOT

COUNTERS = (*command.OF_TORCH, *command.OF_TRAFFIC, "launches")
COUNTERS += ("engine_python_calls", "python_calls")
KERNEL = {"registers": 64, "spill_instructions": 0, "stack_bytes": 0}
KERNEL |= {"shared_bytes": 1024, "instructions": 500, "cubin": "ab" * 8}


def make_steps(of: str = "graph, batch 64, step", **changes: int) -> dict[str, dict[str, Any]]:
    """Counters that keep every rule, but for changes in one of them."""
    parts = [(path, batch, part) for path in PATHS for batch in command.BATCHES for part in PARTS]
    steps: dict[str, dict[str, Any]] = {
        command.step_name(*one): dict.fromkeys(COUNTERS, 0) for one in parts
    }
    steps[of].update(changes)
    return steps


PARTS = ("step", "block")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where baselines go meanwhile; the tree's own are left alone."""
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    monkeypatch.setattr(command, "count_all", lambda console: make_steps())
    monkeypatch.setattr(command, "count_kernels", lambda console: {"linear-x": KERNEL})
    return tmp_path


def test_what_is_accepted_holds_with_its_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        counters()
    assert ended.value.exit_code == 4
    assert "nothing was accepted yet for " + installed_versions().key in capsys.readouterr().out
    assert list(folder.iterdir()) == []
    counters(accept="the first")
    counters(accept="  again ")
    baseline = read_baseline(folder / f"{installed_versions().key}.json")
    assert baseline is not None
    assert [one.why for one in baseline.accepted] == ["the first", "again"]
    assert all(one.date and one.commit for one in baseline.accepted)
    counters()
    assert "all " in capsys.readouterr().out


def test_what_differs_fails_with_a_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counters(accept="the first")
    monkeypatch.setattr(command, "count_all", lambda console: make_steps(operators=3))
    with pytest.raises(MeasurementFailed, match=r"1 counters differ from what .* accepted"):
        counters()
    out = capsys.readouterr().out
    for said in ("counters that changed", "graph, batch 64, step", "operators", "+3"):
        assert said in out
    monkeypatch.setattr(command, "count_all", lambda console: make_steps())
    other = {**KERNEL, "spill_instructions": 2, "cubin": "cd" * 8}
    spilling = {"linear-x": other, "linear-y": other}
    monkeypatch.setattr(command, "count_kernels", lambda console: spilling)
    with pytest.raises(MeasurementFailed, match="8 counters differ"):
        counters()
    out = capsys.readouterr().out
    for said in ("spill_instructions", "+2", "linear-y", "new"):
        assert said in out
    counters(steps_only=True)


def test_a_rule_or_a_half_is_never_accepted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="must say why"):
        counters(accept=" ")
    with pytest.raises(Refused, match="steps and kernels together"):
        counters(accept="why", steps_only=True)
    monkeypatch.setattr(command, "count_all", lambda c: make_steps(copies_to_device=1))
    with pytest.raises(MeasurementFailed, match="copies to the device 1 times"):
        counters(accept="it must be so")
    assert list(folder.iterdir()) == []


def test_differences_name_what_is_new_and_what_is_gone() -> None:
    before = {"a": {"x": 1, "y": None, "z": "p"}, "b": {"x": 2}}
    after = {"a": {"x": 3, "y": None, "z": "q"}, "c": {"x": 4}}
    assert list(differences(before, after)) == [
        ("a", "x", 1, 3, "+2"),
        ("a", "z", "p", "q", "other"),
        ("b", "x", 2, None, "gone"),
        ("c", "x", None, 4, "new"),
    ]


def test_the_key_leaves_out_for_which_device_torch_was_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"torch": "2.11.0+cu130", "triton": "3.6.0"}
    monkeypatch.setattr(command.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(command.platform, "python_version_tuple", lambda: ("3", "12", "7"))
    assert installed_versions() == command.Versions("3.12", "2.11.0", "3.6.0")
    assert installed_versions().key == "py3.12-torch2.11.0-triton3.6.0"


def test_the_locked_versions_have_a_baseline() -> None:
    locked = (ROOT / ".ci" / "locks" / "cpu.txt").read_text()
    pins = dict(line.split("==") for line in locked.splitlines() if line.count("==") == 1)
    name = f"py3.11-torch{pins['torch'].split('+')[0]}-triton{pins['triton'].split(' ')[0]}.json"
    baseline = read_baseline(command.FOLDER / name)
    assert baseline is not None, f"reports/counters has no {name}"
    assert baseline.accepted
    assert len(baseline.kernels) > 40
