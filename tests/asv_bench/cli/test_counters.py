"""`counters`: what it compares, what it accepts, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from asv_bench.cli import counters as command
from asv_bench.cli.counters import NO_BASELINE, counters
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.lab.counters import counter_baselines
from asv_bench.lab.counters.counter_baselines import (
    FOLDER,
    CounterDifference,
    Versions,
    differences,
    installed_versions,
    read_baseline,
)
from asv_bench.lab.counters.step_counters import BATCHES, COUNTERS, PATHS, step_name

ROOT = Path(__file__).resolve().parents[3]
KERNEL = {"registers": 64, "spill_instructions": 0, "stack_bytes": 0}
KERNEL |= {"shared_bytes": 1024, "instructions": 500, "cubin": "ab" * 8}


def make_steps(**changes: int) -> dict[str, dict[str, Any]]:
    """Counters that keep every rule, with `changes` in the graph's step of 64."""
    steps: dict[str, dict[str, Any]] = {}
    for path in PATHS:
        for batch in BATCHES:
            for part in ("step", "block"):
                steps[step_name(path.name, batch, part)] = dict.fromkeys(COUNTERS, 0)
    steps["graph, batch 64, step"].update(changes)
    return steps


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where baselines go meanwhile; the tree's own are left alone."""
    monkeypatch.setattr(counter_baselines, "FOLDER", tmp_path)
    monkeypatch.setattr(command, "count_all", lambda console: make_steps())
    monkeypatch.setattr(command, "_compiled", lambda console: {"linear-x": KERNEL})
    return tmp_path


def test_without_a_baseline_it_says_so_and_exits_with_a_code_of_its_own(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        counters()
    assert ended.value.exit_code == NO_BASELINE == 4
    assert "nothing was accepted yet for " + installed_versions().key in capsys.readouterr().out
    assert list(folder.iterdir()) == []


def test_what_is_accepted_holds_with_its_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counters(accept="the first")
    path = installed_versions().path
    assert path.parent == folder
    counters(accept="  again ")
    baseline = read_baseline(path)
    assert baseline is not None
    assert [one.why for one in baseline.accepted] == ["the first", "again"]
    assert all(one.date and one.commit for one in baseline.accepted)
    counters()
    assert "all " in capsys.readouterr().out


@pytest.mark.parametrize("counter", COUNTERS)
def test_any_counter_that_differs_fails_with_a_table(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    counter: str,
) -> None:
    counters(accept="the first")
    spoilt = make_steps()
    spoilt["fused, batch 8, block"][counter] += 3
    monkeypatch.setattr(command, "count_all", lambda console: spoilt)
    with pytest.raises(MeasurementFailed, match=r"1 counters differ from what .* accepted"):
        counters()
    out = capsys.readouterr().out
    assert "counters that changed" in out
    assert "fused, batch 8, block" in out
    assert counter in out
    assert "+3" in out


def test_kernels_are_compared_by_their_figures_and_their_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counters(accept="the first")
    other = {**KERNEL, "spill_instructions": 2, "cubin": "cd" * 8}
    spilling = {"linear-x": other, "linear-y": other}
    monkeypatch.setattr(command, "_compiled", lambda console: spilling)
    with pytest.raises(MeasurementFailed, match="8 counters differ"):
        counters()
    out = capsys.readouterr().out
    assert "spill_instructions" in out
    assert "+2" in out
    assert "linear-y" in out
    assert "new" in out
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


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 2}', '{"schema": 1}'])
def test_a_file_that_is_no_baseline_is_refused(folder: Path, content: str) -> None:
    installed_versions().path.write_text(content)
    with pytest.raises(Refused, match="holds no baseline of counters"):
        counters()


def test_differences_name_what_is_new_and_what_is_gone() -> None:
    before = {"a": {"x": 1, "y": None, "z": "p"}, "b": {"x": 2}}
    after = {"a": {"x": 3, "y": None, "z": "q"}, "c": {"x": 4}}
    found = list(differences(before, after))
    assert found == [
        CounterDifference("a", "x", 1, 3),
        CounterDifference("a", "z", "p", "q"),
        CounterDifference("b", "x", 2, None),
        CounterDifference("c", "x", None, 4),
    ]
    assert [one.change for one in found] == ["+2", "other", "gone", "new"]


def test_the_key_leaves_out_for_which_device_torch_was_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"torch": "2.11.0+cu130", "triton": "3.6.0"}
    monkeypatch.setattr(counter_baselines.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(
        counter_baselines.platform, "python_version_tuple", lambda: ("3", "12", "7")
    )
    assert installed_versions() == Versions("3.12", "2.11.0", "3.6.0")
    assert installed_versions().path == FOLDER / "py3.12-torch2.11.0-triton3.6.0.json"


def test_the_locked_versions_have_a_baseline() -> None:
    locked = (ROOT / ".ci" / "locks" / "cpu.txt").read_text()
    pins = dict(line.split("==") for line in locked.splitlines() if line.count("==") == 1)
    name = f"py3.11-torch{pins['torch'].split('+')[0]}-triton{pins['triton'].split(' ')[0]}.json"
    baseline = read_baseline(FOLDER / name)
    assert baseline is not None, f"reports/counters has no {name}"
    assert baseline.accepted
    assert len(baseline.kernels) > 40


SPILLING = """
import dataclasses, json
from asv_bench.lab.codegen.compiled import compile_kernels
from asv_bench.lab.codegen.launched_kernels import described_kernel
from kernels.tiles.variants import kernel_variants
good = next(v for v in kernel_variants() if v.name == "decode-serial-gpt2-fp16")
bad = dataclasses.replace(good, constants={**good.constants, "BLOCK_N": 256}, num_warps=1)
compiled = compile_kernels([described_kernel(one) for one in (good, bad)])
print(json.dumps([{one.name: one.figures()} for one in compiled]))
"""


@pytest.mark.thorough
def test_a_kernel_that_spills_is_seen() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPILLING], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    good, bad = json.loads(done.stdout)
    found = {one.counter: one for one in differences(good, bad)}
    assert found["spill_instructions"].before == 0
    assert found["spill_instructions"].after > 0
    assert found["stack_bytes"].after > 0
    assert found["cubin"].change == "other"
