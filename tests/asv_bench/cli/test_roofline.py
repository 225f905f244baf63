"""`roofline`: bytes of each role, a step's kernels out of a trace, and what is made of both."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from fake_engine import FakeEvent
from typer.testing import CliRunner

import asv_bench.cli.roofline as command
import asv_bench.explain.window as window_module
import asv_bench.lab.roofline as module
from asv_bench.cli.commands import build_app
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.explain.trace import Event, EventArguments, summarize_trace
from asv_bench.explain.window import Decoded, Traced, Window
from asv_bench.lab.roofline import (
    KERNEL_ROLES,
    LINEAR_KERNELS,
    Roofline,
    roofline,
    roofline_table,
    timed_steps,
    trace_roofline,
)
from asv_bench.memory.bandwidth import Bandwidth
from asv_bench.memory.floor import GPT2Shape, Role, step_traffic
from asv_bench.workloads.named import WORKLOADS
from engine.models.registry import RANDOM_CONFIGS

ROOT = Path(__file__).resolve().parents[3]
SEPARATE = tuple(role for role in Role if role is not Role.WHOLE_ATTENTION)
SHAPE = GPT2Shape()
LAYER = ("ring_attention", "linear_stream", "linear_tiles", "linear_stream")
STEP = ("embed_rows", "linear_stream", *LAYER, "linear_row", *LAYER, "head_stream", "pick_tokens")
"""Two layers; the last linear map of a layer is followed by the next layer's first."""
JOINED_LAYER = ("row_attention", "linear_row", "linear_row", "linear_row")
JOINED_STEP = ("embed_rows", *JOINED_LAYER, *JOINED_LAYER, "head_row", "pick_tokens")


def kernel(name: str, ts: float, dur: float, stream: int = 7, cat: str = "kernel") -> Event:
    return Event(name, ts, dur, cat, 0, stream, EventArguments(8, stream))


def steps_of(count: int, period: float = 100.0, names: tuple[str, ...] = STEP) -> list[Event]:
    """Steps whose kernels start 4 us apart and run 5: each waits 1 us for the one before."""
    return [
        kernel(name, step * period + 4 * place, 5.0)
        for step in range(count)
        for place, name in enumerate(names)
    ]


def test_bytes_of_single_roles() -> None:
    """By hand, for GPT-2 124M at B=2 and context 10 in half precision."""
    half = {"dtype": "float16", "batch_size": 2, "context": 10}
    traffic = step_traffic(SHAPE, **half)
    qkv = 12 * (2304 * 768 + 2304 + 2 * 768)
    assert traffic[Role.ATTENTION_IN].weights == 2 * qkv
    assert traffic[Role.ATTENTION_IN].activations == 2 * 12 * 2 * (768 + 2304)
    assert traffic[Role.ATTENTION].kv == 2 * 10 * 36864
    assert traffic[Role.ATTENTION].activations == 2 * 12 * 2 * (2304 + 768)
    # The residual stream is read and written.
    assert traffic[Role.FEED_FORWARD_OUT].activations == 2 * 12 * 2 * (3072 + 2 * 768)
    assert traffic[Role.HEAD].total == 2 * (50257 * 768 + 2 * 768 + 2 * 768)
    joined = step_traffic(SHAPE, **half, joins_attention=True)
    assert tuple(joined) == (Role.EMBED, Role.WHOLE_ATTENTION, *SEPARATE[3:])
    assert joined[Role.WHOLE_ATTENTION].weights == traffic[Role.ATTENTION_IN].weights
    assert joined[Role.WHOLE_ATTENTION].kv == traffic[Role.ATTENTION].kv
    # A row of the residual stream in, what it attended to out.
    assert joined[Role.WHOLE_ATTENTION].activations == 2 * 12 * 2 * (768 + 768)


def test_families_read_what_they_have_more_and_no_learned_positions() -> None:
    spec = RANDOM_CONFIGS["qwen3-0.6b"]
    traffic = step_traffic(spec, dtype="bfloat16", batch_size=64, context=256.0)
    # Gated: two maps are read, one result is written.
    into, hidden, inner = traffic[Role.FEED_FORWARD_IN], spec.hidden_size, spec.inner_size
    assert into.weights == 2 * spec.num_layers * (2 * inner * hidden + hidden)
    assert into.activations == 2 * spec.num_layers * 64 * (hidden + inner)
    assert traffic[Role.EMBED].total == 2 * 64 * 2 * hidden


ATTENDED = [Role.ATTENTION, Role.ATTENTION_OUT]
FED = [Role.FEED_FORWARD_IN, Role.FEED_FORWARD_OUT]
# What a library's maps take beside their products is theirs.
OUT = ("Memset (Device)", "nvjet_sm90_tst_64x64", "void cublasLt::splitKreduce_kernel<32>")
LIBRARY_LAYER = ("rms_norm_rows", "nvjet_sm90_tst_96x64", "ring_attention", *OUT)
LIBRARY_STEP = (
    *("embed_rows", *LIBRARY_LAYER, "nvjet_h_bz", "gated_rows", "nvjet_v"),
    *("statistics_rows", "head_stream", "pick_tokens"),
)
LIBRARY_ROLES = [Role.ATTENTION_IN] * 2 + [Role.ATTENTION] + [Role.ATTENTION_OUT] * 3
LIBRARY_ROLES += [Role.FEED_FORWARD_IN] * 2 + [Role.FEED_FORWARD_OUT] * 2


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (STEP, [Role.ATTENTION_IN, *ATTENDED, *FED] * 2),
        (JOINED_STEP, [Role.WHOLE_ATTENTION, Role.ATTENTION_OUT, *FED] * 2),
        (LIBRARY_STEP, LIBRARY_ROLES),
    ],
    ids=["separate", "joined attention", "library"],
)
def test_every_kernel_of_a_step_has_its_role(names: tuple[str, ...], roles: list[Role]) -> None:
    [step] = timed_steps(steps_of(2, names=names))
    assert [one.role for one in step.kernels] == [Role.EMBED, *roles, Role.HEAD, Role.PICK]


def test_the_named_kernels_exist() -> None:
    """A kernel that is renamed must be renamed in the ruler too."""
    source = "\n".join(path.read_text() for path in (ROOT / "kernels").rglob("*.py"))
    for name in (*KERNEL_ROLES, *LINEAR_KERNELS):
        assert re.search(rf"^def {name}\(", source, flags=re.MULTILINE), name


def test_own_times_and_gaps_add_up_to_the_step() -> None:
    """Waiting for the kernel before is traced time, and nobody's own."""
    events = steps_of(4)
    [first, *_] = timed_steps(events)
    assert len(timed_steps(events)) == 3
    assert [one.traced_us for one in first.kernels] == [5.0] * len(STEP)
    # The first starts alone; each other one adds what is left after the one before.
    assert [one.own_us for one in first.kernels] == [5.0] + [4.0] * (len(STEP) - 1)
    assert first.idle_before_us == 100 - (5 + 4 * (len(STEP) - 1))
    assert first.period_us == 100.0
    assert not any(one.gap_us for one in first.kernels)


def test_gaps_are_told_from_other_work() -> None:
    events = steps_of(3)
    last = 4 * (len(STEP) - 1) + 5.0
    events += [
        # Between the first and the second step: 6 us idle, then a copy of 3.
        kernel("Memcpy HtoD", last + 6, 3.0, cat="gpu_memcpy"),
        # On another stream: overlaps with the step by design, and costs it nothing.
        kernel("Memcpy DtoH", last, 20.0, stream=13, cat="gpu_memcpy"),
        # On the host: no device time at all.
        kernel("cudaGraphLaunch", last, 20.0, cat="cuda_runtime"),
    ]
    second = timed_steps(events)[0]
    assert second.work_before_us == 3.0
    assert second.idle_before_us == pytest.approx(100 - last - 3)
    assert second.period_us == pytest.approx(100.0)
    delayed = [
        msgspec.structs.replace(event, ts=event.ts + 2.5) if event.ts > 100 + 4 * 3 else event
        for event in steps_of(2)
    ]
    [step] = timed_steps(delayed)
    assert [one.gap_us for one in step.kernels][3:6] == [0.0, 1.5, 0.0]
    # A kernel within another adds nothing.
    events = steps_of(2)
    events[len(STEP) + 3] = msgspec.structs.replace(events[len(STEP) + 3], dur=9.5)
    [step] = timed_steps(events)
    assert [one.own_us for one in step.kernels][3:6] == [8.5, 0.0, 3.5]


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([kernel("gemm", 0, 1)], "holds no fused decode step"),
        (steps_of(1), "holds 1 whole decode steps"),
        ([*steps_of(2), kernel("strange", 110, 1)], "'strange' whose role is not known"),
    ],
)
def test_a_trace_that_says_nothing_is_refused(events: list[Event], sentence: str) -> None:
    with pytest.raises(MeasurementFailed, match=sentence):
        timed_steps(events)


def made() -> Roofline:
    """Of steps of which one embeds for longer: figures are medians."""
    events = steps_of(6)
    first = events[2 * len(STEP)]
    events[2 * len(STEP)] = msgspec.structs.replace(first, ts=first.ts - 30, dur=first.dur + 30)
    steps = timed_steps(events)
    assert max(step.kernels[0].own_us for step in steps) == 35.0
    traffic = step_traffic(SHAPE, dtype="float16", batch_size=64, context=257)
    return roofline("scheduler", 64, 257.0, steps, traffic, 4e12, 123.4)


def test_bandwidth_is_bytes_over_own_time() -> None:
    result = made()
    [row] = [one for one in result.rows if one.role == Role.FEED_FORWARD_IN]
    assert (row.calls, row.kernels, row.traced_us, row.own_us) == (2, ("linear_tiles",), 10.0, 8.0)
    assert row.bytes_per_second == pytest.approx(row.bytes / 8e-6)
    assert row.fraction == pytest.approx(row.bytes / 8e-6 / 4e12)
    assert (result.step_us, result.rows[0].own_us) == (100.0, 5.0)
    parts = sum(one.own_us for one in result.rows) + result.gaps_us + result.idle_between_us
    assert parts + result.work_between_us == pytest.approx(result.step_us)
    assert result.floor_us == pytest.approx(1e6 * result.bytes / 4e12)
    assert result.fraction == pytest.approx(result.floor_us / 100.0)


@pytest.mark.parametrize("name", ["roofline.json", "roofline-h100.json"])
def test_records_that_are_kept_make_tables_as_new_ones_do(name: str) -> None:
    kept = json.loads((ROOT / "reports" / name).read_text())["results"]["rooflines"]
    for table in map(roofline_table, [made(), *msgspec.convert(kept, list[Roofline])]):
        names = [row[0] for row in table.rows if row]
        assert names[-4:-1] == [
            "gaps between kernels",
            "other work between steps",
            "gap between steps",
        ]
        assert {Role.HEAD, "step"} < set(names) <= {*names[-4:], *Role}
        assert "Without a profiler a step takes" in table.caption


def test_the_last_context_is_that_of_the_last_step() -> None:
    """Prompts of 1 and 4 tokens, one token an event; what a window did not take in is its own."""

    class Late:
        has_unfinished = True

        def step(self) -> list[FakeEvent]:
            return [FakeEvent(one, 5, index, 0.0, None) for one, index in ((8, 6), (9, 3), (8, 7))]

    assert window_module._last_context(Late(), {8: 1, 9: 4}) == (1 + 7 + 4 + 3) / 2


@pytest.mark.parametrize(("names", "joined"), [(STEP, False), (JOINED_STEP, True)])
def test_a_window_becomes_a_roofline(
    names: tuple[str, ...], joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Window] = []
    context: float | None = 260.0

    def trace(window: Window, path: Path) -> Traced:
        asked.append(window)
        decoded = Decoded(6, "graph", 98.7, last_context=context)
        return Traced(decoded, summarize_trace([]), path)

    monkeypatch.setattr(module, "torch_trace", trace)
    monkeypatch.setattr(module, "read_events", lambda path: steps_of(6, names=names))
    window = command.window_of(WORKLOADS["scheduler"], 6, "cuda")
    # The window's middle is the workload's mean context: 1 prompt token and 256 more.
    assert 1 + window.skip + 2 + 6 / 2 == 257
    result = trace_roofline(window, SHAPE, 4e12)
    assert asked == [window]
    assert (result.batch, result.steps, result.unprofiled_us) == (64, 5, 98.7)
    assert result.context == 260 - 2
    # Every kernel's time is in some row.
    assert sum(row.calls for row in result.rows) == len(names)
    half = {"dtype": "float16", "batch_size": 64, "context": result.context}
    traffic = step_traffic(SHAPE, **half, joins_attention=joined)
    assert result.bytes == pytest.approx(sum(one.total for one in traffic.values()))
    context = None
    with pytest.raises(MeasurementFailed, match="ended within the window"):
        trace_roofline(window, SHAPE, 4e12)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--device cpu", "roofline needs a GPU"),
        ("--workloads none", "no workload 'none'"),
        ("--device cuda", "this one is 'own-box'; say where its own goes with --output"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRAIL_MACHINE", "box")
    done = CliRunner().invoke(build_app(), ["lab", "roofline", *arguments.split()])
    assert isinstance(done.exception, Refused)
    assert sentence in str(done.exception)


def test_the_command_writes_a_record_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "require_bandwidth", lambda device: Bandwidth(4e12, 1, [1.0]))
    monkeypatch.setattr(command, "trace_roofline", lambda *_: made())
    arguments = ["lab", "roofline", "--device", "cuda", "--workloads", "scheduler", "--output"]
    done = CliRunner().invoke(build_app(), [*arguments, str(tmp_path)])
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert {path.name for path in tmp_path.iterdir()} == {"roofline.json", "roofline.md"}
    assert "| attention, append | ring_attention | 2 |" in (tmp_path / "roofline.md").read_text()
