"""Counters of a step: the same in every process, and each planted fault is seen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from asv_bench.lab.counters.counter_baselines import Difference, differences
from asv_bench.lab.counters.step_counters import broken_rules
from tests.fresh_python import ROOT, fresh_python

COUNT = """
import json, sys
from asv_bench.lab.counters.step_counters import count_steps, path_named, step_name
counted = {}
for name in sys.argv[1:]:
    path, batch = name.split("-")
    steps = count_steps(path_named(path), int(batch))
    counted[step_name(path, int(batch), "step")] = steps.step
    counted[step_name(path, int(batch), "block")] = steps.block
json.dump(counted, sys.stdout)
"""
ALL_PATHS = [f"{path}-{batch}" for path in ("cpu", "graph", "fused", "plain") for batch in (8, 64)]


def run_count(root: Path, names: Sequence[str], **environment: str) -> Any:
    """Count in a process of its own, with the engine of `root` and the ruler of this tree."""
    return fresh_python("-c", COUNT, *names, search=(root, ROOT), **environment)


def count(root: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    done = run_count(root, names)
    assert done.returncode == 0, done.stderr
    counted: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return counted


@pytest.fixture(scope="module")
def good() -> dict[str, dict[str, Any]]:
    """The counters of the engine as it is."""
    return count(ROOT, ALL_PATHS)


def planted(tmp_path: Path, file: str, before: str, after: str) -> Path:
    """A copy of the engine with one change."""
    for package in ("engine", "kernels"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    source = tmp_path / file
    text = source.read_text()
    assert text.count(before) == 1, f"{file} no longer holds {before!r} once"
    source.write_text(text.replace(before, after))
    return tmp_path


def changed(
    good: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]
) -> dict[tuple[str, str], Difference]:
    before = {name: good[name] for name in after}
    return {(one.what, one.counter): one for one in differences(before, after)}


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
    assert good["cpu, batch 8, step"]["launches"] == 0
    # One block boundary among the steps of a block: one scatter, which reads the host's memory.
    assert (steady["operators"], good["graph, batch 8, block"]["operators"]) == (0, 1)
    assert good["graph, batch 8, block"]["copies_to_device"] == 0
    # No Python function is called for each request, not even to make the events.
    calls = [good[f"cpu, batch {batch}, step"]["python_calls"] for batch in (8, 64)]
    assert calls[1] == calls[0]


def test_one_more_operator_in_each_layer_is_seen(
    tmp_path: Path, good: dict[str, dict[str, Any]]
) -> None:
    root = planted(
        tmp_path,
        "engine/models/decoder.py",
        "attended = attend(layer, q, k, v)",
        "attended = attend(layer, q, k, v).neg()",
    )
    found = changed(good, count(root, ["cpu-8", "plain-8"]))
    for path in ("cpu", "plain"):
        one = found[f"{path}, batch 8, step", "operators"]
        assert one.after - one.before == 2, "one for each of the two layers"
        assert found[f"{path}, batch 8, step", "new_tensors"].change == "+2"
        assert found[f"{path}, batch 8, block", "operators"].change == "+32"


@pytest.mark.parametrize(
    ("file", "before", "after", "counter"),
    [
        (
            "engine/running/step_loop.py",
            "        self._track(plan.sampling)\n",
            "        import torch\n"
            "        torch.ones(3).to(self._device_rows.fields.position.device)\n"
            "        self._track(plan.sampling)\n",
            "copies_to_device",
        ),
        (
            "engine/running/step_loop.py",
            "        self._track(plan.sampling)\n",
            "        self._staging.to_device(plan.rows)\n        self._track(plan.sampling)\n",
            "copies_to_device",
        ),
        (
            "engine/running/step_loop.py",
            "        self._track(plan.sampling)\n",
            "        self._device_rows.fields.remaining.max().item()\n"
            "        self._track(plan.sampling)\n",
            "copies_to_host",
        ),
        (
            "engine/transport/token_slots.py",
            "        self._num_sent += 1\n",
            "        self._num_sent += 1\n        self.slots.cpu()\n",
            "copies_to_host",
        ),
    ],
    ids=["tensor.to", "staged", "item", "ring"],
)
@pytest.mark.thorough
def test_a_copy_between_host_and_device_in_a_step_is_seen(
    tmp_path: Path,
    good: dict[str, dict[str, Any]],
    file: str,
    before: str,
    after: str,
    counter: str,
) -> None:
    root = planted(tmp_path, file, before, after)
    after = count(root, ["graph-8", "graph-64"])
    found = changed(good, after)
    one = found["graph, batch 8, step", counter]
    assert one.after > one.before
    if counter.startswith("copies"):
        assert one.change == "+1"
        direction = "the device" if counter == "copies_to_device" else "the host"
        (sentence,) = broken_rules({**good, **after})
        assert f"a steady step copies to {direction}" in sentence


def test_one_more_python_call_for_each_request_is_seen(
    tmp_path: Path, good: dict[str, dict[str, Any]]
) -> None:
    root = planted(
        tmp_path,
        "engine/running/step_loop.py",
        "        index = held.received[to.rows]\n",
        "        for row in to.rows.tolist():\n"
        "            held.holder(row)\n"
        "        index = held.received[to.rows]\n",
    )
    after = count(root, ["cpu-8", "cpu-64", "graph-8", "graph-64"])
    for path in ("cpu", "graph"):
        for batch in (8, 64):
            name = f"{path}, batch {batch}, step"
            grown = after[name]["engine_python_calls"] - good[name]["engine_python_calls"]
            assert grown == batch, name
    sentences = list(broken_rules({**good, **after}))
    assert len(sentences) == 2
    assert "calls 1 Python functions for each request in a steady step" in sentences[0]


def test_another_launch_is_seen(tmp_path: Path, good: dict[str, dict[str, Any]]) -> None:
    root = planted(
        tmp_path,
        "engine/fused/step.py",
        "    def _run_block(\n",
        "    def _run_block(self, *arguments):\n"
        "        self._run_once(*arguments)\n"
        "        self._run_once(*arguments)\n\n"
        "    def _run_once(\n",
    )
    found = changed(good, count(root, ["fused-8"]))
    assert found["fused, batch 8, step", "launches"].change == "+10"


@pytest.mark.parametrize("variable", ["TRITON_INTERPRET", "KVTRAIL_NVTX", "KVTRAIL_CHECK_VALUES"])
def test_what_would_change_the_path_is_refused(variable: str) -> None:
    done = run_count(ROOT, ["cpu-8"], **{variable: "1"})
    assert done.returncode == 1
    assert f"{variable} must not be set" in done.stderr


def test_an_engine_that_falls_behind_is_refused(tmp_path: Path) -> None:
    root = planted(
        tmp_path,
        "engine/engine.py",
        "            return batches[0].events()\n",
        "            return batches[0].events()[1:]\n",
    )
    done = run_count(root, ["cpu-8"])
    assert done.returncode == 1
    assert "must deliver 8 tokens, but this one delivered 7" in done.stderr
