"""`sweep`: a call's time over the batch, its bytes, and where more sequences take less time."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from asv_bench.__main__ import build_app
from asv_bench.errors import Refused
from asv_bench.lab.sweep.plot import sweep_svg
from asv_bench.lab.sweep.sweep import Call, Fall, Kind, Swept, sweep, sweep_table
from asv_bench.output.tables import markdown
from asv_bench.process.machine import has_cuda_gpu

FUSED = Call("attention, append", 12, 12, 64, 512)
APPEND = Call("append", 32, 8, 128, 4096)


def swept(*microseconds: float, call: Call = FUSED) -> Swept:
    readings = {batch: [1e-6 * one] for batch, one in enumerate(microseconds, 1)}
    return Swept(call, readings, 4e12)


def test_bytes_are_the_cached_keys_and_values_and_an_append_reads_what_it_writes() -> None:
    assert FUSED.bytes_moved(64) == 64 * 512 * 12 * 64 * 2 * 2
    assert APPEND.bytes_moved(3) == 3 * (8 * 128 * 2 * 2) * 2


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((5.0, 5.0, 6.0, 7.5), None),
        ((5.0, 8.0, 6.0, 9.0), Fall(0.25, 2, 3)),
        # Below the slowest of all smaller batches, not below its neighbour.
        ((5.0, 10.0, 9.5, 9.0, 11.0, 10.9), Fall(0.1, 2, 4)),
        ((5.0,), None),
    ],
)
def test_a_fall_is_below_the_slowest_smaller_batch(
    times: tuple[float, ...], expected: Fall | None
) -> None:
    found = swept(*times).fall
    if expected is None or found is None:
        assert found is expected
    else:
        assert found.fraction == pytest.approx(expected.fraction)
        assert (found.before, found.batch) == (expected.before, expected.batch)


def test_a_fall_is_sure_where_no_readings_overlap() -> None:
    medians_only = Swept(FUSED, {1: [9.0, 10.0, 11.0], 2: [8.0, 8.5, 9.5]}, 4e12)
    assert medians_only.fall == Fall(pytest.approx(0.15), 1, 2)
    assert medians_only.sure_fall is None
    # The gap is between the slowest of the larger batch and the fastest of the smaller.
    apart = Swept(FUSED, {1: [1.0], 2: [9.0, 10.0], 4: [9.0, 9.5], 8: [8.0, 8.1]}, 4e12)
    assert apart.sure_fall == Fall(pytest.approx(0.1), 2, 8)
    assert apart.to_json()["largest_sure_fall"]["batch"] == 8


def test_every_round_goes_over_all_batches_and_the_median_stays() -> None:
    order: list[int] = []
    readings = {1: iter([3.0, 1.0, 2.0]), 4: iter([9.0, 7.0, 8.0])}

    def timer_of(batch: int) -> Callable[[], float]:
        def timer() -> float:
            order.append(batch)
            return next(readings[batch])

        return timer

    done = sweep(
        FUSED,
        [1, 4],
        timer_of,
        rounds=3,
        bytes_per_second=4e12,
        on_round=lambda: order.append(0),
    )
    assert order == [0, 1, 4, 0, 4, 1, 0, 1, 4]
    assert done.seconds == {1: 2.0, 4: 8.0}
    assert done.to_json()["readings"] == {1: [3.0, 1.0, 2.0], 4: [9.0, 7.0, 8.0]}


def test_the_table_has_time_rate_and_fall() -> None:
    one = Swept(FUSED, {1: [9.5e-6, 10.5e-6], 8: [9e-6], 200: [100e-6]}, 4e12)
    text = markdown(sweep_table([one, swept(2.0, call=APPEND)], "a GPU"))
    rate = 512 * 12 * 64 * 4 / 10e-6 / 1e12
    assert f"| 10.0 ({rate:.2f}) | 9.0 (" in text
    assert "10.0 %, B=1 to 8 | 5.3 %, B=1 to 8 |" in text
    assert "append, 32/8 heads of 128, context 4096 | 2.0 (0.00) | - | never | never |" in text


def test_the_drawing_opens_by_itself_and_names_every_call() -> None:
    svg = sweep_svg([swept(1.0, 2.0), swept(1.0, 3.0, call=APPEND)], "a title")
    ElementTree.fromstring(svg)
    for words in ("a title", str(FUSED), str(APPEND), "--paper"):
        assert words in svg


def test_without_a_gpu_it_is_refused() -> None:
    done = CliRunner().invoke(build_app(), ["sweep", "--device", "cpu"])
    assert isinstance(done.exception, Refused)
    assert "needs a GPU" in str(done.exception)


@pytest.mark.parametrize("kind", ["attention", "attention, append", "append"])
def test_a_timer_captures_calls_until_every_cache_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """On a CPU, with the device's side of it pretended: the calls run as they are captured."""
    import torch

    from asv_bench.lab.sweep import calls as sweep_calls

    calls: list[tuple[int, ...]] = []
    written: list[tuple[int, int]] = []
    places: list[torch.Tensor] = []

    def counted(name: str) -> Callable[..., object]:
        kernel = getattr(sweep_calls, name)

        def call(*arguments: Any, **options: Any) -> object:
            calls.append(tuple(arguments[0].shape))
            places.append(arguments[4 if name == "kv_append" else 3])
            if name == "kv_append":
                written.extend(zip(arguments[4].tolist(), arguments[5].tolist(), strict=True))
            return kernel(*arguments, **options)

        return call

    for name in ("kv_append", "paged_attention_decode", "fused_attention"):
        monkeypatch.setattr(sweep_calls, name, counted(name))
    for name in ("graph", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(sweep_calls, "seconds_per_replay", lambda graph, replays, warm: 60.0)
    call = Call(kind, 4, 2, 64, 130)
    monkeypatch.setattr(sweep_calls, "COLD_BYTES", 5 * call.bytes_moved(2))
    made = sweep_calls.SweepCalls(call, 3, torch.device("cpu"))
    timer = made.timer(2)
    # One more than the graph has, to compile the kernel.
    assert len(calls) == 5 + 1
    assert timer() == 60.0 / 5
    # No two appends of the graph write to one place: the first is the one that compiles, again.
    assert len(set(written)) == (5 * 2 if kind == "append" else 0)
    # What is captured is placed elsewhere as it stands, each call still apart from the others.
    before = torch.stack(places[1:])
    made.place()
    after = torch.stack(places[1:])
    assert not torch.equal(before, after)
    assert len(after.unique()) == len(before.unique())


@pytest.mark.skipif(not has_cuda_gpu(), reason="needs a CUDA GPU: run `nox -s tests` on one")
def test_on_a_gpu_more_tokens_take_longer_and_no_rate_beats_the_memory(tmp_path: Path) -> None:
    arguments = ["--most", "65", "--every", "32", "--rounds", "1", "--output", str(tmp_path)]
    done = CliRunner().invoke(build_app(), ["sweep", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "sweep.json").read_text("utf-8"))
    bandwidth = record["results"]["read_bandwidth"]["bytes_per_second"]
    for sample in record["samples"]:
        seconds = {int(batch): one for batch, one in sample["seconds"].items()}
        assert list(seconds) == [1, 33, 65]
        call = Call(**sample["call"])
        if call.kind != "append":
            assert seconds[65] > seconds[1]
            assert call.bytes_moved(65) / seconds[65] < 1.05 * bandwidth
    assert (tmp_path / "sweep.svg").exists()
