"""Attention with the append fused in, against the float64 reference, in memory full of NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fused_attention_cases import FusedProblem, fused_problem
from paged_cases import NAN, assert_close_to_reference, same_bits

from kernels import KernelArgumentError
from kernels.attention.arguments import FusedArguments
from kernels.attention.fused import fused_attention, split_heads
from kernels.attention.reference import reference_append, reference_decode
from kernels.tiles.launch import SPLIT_TOKENS, Tile, fused_attention_tile


def _computed(problem: FusedProblem, device: torch.device) -> torch.Tensor:
    """The result, on the CPU, with the whole cache and the surroundings of `out` compared."""
    moved = problem.on(device)
    rows, columns = problem.qkv.shape[0], problem.num_columns
    buffer = torch.full((rows + 2, columns + 16), NAN, dtype=problem.qkv.dtype, device=device)
    out = buffer[1:-1, :columns]
    inputs = [tensor.clone() for tensor in moved.arguments]
    returned = fused_attention(*moved.arguments, out, scale=problem.scale)
    assert returned is out
    assert int(buffer.isnan().sum()) == buffer.numel() - out.numel()
    names = ("qkv", "k_cache", "v_cache", "block_tables", "positions", "is_running")
    for name, tensor, before in zip(names, moved.arguments, inputs, strict=True):
        if name == "k_cache":
            before = problem.after.k_cache
        if name == "v_cache":
            before = problem.after.v_cache
        assert (
            tensor.cpu()
            .contiguous()
            .view(torch.uint8)
            .equal(before.cpu().contiguous().view(torch.uint8))
        ), name
    return out.cpu().unflatten(1, (-1, problem.after.query.shape[2]))


def _check(problem: FusedProblem, implementation: Any) -> None:
    result = _computed(problem, implementation.device)
    reference = reference_decode(*problem.after.decode_arguments)
    assert_close_to_reference(result, reference, problem.after)
    assert not result[~problem.is_running].any()


def test_the_problem_itself_is_an_append_then_attention() -> None:
    problem = fused_problem([3, None, 16], heads=(4, 2))
    _, key, value = split_heads(problem.qkv, 2, 16)
    blocks = torch.tensor([int(problem.block_tables[0, 0]), -1, int(problem.block_tables[2, 1])])
    slots = torch.tensor([3, 0, 0])
    reference_append(problem.k_cache, problem.v_cache, key, value, blocks, slots)
    assert same_bits(problem.k_cache, problem.after.k_cache)
    assert same_bits(problem.v_cache, problem.after.v_cache)


@pytest.mark.parametrize("block_size", [16, 64])
def test_contexts_around_page_boundaries(
    implementation: Any, dtype: torch.dtype, block_size: int
) -> None:
    p = block_size
    cached = [p - 1, 0, None, p, 1, 2 * p - 1, p - 2, p + 1, 2 * p]
    _check(fused_problem(cached, block_size=p, dtype=dtype), implementation)


@pytest.mark.parametrize("block_size", [16, 64])
def test_contexts_around_split_boundaries(
    implementation: Any, dtype: torch.dtype, block_size: int
) -> None:
    s = SPLIT_TOKENS
    cached = [s - 1, 1, None, s + 1, s, 2 * s + 3]
    _check(fused_problem(cached, heads=(1, 1), block_size=block_size, dtype=dtype), implementation)


@pytest.mark.parametrize("group", [1, 3, 4, 8, 17])
def test_query_groups(implementation: Any, dtype: torch.dtype, group: int) -> None:
    _check(
        fused_problem([5, None, 33, 18], heads=(2 * group, 2), dtype=dtype, seed=group),
        implementation,
    )


@pytest.mark.parametrize("head_dim", [16, 24, 64, 128, 256])
def test_head_dimensions(implementation: Any, dtype: torch.dtype, head_dim: int) -> None:
    _check(fused_problem([21, 40], heads=(4, 2), head_dim=head_dim, dtype=dtype), implementation)


@pytest.mark.parametrize("block_size", [1, 4, 24, 128])
def test_block_sizes(implementation: Any, dtype: torch.dtype, block_size: int) -> None:
    _check(fused_problem([9, 0, 70], block_size=block_size, dtype=dtype), implementation)


@pytest.mark.parametrize("sign", [-1, 1])
def test_extreme_scores(implementation: Any, dtype: torch.dtype, sign: int) -> None:
    """Scores in the thousands, of either sign: a softmax without its maximum overflows."""
    problem = fused_problem(
        [40, SPLIT_TOKENS + 30, 0],
        heads=(2, 1),
        head_dim=64,
        dtype=dtype,
        integers=True,
        sign=sign,
    )
    result = _computed(problem, implementation.device)
    reference = reference_decode(*problem.after.decode_arguments)
    assert torch.isfinite(result).all()
    tolerance = 2e-3 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    assert float((result.double() - reference).abs().max()) < tolerance


def test_the_new_token_alone_gives_its_value(implementation: Any, dtype: torch.dtype) -> None:
    problem = fused_problem([0, 0], dtype=dtype)
    result = _computed(problem, implementation.device)
    _, _, value = split_heads(problem.qkv, 2, 16)
    assert torch.equal(result, value)


def test_a_row_without_budget_does_not_run(implementation: Any, dtype: torch.dtype) -> None:
    """int32 `is_running`: above zero runs, zero and below do not, wherever they stand."""
    problem = fused_problem([20, None, 5, None], dtype=dtype)
    expected = _computed(problem, implementation.device)
    budget = torch.tensor([7, 0, 1, -1], dtype=torch.int32)
    assert same_bits(
        _computed(replace(problem, is_running=budget), implementation.device), expected
    )
    stopped = replace(
        problem,
        is_running=budget,
        positions=torch.where(budget > 0, problem.positions, 3),
        block_tables=torch.where(budget[:, None] > 0, problem.block_tables, 0),
    )
    assert same_bits(_computed(stopped, implementation.device), expected)


@pytest.mark.parametrize("serial", [False, True], ids=["parallel", "serial"])
def test_a_position_beyond_the_table_does_not_run(
    triton_device: torch.device, serial: bool
) -> None:
    """The kernel itself must not follow a table beyond its end: what it would find is not its own.

    The table is a slice of a wider one that goes on with valid blocks.
    """
    problem = fused_problem([40, 20], dtype=torch.float32)
    beyond = problem.on(triton_device)
    beyond.positions[1] = problem.block_tables.shape[1] * 16
    wide = torch.zeros(2, 40, dtype=torch.int32, device=triton_device)
    wide[:, : problem.block_tables.shape[1]] = beyond.block_tables
    beyond = replace(beyond, block_tables=wide[:, : problem.block_tables.shape[1]])
    k_before = beyond.k_cache.clone()
    out = _launch(beyond, serial)
    assert not out[1].any()
    assert same_bits(out[0], _launched(problem, triton_device, serial)[0])
    slot = int(problem.block_tables[0, 2]), slice(None), 8
    k_before[slot] = beyond.k_cache[slot]
    assert same_bits(beyond.k_cache, k_before)


@pytest.mark.xdist_group("most-memory")
@pytest.mark.parametrize("block_size", [16, 64])
def test_offsets_beyond_32_bits(triton_device: torch.device, block_size: int) -> None:
    """The last blocks of caches of more than 2**31 elements; only what is used is touched."""
    heads, head_dim = 2, 64
    small = fused_problem(
        [block_size + 5], heads=(heads, heads), head_dim=head_dim, block_size=block_size,
        dtype=torch.float16,
    )  # fmt: skip
    expected = _launched(small, triton_device, serial=True)
    page = heads * block_size * head_dim
    num_blocks = 2**31 // page + 3
    shape = (num_blocks, heads, block_size, head_dim)
    caches = [torch.empty(shape, dtype=torch.float16, device=triton_device) for _ in range(2)]
    last = torch.tensor([num_blocks - 1, num_blocks - 2])
    for cache, source in zip(caches, (small.k_cache, small.v_cache), strict=True):
        cache[last] = source[small.block_tables[0].long()].to(triton_device)
    moved = replace(
        small.on(triton_device),
        k_cache=caches[0],
        v_cache=caches[1],
        block_tables=last.int()[None].to(triton_device),
    )
    assert same_bits(_launch(moved, serial=True), expected)
    for cache, wanted in zip(caches, (small.after.k_cache, small.after.v_cache), strict=True):
        assert same_bits(cache[last].cpu(), wanted[small.block_tables[0].long()])


def test_values_behind_their_keys(implementation: Any, dtype: torch.dtype) -> None:
    problem = fused_problem([17, None, 50], heads=(4, 2), dtype=dtype)
    device = implementation.device
    expected = _computed(problem, device)
    beside = problem.on(device).side_by_side()
    out = torch.full((3, problem.num_columns), NAN, dtype=dtype, device=device)
    fused_attention(*beside.arguments, out, scale=problem.scale)
    assert same_bits(out.cpu().unflatten(1, (-1, 16)), expected)
    assert same_bits(beside.k_cache.cpu(), problem.after.k_cache)
    assert same_bits(beside.v_cache.cpu(), problem.after.v_cache)


def test_strided_rows(implementation: Any, dtype: torch.dtype) -> None:
    """Rows of a wider projection, table and result, and a layer of a larger cache."""
    problem = fused_problem([17, None, 50], heads=(4, 2), dtype=dtype)
    device = implementation.device
    expected = _computed(problem, device)
    rows, width = problem.qkv.shape
    wide = torch.full((rows, width + 48), NAN, dtype=dtype, device=device)
    wide[:, 16 : 16 + width] = problem.qkv.to(device)
    columns = problem.block_tables.shape[1]
    table = torch.full((rows, columns + 5), -1, dtype=torch.int32, device=device)
    table[:, 2 : 2 + columns] = problem.block_tables.to(device)
    caches = torch.full((2, *problem.k_cache.shape), NAN, dtype=dtype, device=device)
    caches = torch.nn.functional.pad(caches, (0, 16), value=NAN)[..., : problem.k_cache.shape[3]]
    caches[0], caches[1] = problem.k_cache.to(device), problem.v_cache.to(device)
    wide_out = torch.full((rows, problem.num_columns + 24), NAN, dtype=dtype, device=device)
    out = wide_out[:, 8 : 8 + problem.num_columns]
    fused_attention(
        wide[:, 16 : 16 + width],
        caches[0],
        caches[1],
        table[:, 2 : 2 + columns],
        problem.positions.to(device),
        problem.is_running.to(device),
        out,
        scale=problem.scale,
    )
    assert same_bits(caches[0].cpu(), problem.after.k_cache)
    assert same_bits(caches[1].cpu(), problem.after.v_cache)
    assert wide_out[:, :8].isnan().all()
    assert wide_out[:, -16:].isnan().all()
    result = out.cpu().unflatten(1, (-1, 16))
    if same_bits(result, expected):
        return
    # Pages that are not dense are served by another kernel on some devices.
    assert_close_to_reference(
        result, reference_decode(*problem.after.decode_arguments), problem.after
    )


def test_an_empty_batch(implementation: Any, dtype: torch.dtype) -> None:
    moved = fused_problem([4], dtype=dtype).on(implementation.device)
    empty = replace(
        moved,
        qkv=moved.qkv[:0],
        block_tables=moved.block_tables[:0],
        positions=moved.positions[:0],
        is_running=moved.is_running[:0],
    )
    out = torch.empty(0, moved.num_columns, dtype=dtype, device=implementation.device)
    assert fused_attention(*empty.arguments, out, scale=1.0) is out


def _mixed(dtype: torch.dtype) -> FusedProblem:
    cached = [SPLIT_TOKENS + 9, 31, None, 2 * SPLIT_TOKENS, 16]
    return fused_problem(cached, heads=(2, 1), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("serial", [False, True], ids=["parallel", "serial"])
def test_alone_equals_in_a_batch_bit_for_bit(
    triton_device: torch.device, dtype: torch.dtype, serial: bool
) -> None:
    problem = _mixed(dtype)
    together = _launched(problem, triton_device, serial)
    for row in (0, 1, 3, 4):
        for alone_serial in (False, True):
            alone = _launched(problem.alone(row), triton_device, alone_serial)
            assert same_bits(alone[0], together[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_split_taken_from_the_batch_would_be_seen(
    triton_device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: with another split size the bits differ, and the test above fails."""
    from kernels.attention import decode_append

    def half_the_split(element_bytes: int, head_dim: int, group: int) -> Tile:
        tile = fused_attention_tile(element_bytes, head_dim, group)
        constants = {**tile.constants, "SPLIT": SPLIT_TOKENS // 2}
        return Tile(constants, tile.num_warps, tile.num_stages)

    problem = _mixed(dtype)
    together = _launched(problem, triton_device, serial=False)
    monkeypatch.setattr(decode_append, "fused_attention_tile", half_the_split)
    halved = _launched(problem, triton_device, serial=False)
    long = [0, 3]
    assert not same_bits(halved[long], together[long])
    error = (halved.double() - together.double()).abs().max()
    assert float(error) < (1e-5 if dtype == torch.float32 else 2e-3)


def _launched(problem: FusedProblem, device: torch.device, serial: bool) -> torch.Tensor:
    return _launch(problem.on(device), serial)


def _launch(moved: FusedProblem, serial: bool) -> torch.Tensor:
    """The plain kernel's result for a problem that is on its device."""
    from kernels.attention.decode_append import launch_fused

    shape = (moved.qkv.shape[0], moved.num_columns)
    out = torch.full(shape, NAN, dtype=moved.qkv.dtype, device=moved.qkv.device)
    arguments = FusedArguments(*moved.arguments, out, moved.scale)
    launch_fused(arguments, pdl=False, serial=serial)
    return out.cpu()


def _attend_small(**changed: torch.Tensor) -> None:
    problem = replace(fused_problem([3, 20], heads=(4, 2)))
    out = changed.pop("out", torch.empty(2, problem.num_columns))
    for name, tensor in changed.items():
        setattr(problem, name, tensor)
    fused_attention(*problem.arguments, out, scale=1.0)


def _refusal(**changed: torch.Tensor) -> str:
    with pytest.raises(KernelArgumentError) as refused:
        _attend_small(**changed)
    return str(refused.value)


def test_arguments_that_do_not_fit_are_refused_by_name() -> None:
    good = fused_problem([3, 20], heads=(4, 2))
    assert _refusal(qkv=good.qkv[:, :-16]).startswith("qkv must have (H_q + 2 * H_kv) * D columns")
    assert _refusal(qkv=good.qkv[:1]).startswith("qkv must have one row per entry of positions, 2")
    assert _refusal(qkv=good.qkv.half()).startswith("qkv must be torch.float32")
    assert _refusal(out=torch.empty(2, 3 * 16)).startswith("out must have H_q * D columns")
    assert _refusal(out=torch.empty(64, 2).T).startswith("out must be contiguous along its last")
    assert _refusal(is_running=torch.ones(2)).startswith("is_running must be torch.bool")
    assert _refusal(is_running=torch.ones(3, dtype=torch.bool)).startswith("is_running must have")
    assert _refusal(positions=good.positions.long()).startswith("positions must be torch.int32")
    assert _refusal(block_tables=good.block_tables[:1]).startswith(
        "block_tables must have one row per entry of positions, 2"
    )
    assert _refusal(block_tables=good.block_tables[:, :0]).startswith("block_tables must have a")


def test_values_that_do_not_fit_are_refused_on_the_cpu() -> None:
    good = fused_problem([3, 20], heads=(4, 2))
    for place in (-1, 32):
        positions = torch.tensor([3, place], dtype=torch.int32)
        refusal = _refusal(positions=positions)
        assert refusal.startswith("positions must lie between 0 and 31 where a row is running")
        assert refusal.endswith(f"but holds {place}")
    table = good.block_tables.clone()
    table[1, 0] = 99
    assert _refusal(block_tables=table).startswith("block_tables must name blocks 0 to")
    table[1, 0] = table[0, 0]
    # Of one slot, and of two in one block: another row's program may read it meanwhile.
    for other in (3, 5):
        positions = torch.tensor([3, other], dtype=torch.int32)
        assert "two rows append to block" in _refusal(block_tables=table, positions=positions)
    idle = torch.tensor([True, False])
    _attend_small(
        block_tables=table, positions=torch.tensor([3, 99], dtype=torch.int32), is_running=idle
    )
