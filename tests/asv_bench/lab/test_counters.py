"""Counters of a step: the same in every process, each planted fault seen; and `nox -s counters`."""

from __future__ import annotations

import gc
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.explain.engine_counts import BLOCK_SIZE, PATHS
from tests import counters as command
from tests.counters import broken_rules, counters, differences, python_calls, read_baseline
from tests.fresh_python import ROOT, forked_python, planted

COUNT = """
import json, sys
from tests.counters import count_steps
counted = {}
for name in sys.argv[1:]:
    path, batch = name.split("-")
    counted |= count_steps(path, int(batch))
json.dump(counted, sys.stdout)
"""
ALL_PATHS = [f"{path}-{batch}" for path in ("cpu", "graph", "fused", "plain") for batch in (8, 64)]


def run_count(root: Path, names: Sequence[str], **environment: str) -> Any:
    """Count in a process of its own, with the engine of `root` and the ruler of this tree."""
    return forked_python(COUNT, *names, search=(root, ROOT), **environment)


def count(root: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    done = run_count(root, names)
    assert done.returncode == 0, done.stderr
    counted: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return counted


@pytest.fixture(scope="module")
def good() -> dict[str, dict[str, Any]]:
    """The counters of the engine as it is."""
    return count(ROOT, ALL_PATHS)


def test_the_same_in_another_process_and_as_the_rules_demand(
    good: dict[str, dict[str, Any]],
) -> None:
    again = count(ROOT, ["graph-64", "fused-8", "cpu-8"])
    assert list(differences({name: good[name] for name in again}, again)) == []
    assert list(broken_rules(good)) == []
    steady = good["graph, batch 64, step"]
    assert (steady["graph_replays"], steady["copies_to_host"]) == (1, 0)
    # Two layers of five launches, and the first, the head and the last.
    assert good["fused, batch 8, step"]["launches"] == 2 * 5 + 3
    # Append, attention and two norms.
    assert good["plain, batch 8, step"]["launches"] == 2 * 4
    on_cpu = good["cpu, batch 8, step"]
    assert on_cpu["launches"] == 0
    # Views and what is written in place are not new.
    assert 0 < on_cpu["new_tensors"] < on_cpu["operators"]
    # One block boundary among the steps of a block: one scatter, which reads the host's memory.
    assert (steady["operators"], good["graph, batch 8, block"]["operators"]) == (0, 1)
    assert good["graph, batch 8, block"]["copies_to_device"] == 0
    # No Python function is called for each request, not even to make the events.
    calls = [good[f"cpu, batch {batch}, step"]["python_calls"] for batch in (8, 64)]
    assert calls[1] == calls[0]


TRACKED = "        self._track(plan.sampling)\n"
MADE = "        import torch\n        torch.ones(3).to(self.worker.rows.fields.position.device)\n"
SENT = "        self._num_sent += 1\n"
IN_LOOP = ("engine/running/step_loop.py", TRACKED)
COPIES = ("graph-8", "graph-64")
PARTS = ("step", "block")
# What copies more than it should, and in which direction.
COPYING = {
    "tensor.to": (IN_LOOP, MADE + TRACKED, "device"),
    "ring": (
        ("engine/transport/token_slots.py", SENT),
        SENT + "        self.slots.cpu()\n",
        "host",
    ),
}
INDEXED = "        index = held.received[to.rows]\n"
FOR_EACH = "        for row in to.rows.tolist():\n            held.holder(row)\n"


@pytest.mark.parametrize(
    ("place", "after", "counted", "counters", "change", "sentences"),
    [
        pytest.param(
            (
                "engine/models/decoder.py",
                "attended = block.attention.attended(layer, normed, own, attend)",
            ),
            "attended = block.attention.attended(layer, normed, own, attend).neg()",
            *(("cpu-8", "plain-8"), "operators new_tensors", "+2", []),
            id="an operator in each of the two layers",
        ),
        pytest.param(
            *(("engine/running/step_loop.py", INDEXED), FOR_EACH + INDEXED),
            ("cpu-8", "cpu-64", "graph-8", "graph-64"),
            *("engine_python_calls", "+{batch}", ["calls 1 Python functions for each request"] * 2),
            id="a call for each request",
        ),
        *(
            pytest.param(
                *(place, after, COPIES, f"copies_to_{where}", "+1"),
                [f"a steady step copies to the {where}"],
                marks=pytest.mark.thorough,
                id=name,
            )
            for name, (place, after, where) in COPYING.items()
        ),
    ],
)
def test_what_a_step_does_more_is_seen(
    tmp_path: Path,
    good: dict[str, dict[str, Any]],
    place: tuple[str, str],
    after: str,
    counted: Sequence[str],
    counters: str,
    change: str,
    sentences: Sequence[str],
) -> None:
    found = count(planted(tmp_path, *place, after), counted)
    before = {name: good[name] for name in found}
    differing = {row[:2]: row[2:] for row in differences(before, found)}
    for one, counter in itertools.product(counted, counters.split()):
        path, batch = one.split("-")
        step, block = (differing[f"{path}, batch {batch}, {part}", counter] for part in PARTS)
        assert step[2] == change.format(batch=batch)
        assert block[1] - block[0] == BLOCK_SIZE * (step[1] - step[0])
    broken = list(broken_rules({**good, **found}))
    assert len(broken) == len(sentences)
    assert all(part in said for part, said in zip(sentences, broken, strict=True))


@pytest.mark.parametrize("variable", ["TRITON_INTERPRET", "KVTRAIL_NVTX", "KVTRAIL_CHECK_VALUES"])
def test_what_would_change_the_path_is_refused(variable: str) -> None:
    done = run_count(ROOT, ["cpu-8"], **{variable: "1"})
    assert done.returncode == 1
    assert f"{variable} must not be set" in done.stderr


def test_an_engine_that_falls_behind_is_refused(tmp_path: Path) -> None:
    events = "            return batches[0].events()"
    root = planted(tmp_path, "engine/engine.py", f"{events}\n", f"{events}[1:]\n")
    done = run_count(root, ["cpu-8"])
    assert done.returncode == 1
    assert "must deliver 8 tokens, but this one delivered 7" in done.stderr


def _twice(value: int) -> int:
    return _once(value) + _once(value)


def _once(value: int) -> int:
    return value


def test_every_call_is_counted_once_and_the_engines_own_apart() -> None:
    from kernels.tiles.launch import padded

    array = np.array([3, 1, 2])
    # Its first use imports what it needs.
    np.unique(array)
    with python_calls() as empty:
        pass
    with python_calls() as calls:
        _twice(1)
        # What numpy calls itself is not counted.
        np.unique(array)
        np.array_equal(array, array)
    assert (calls.total - empty.total, calls.engine) == (3, 0)
    with python_calls() as calls:
        padded(3)
        _twice(1)
    assert 1 <= calls.engine <= calls.total - 3


def test_counting_ends_with_its_block_also_when_that_fails() -> None:
    was_collecting = gc.isenabled()
    with pytest.raises(KeyError), python_calls() as calls:
        raise KeyError
    total = calls.total
    _twice(1)
    assert (calls.total, gc.isenabled(), sys.getprofile()) == (total, was_collecting, None)


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
    assert (
        "nothing was accepted yet for " + command.installed_versions().key
        in capsys.readouterr().out
    )
    assert list(folder.iterdir()) == []
    counters(accept="the first")
    counters(accept="  again ")
    baseline = read_baseline(folder / f"{command.installed_versions().key}.json")
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
    assert command.installed_versions() == command.Versions("3.12", "2.11.0", "3.6.0")
    assert command.installed_versions().key == "py3.12-torch2.11.0-triton3.6.0"


def test_the_locked_versions_have_a_baseline() -> None:
    locked = (ROOT / ".ci" / "locks" / "cpu.txt").read_text()
    pins = dict(line.split("==") for line in locked.splitlines() if line.count("==") == 1)
    name = f"py3.11-torch{pins['torch'].split('+')[0]}-triton{pins['triton'].split(' ')[0]}.json"
    baseline = read_baseline(command.FOLDER / name)
    assert baseline is not None, f"reports/counters has no {name}"
    assert baseline.accepted
    assert len(baseline.kernels) > 40
