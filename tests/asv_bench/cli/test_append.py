"""`append`: steps with append's stores and without, in turn, and what they differ by."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from asv_bench.__main__ import build_app
from asv_bench.cli.append import first_contexts
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.lab.tune.append_cost import AppendCost, AppendTimes, append_costs, append_table
from asv_bench.output.tables import markdown
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.workloads.named import workload_named
from tests.fresh_python import fresh_python


def times(context: float, cost_us: float, captures: int = 8) -> AppendTimes:
    """Of a step of 100 us, and one more in each capture, whose last round is disturbed."""
    bare = [[100.0 + capture, 101.0 + capture, 400.0] for capture in range(captures)]
    whole = [[one + 12 * cost_us for one in rounds] for rounds in bare]
    return AppendTimes("wide", 256, context, 12, 1_600_000, whole, bare)


def test_the_cost_is_a_layers_and_by_captures_whose_rounds_may_be_disturbed() -> None:
    one = times(140.0, 0.4)
    assert one.costs_us == pytest.approx([0.4] * 8)
    cost = AppendCost([one])
    assert cost.layer_us.value == pytest.approx(0.4)
    assert cost.step_us == pytest.approx(101.0 + 3.5 + 12 * 0.4)
    # 1.6 MB at 4 TB/s take 0.4 us.
    assert cost.of_byte_time(4e12).value == pytest.approx(1.0)


def test_an_interval_is_as_wide_as_captures_differ() -> None:
    one = times(140.0, 0.4)
    whole = [[at + 12 * place for at in rounds] for place, rounds in enumerate(one.whole_us)]
    spread = AppendCost([AppendTimes("wide", 256, 140.0, 12, 1, whole, one.bare_us)]).layer_us
    assert spread.low < 2.0 < spread.value < 6.0 < spread.high
    assert str(spread.over(2.0)) == f"1.95 ({spread.low / 2:.2f} to {spread.high / 2:.2f})"


def test_a_run_counts_its_parts_alike_and_stands_before_them() -> None:
    whole, *parts = append_costs([times(140.0, 0.2), times(360.0, 0.6)])
    assert whole.layer_us.value == pytest.approx(0.4)
    assert [one.layer_us.value for one in parts] == pytest.approx([0.2, 0.6])
    assert whole.context == 250.0
    assert whole.to_json(4e12)["of_byte_time"]["value"] == pytest.approx(1.0)
    text = markdown(append_table([whole, *parts], 4e12))
    assert "| wide, all | 256 | 250 | 109.3 | 0.40 (0.40 to 0.40) | 1.00 (1.00 to 1.00) |" in text
    assert "| wide | 256 | 360 | 111.7 | 0.60 (0.60 to 0.60) | 1.50 (1.50 to 1.50) |" in text


def test_the_only_part_of_a_run_is_said_once() -> None:
    [cost] = append_costs([times(140.0, 0.2)])
    assert cost.layer_us.value == pytest.approx(0.2)
    text = markdown(append_table([cost], 4e12))
    assert text.count("wide") == 1
    assert "| wide | 256 | 140 |" in text


def test_contexts_are_the_middles_of_a_runs_parts() -> None:
    """`wide` attends to 129 to 383 tokens; those that are timed to 12 more than the first does."""
    assert first_contexts(workload_named("wide"), 4, 12.0) == [148, 212, 276, 340]
    # Where a part's middle is nearer to the beginning than the steps that are timed.
    assert first_contexts(workload_named("scheduler"), 64, 12.0)[0] == 1


class FakeRows:
    """Rows whose steps append and take long unless attention is the one without its stores."""

    point = SimpleNamespace(rows=2)

    def __init__(self, **wrong: Any) -> None:
        from kernels.attention.hopper import ring_launch

        self._launch = ring_launch
        self._whole = ring_launch.ring_attention
        self._wrong = wrong
        self.fused = SimpleNamespace(retabled=lambda table: SimpleNamespace(stores=self._stores()))
        self.checked = self.is_filled = False

    def _stores(self) -> bool:
        return self._launch.ring_attention is self._whole

    def check(self, fused: object) -> None:
        self.checked = True

    def run(self, fused: object) -> object:
        import torch

        from asv_bench.lab.tune.step_rows import Stepped

        stores = self.is_filled = self._stores()
        token = self._wrong.get("token", 7) if not stores else 7
        appended = torch.zeros(4)
        if self._wrong.get("appends", stores) is not True:
            appended[self._wrong.get("left", slice(None))] = float("nan")
        return Stepped(torch.zeros(2), torch.tensor([token]), appended)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Which capture was timed when, and whether it stores."""
    from asv_bench.lab.tune import append_steps

    timed: list[tuple[int, bool]] = []
    numbers = itertools.count()

    def step_us(rows: FakeRows, graph: tuple[int, bool], fused: object) -> float:
        assert rows.is_filled, "the slots of the step before are poisoned"
        timed.append(graph)
        return 10.0 * graph[0] + graph[1]

    monkeypatch.setattr(
        append_steps, "capture_step", lambda fused, count: (next(numbers), fused.stores)
    )
    monkeypatch.setattr(append_steps, "step_us", step_us)
    return timed


def test_captures_are_made_and_timed_in_turn(order: list[tuple[int, bool]]) -> None:
    from asv_bench.lab.tune.append_steps import time_append
    from kernels.attention.hopper import ring_launch

    kept, rows = ring_launch.ring_attention, FakeRows()
    whole, bare = time_append(rows, captures=2, rounds=2)  # type: ignore[arg-type]
    assert rows.checked
    assert order[:4] == [(0, True), (1, False), (2, True), (3, False)]
    assert order[4:] == order[3::-1]
    assert (whole, bare) == ([[1.0, 1.0], [21.0, 21.0]], [[10.0, 10.0], [30.0, 30.0]])
    assert ring_launch.ring_attention is kept


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"appends": True}, "appends without its stores"),
        ({"appends": False, "left": 3}, "appends too little"),
        ({"token": 8}, "chooses other tokens"),
    ],
)
def test_steps_that_differ_in_anything_else_are_no_measurement(
    order: list[tuple[int, bool]], wrong: dict[str, Any], sentence: str
) -> None:
    from asv_bench.lab.tune.append_steps import time_append

    with pytest.raises(MeasurementFailed, match=sentence):
        time_append(FakeRows(**wrong), captures=2, rounds=2)  # type: ignore[arg-type]
    assert not order


COMPILED = """
import torch
import triton
from asv_bench.lab.codegen import launched_kernels as launched
from asv_bench.lab.codegen.sass import GLOBAL_STORE, disassemble
from asv_bench.lab.codegen.target import target
from asv_bench.lab.counters.pretend_cuda import HOPPER
from asv_bench.lab.tune.append_steps import storing_nothing
from kernels.attention.fused import fused_attention

def stores(rows):
    with launched._pretended(HOPPER) as traffic:
        half = {"dtype": torch.float16, "device": "cuda"}
        whole = {"dtype": torch.int32, "device": "cuda"}
        cache = torch.empty(64, 12, 64, 2, 64, **half)
        fused_attention(
            torch.empty(rows, 3 * 768, **half), cache[..., 0, :], cache[..., 1, :],
            torch.zeros(rows, 4, **whole), torch.zeros(rows, **whole), torch.zeros(rows, **whole),
            torch.empty(rows, 768, **half), scale=0.125, pdl=True,
        )
        [launch] = traffic.launches
        kernel = launched._specialised(launch, "fp16")
    compiled = triton.compile(kernel.source, target=target(), options=dict(kernel.options))
    widths = [one.access_bytes for one in disassemble(compiled.asm["cubin"]).matching(GLOBAL_STORE)]
    return sorted(widths)

for rows in (4, 256):
    whole = stores(rows)
    with storing_nothing():
        bare = stores(rows)
    again = stores(rows)
    assert whole == again, (whole, again)
    missing = list(whole)
    for width in bare:
        missing.remove(width)
    # A key's and a value's, 16 bytes a thread.
    assert missing == [16, 16], (rows, whole, bare)
"""


@pytest.mark.thorough
def test_without_its_stores_attention_is_compiled_without_them_and_nothing_else() -> None:
    done = fresh_python("-c", COMPILED)
    assert done.returncode == 0, done.stderr


def test_a_source_without_stores_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from asv_bench.lab.tune import append_steps

    other = tmp_path / "attention.py"
    other.write_text("def ring_attention(): ...\n")
    monkeypatch.setattr(append_steps, "ring_attention", SimpleNamespace(__file__=str(other)))
    with pytest.raises(MeasurementFailed, match="nothing to take out"):
        append_steps.attention_without_stores.__wrapped__()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "cpu"], "append needs a GPU"),
        (["--workloads", "scheduler,tall"], "there is no workload 'tall'"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(build_app(), ["append", *arguments])
    assert isinstance(done.exception, Refused)
    assert sentence in str(done.exception)


@pytest.mark.skipif(not has_cuda_gpu(), reason="needs a CUDA GPU: run `nox -s tests` on one")
def test_on_a_gpu_stores_take_no_more_than_some_of_the_step(tmp_path: Path) -> None:
    arguments = ["--workloads", "wide", "--parts", "1", "--captures", "6", "--rounds", "2"]
    done = CliRunner().invoke(
        build_app(), ["append", *arguments, "--output", str(tmp_path)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "append.json").read_text())
    [cost] = record["results"]["costs"]
    assert abs(cost["layer_us"]["value"]) < 0.05 * cost["step_us"]
    assert len(record["samples"][0]["bare_us"]) == 6
    assert "| wide | 256 | 256 |" in (tmp_path / "append.md").read_text()
