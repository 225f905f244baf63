"""Counters of a step: the same in every process, and each planted fault is seen."""

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

from asv_bench.explain.engine_counts import BLOCK_SIZE
from tests.counters import broken_rules, differences, python_calls
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
                "attended = block.attention.attended(layer, normed, turn, attend)",
            ),
            "attended = block.attention.attended(layer, normed, turn, attend).neg()",
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
