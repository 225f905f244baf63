"""The decode workspace: addresses that captured graphs keep, counters that reset themselves."""

from __future__ import annotations

import pytest
import torch
from fused_attention_cases import fused_problem
from interpreted_launches import shuffled_programs, within_bounds
from paged_cases import paged_problem, same_bits

import kernels
from kernels import KernelArgumentError
from kernels.attention import workspace
from kernels.attention.arguments import FusedArguments
from kernels.attention.workspace import DecodeWorkspace, own_workspace, reserved_workspace
from kernels.tiles.launch import (
    PAIRS_PER_MULTIPROCESSOR,
    SPLIT_TOKENS,
    decode_is_serial,
    filling_pairs,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_workspaces_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_workspaces", {})


def test_growing_keeps_what_was_handed_out() -> None:
    held = DecodeWorkspace(CPU)
    held.reserve(100, 10)
    partials, counters = held.partials, held.counters
    address = partials.data_ptr()
    partials.fill_(3.0)
    del partials
    held.reserve(5000, 10)
    assert held.counters is counters
    assert held.partials.numel() >= 5000
    assert held.partials.data_ptr() != address
    kept = [buffer for buffer in held._retired if buffer.data_ptr() == address]
    assert len(kept) == 1
    assert bool((kept[0] == 3.0).all())


def test_growth_is_at_least_twofold_and_counters_start_at_zero() -> None:
    held = DecodeWorkspace(CPU)
    held.reserve(100, 10)
    held.reserve(101, 11)
    assert held.partials.numel() == 200
    assert held.counters.tolist() == [0] * 20
    assert held.fits(200, 20)
    assert not held.fits(201, 20)


def test_a_large_enough_workspace_is_the_same_one() -> None:
    first = reserved_workspace(CPU, 100, 10)
    pointer = first.partials.data_ptr()
    assert reserved_workspace(CPU, 60, 10) is first
    assert first.partials.data_ptr() == pointer


def test_eager_calls_prepare_the_workspace_of_captures() -> None:
    eager = reserved_workspace(CPU, 100, 10)
    for_graphs = workspace._workspaces[CPU, workspace._GRAPH_STREAM]
    assert for_graphs is not eager
    assert for_graphs.fits(100, 10)


def test_growth_during_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(
        workspace, "_workspaces", {(cuda, workspace._GRAPH_STREAM): _sized(CPU, 100, 10)}
    )
    assert reserved_workspace(cuda, 100, 10).fits(100, 10)
    with pytest.raises(KernelArgumentError, match="must run once outside graph capture"):
        reserved_workspace(cuda, 101, 10)


def test_own_workspace_is_used_inside_its_block() -> None:
    mine = DecodeWorkspace(CPU)
    with own_workspace(mine):
        assert reserved_workspace(CPU, 100, 10) is mine
    assert reserved_workspace(CPU, 100, 10) is not mine


def test_own_workspace_must_be_on_the_device() -> None:
    elsewhere = DecodeWorkspace(torch.device("meta"))
    with (
        own_workspace(elsewhere),
        pytest.raises(KernelArgumentError, match="workspace must be on k_cache's device, cpu"),
    ):
        reserved_workspace(CPU, 1, 1)


def test_launches_leave_the_counters_at_zero_and_read_no_stale_partials(
    triton_device: torch.device,
) -> None:
    from kernels.attention.decode import launch_decode

    contexts = [SPLIT_TOKENS + 5, 0, 2 * SPLIT_TOKENS + 1, 7]
    problem = paged_problem(contexts, heads=(2, 1)).on(triton_device)
    mine = DecodeWorkspace(problem.query.device)
    results = []
    with own_workspace(mine):
        for _ in range(3):
            if mine.partials.numel():
                mine.partials.fill_(float("nan"))
            out = torch.empty_like(problem.query)
            launch_decode(*problem.decode_arguments, 0.25, out, serial=False)
            results.append(out)
            assert int(mine.counters.count_nonzero()) == 0
    assert mine.partials.numel() > 0
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


def test_parallel_launches_stay_within_what_they_reserve(
    triton_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if triton_device.type == "cuda":
        pytest.skip("`nox -s memcheck` watches accesses on the GPU")
    from kernels.attention.decode import launch_decode
    from kernels.attention.decode_append import launch_fused

    contexts = [2 * SPLIT_TOKENS + 5, SPLIT_TOKENS + 1]
    decoded = paged_problem(contexts, heads=(4, 2))
    with within_bounds(monkeypatch), own_workspace(DecodeWorkspace(CPU)):
        out = torch.empty_like(decoded.query)
        launch_decode(*decoded.decode_arguments, 0.25, out, serial=False)
    fused = fused_problem(contexts, heads=(4, 2))
    with within_bounds(monkeypatch), own_workspace(DecodeWorkspace(CPU)):
        out = torch.empty(2, fused.num_columns)
        launch_fused(FusedArguments(*fused.arguments, out, 0.25), pdl=False, serial=False)


def test_a_serial_launch_takes_no_workspace(triton_device: torch.device) -> None:
    problem = paged_problem([SPLIT_TOKENS]).on(triton_device)
    kernels.paged_attention_decode(*problem.decode_arguments)
    assert workspace._workspaces == {}


@pytest.mark.parametrize(
    ("pairs", "splits", "serial"),
    [
        (1, 1, True),
        (12, 2, False),
        (PAIRS_PER_MULTIPROCESSOR * 132 - 1, 2, False),
        (PAIRS_PER_MULTIPROCESSOR * 132, 2, True),
        (64 * 12, 4, True),
    ],
)
def test_when_one_program_walks_all_splits(pairs: int, splits: int, serial: bool) -> None:
    assert decode_is_serial(pairs, splits, multiprocessors=132) is serial


def test_wide_heads_fill_the_device_sooner() -> None:
    def serial_from(head_dim: int) -> int:
        each = filling_pairs(head_dim)
        return next(n for n in range(1000) if decode_is_serial(n, 2, 132, each))

    assert serial_from(64) == 198
    # B=9 of 8 KV heads, but not B=8.
    assert 64 < serial_from(128) <= 72


def test_any_order_of_arrival_gives_the_same_bits(
    triton_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter runs programs in order; here they run in others, as on a GPU."""
    if triton_device.type == "cuda":
        pytest.skip("the GPU orders programs itself: test_on_gpu.py repeats launches instead")
    from triton.runtime.interpreter import InterpreterBuilder

    from kernels.attention.decode import launch_decode

    problem = paged_problem([2 * SPLIT_TOKENS + 5, SPLIT_TOKENS + 1], heads=(2, 2))
    results = []
    in_order = InterpreterBuilder.set_grid_idx
    for order in (in_order, shuffled_programs(1), shuffled_programs(2)):
        monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", order)
        out = torch.empty_like(problem.query)
        with own_workspace(_sized(CPU, 4096, 16)) as mine:
            mine.partials.fill_(float("nan"))
            launch_decode(*problem.decode_arguments, 0.25, out, serial=False)
            assert mine.partials.numel() == 4096
        assert not out.isnan().any()
        results.append(out)
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


def _sized(device: torch.device, partials: int, counters: int) -> DecodeWorkspace:
    made = DecodeWorkspace(device)
    made.reserve(partials, counters)
    return made
