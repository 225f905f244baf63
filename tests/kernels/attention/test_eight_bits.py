"""Keys and values in eight bits, against float64 of what the cache stands for, in NaN memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from eight_bits_cases import (
    as_floats,
    decoded,
    fused_in_eight_bits,
    head_scales,
    in_eight_bits,
    new_value,
    prefilled,
)
from fused_attention_cases import FusedProblem, fused_problem
from fused_cases import random_tensor
from paged_cases import (
    NAN,
    PagedProblem,
    assert_close_to_reference,
    paged_problem,
    same_bits,
    side_by_side,
)

import kernels
from kernels import KernelArgumentError
from kernels.attention.arguments import FusedArguments
from kernels.attention.eight_bits import rounded, scales_for
from kernels.attention.fused import fused_attention, split_heads
from kernels.attention.reference import reference_append
from kernels.attention.rotation import Rotation
from kernels.attention.row import row_attention_serves
from kernels.backend import ring_serves
from kernels.linear.folded import fold_linear
from kernels.linear.fp8 import FP8, LARGEST
from kernels.tiles import launch
from kernels.tiles.launch import SPLIT_TOKENS, ring_tile

HALVES = [torch.float16, torch.bfloat16]
S = SPLIT_TOKENS
CONTEXTS = [0, 1, 15, 16, 17, 40, S - 1, S, S + 1]
CACHED = [0, 3, None, 15, 16, 31, S - 1, S, S + 1]
# Around splits, pages, the ring's tiles, and the pieces in which its last one is copied.
RAGGED = [3 * S + 1, 17, None, S, 2 * S - 1, 0, 63, 64, 65, S + 1, 1, 31, 32, 33, S - 1, 127]
RAGGED += [7, 8, 9, 24, 25, 40, S + 47, 2 * S + 56]


def test_scales_leave_room_and_round_nothing() -> None:
    largest = torch.tensor([1.0, 111.9, 112.0, 112.1, 3e-5, 0.0, float("inf"), NAN])
    scales = scales_for(largest)
    assert scales[-3:].tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(scales.log2(), scales.log2().round())
    assert scales[1:4].tolist() == [1.0, 1.0, 2.0]
    in_range = 4 * largest[:5] / scales[:5]
    assert (in_range <= LARGEST).all()
    assert (in_range > LARGEST / 2).all()


@pytest.mark.parametrize("is_power", [True, False])
@pytest.mark.parametrize("whole_rows", [launch.MOST_WHOLE_APPENDS, 0], ids=["whole", "shared"])
@pytest.mark.parametrize(("heads", "head_dim"), [(2, 16), (3, 24), (8, 128)])
def test_appended_tokens_are_rounded_and_all_else_is_left(
    implementation: Any,
    dtype: torch.dtype,
    heads: int,
    head_dim: int,
    whole_rows: int,
    is_power: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "MOST_WHOLE_APPENDS", whole_rows)
    device = implementation.device
    scales = head_scales(heads, is_power=is_power)
    key, value = (3 * random_tensor(5, heads, head_dim, seed=seed).to(dtype) for seed in (1, 2))
    value *= torch.logspace(-3, 1, head_dim).to(dtype)
    blocks = torch.tensor([4, -1, 0, 2, 4], dtype=torch.int32)
    slots = torch.tensor([7, 0, 0, 3, 1], dtype=torch.int32)
    caches = [torch.full((6, heads, 8, head_dim), NAN).to(FP8) for _ in range(2)]
    for laid in (caches, side_by_side(*(cache.view(torch.uint8) for cache in caches))):
        mine = [cache.clone().view(FP8).to(device) for cache in laid]
        wanted = [cache.clone() for cache in caches]
        reference_append(*wanted, key, value, blocks, slots, scales=scales)
        moved = (one.to(device) for one in (key, value, blocks, slots))
        kernels.kv_append(*mine, *moved, scales=scales.to(device))
        for cache, exact in zip(mine, wanted, strict=True):
            if is_power:
                assert same_bits(cache.cpu(), exact)
                continue
            # A quotient that is rounded may lie on the other side of the middle of two.
            apart = cache.cpu().view(torch.int8).short() - exact.view(torch.int8).short()
            assert int(apart.abs().max()) <= 1
            assert float((apart != 0).double().mean()) < 0.01


def test_values_beyond_the_range_become_its_largest(
    implementation: Any, dtype: torch.dtype
) -> None:
    """And NaN stays what it is, so that a request that went wrong is seen."""
    device = implementation.device
    rows = torch.tensor([448.0, 449.0, 465.0, -6e4, float("inf"), -float("inf"), NAN, 1.0])
    key = rows.to(dtype).expand(1, 2, 8).contiguous().to(device)
    caches = [torch.zeros(1, 2, 4, 8, device=device).to(FP8) for _ in range(2)]
    place = torch.zeros(1, dtype=torch.int32, device=device)
    scales = torch.tensor([[1.0, 0.5], [1.0, 2.0]], device=device)
    kernels.kv_append(*caches, key, key, place, place, scales=scales)
    most = [LARGEST, LARGEST, LARGEST, -LARGEST, LARGEST, -LARGEST, NAN]
    kept = [cache[0, :, 0].float().cpu() for cache in caches]
    for heads, head, last in ((0, 0, 1.0), (0, 1, 2.0), (1, 0, 1.0)):
        expected = torch.tensor([*most, last])
        assert torch.equal(kept[heads][head].nan_to_num(nan=9.0), expected.nan_to_num(nan=9.0))
    halves = rounded(rows.to(dtype)[None, None], torch.tensor([2.0])).float()[0, 0]
    assert torch.equal(kept[1][1].nan_to_num(nan=9.0), halves.nan_to_num(nan=9.0))


@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size"),
    [((2, 2), 16, 16), ((8, 2), 64, 16), ((3, 1), 24, 8), ((4, 2), 128, 64), ((2, 1), 256, 64)],
)
def test_decode(
    implementation: Any,
    dtype: torch.dtype,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
) -> None:
    contexts = CONTEXTS if head_dim < 128 else CONTEXTS[:7]
    shape: dict[str, Any] = {"heads": heads, "head_dim": head_dim, "block_size": block_size}
    scales = head_scales(heads[1], is_power=head_dim != 64)
    problem = in_eight_bits(paged_problem(contexts, dtype=dtype, **shape), scales)
    reference = decoded(problem, scales)
    moved, on_device = problem.on(implementation.device), scales.to(implementation.device)
    result = kernels.paged_attention_decode(*moved.decode_arguments, scales=on_device)
    assert_close_to_reference(result.cpu(), reference, as_floats(problem, scales))
    assert not result[0].any()
    beside = moved.side_by_side()
    assert same_bits(
        kernels.paged_attention_decode(*beside.decode_arguments, scales=on_device), result
    )


@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size"),
    [((2, 2), 16, 16), ((8, 2), 64, 16), ((3, 1), 24, 8), ((4, 2), 128, 64)],
)
def test_prefill(
    implementation: Any,
    dtype: torch.dtype,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
) -> None:
    shape: dict[str, Any] = {"heads": heads, "head_dim": head_dim, "block_size": block_size}
    scales = head_scales(heads[1], is_power=head_dim != 64)
    problem = paged_problem([0, 5, 70, 33, 64], chunks=[0, 5, 30, 1, 64], dtype=dtype, **shape)
    problem = in_eight_bits(problem, scales)
    moved, on_device = problem.on(implementation.device), scales.to(implementation.device)
    result = kernels.paged_attention_prefill(*moved.prefill_arguments, scales=on_device)
    reference = prefilled(problem, scales)
    assert_close_to_reference(result.cpu(), reference, as_floats(problem, scales))


def _appended(
    problem: FusedProblem, scales: torch.Tensor, device: torch.device, **options: Any
) -> torch.Tensor:
    """What `fused_attention` returns, with the whole cache compared."""
    moved = problem.on(device)
    out = torch.full(
        (len(problem.qkv), problem.num_columns), NAN, dtype=problem.qkv.dtype, device=device
    )
    fused_attention(*moved.arguments, out, scale=problem.scale, scales=scales.to(device), **options)
    assert same_bits(moved.k_cache.cpu(), problem.after.k_cache)
    assert same_bits(moved.v_cache.cpu(), problem.after.v_cache)
    return out.cpu().unflatten(1, (-1, problem.k_cache.shape[3]))


@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size"),
    [((2, 2), 16, 16), ((8, 2), 64, 16), ((3, 1), 24, 8), ((4, 2), 128, 64)],
)
def test_append_and_attend(
    implementation: Any,
    dtype: torch.dtype,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
) -> None:
    """The new token, too, is attended to as it is stored: as by two calls, one after the other."""
    cached = CACHED if head_dim < 128 else CACHED[:7]
    scales = head_scales(heads[1])
    problem = fused_problem(
        cached, heads=heads, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    problem = fused_in_eight_bits(problem, scales)
    result = _appended(problem, scales, implementation.device)
    floats = as_floats(problem.after, scales)
    assert_close_to_reference(result, decoded(problem.after, scales), floats)
    assert not result[~problem.is_running].any()


def test_a_new_token_alone_gives_its_value_as_it_is_stored(
    implementation: Any, dtype: torch.dtype
) -> None:
    scales = head_scales(2)
    problem = fused_in_eight_bits(fused_problem([0, 0], dtype=dtype), scales)
    result = _appended(problem, scales, implementation.device)
    for row in range(2):
        assert torch.equal(result[row].double(), new_value(problem, row, scales))
    _, _, value = split_heads(problem.qkv, 2, 16)
    assert not torch.equal(result, value)


def _launched(
    problem: FusedProblem, scales: torch.Tensor, device: torch.device, launch: Any, **how: Any
) -> torch.Tensor:
    moved = problem.on(device)
    shape = (len(problem.qkv), problem.num_columns)
    out = torch.full(shape, NAN, dtype=problem.qkv.dtype, device=device)
    arguments = FusedArguments(*moved.arguments, out, problem.scale, None, scales.to(device))
    launch(arguments, False, **how)
    return out.cpu().unflatten(1, (-1, problem.k_cache.shape[3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_splits_and_neighbours_change_no_bit(
    triton_device: torch.device, dtype: torch.dtype
) -> None:
    from kernels.attention.decode import launch_decode
    from kernels.attention.decode_append import launch_fused

    cached = [S + 9, 31, None, 2 * S, 16]
    scales = head_scales(1, is_power=False)
    problem = fused_in_eight_bits(fused_problem(cached, heads=(2, 1), dtype=dtype), scales)
    launched = partial(_launched, scales=scales, device=triton_device, launch=launch_fused)
    together = launched(problem, serial=True)
    assert same_bits(launched(problem, serial=False), together)
    for row in (0, 1, 3, 4):
        assert same_bits(launched(problem.alone(row), serial=False)[0], together[row])
    after = problem.after.on(triton_device)
    outs = []
    for serial in (False, True):
        out = torch.full_like(after.query, NAN)
        launch_decode(*after.decode_arguments, 0.25, out, scales.to(triton_device), serial=serial)
        outs.append(out)
    assert same_bits(*outs)


@pytest.mark.parametrize("has_norm", [False, True])
def test_keys_are_stored_turned(implementation: Any, dtype: torch.dtype, has_norm: bool) -> None:
    """As `fused_attention` over a cache of floats turns them, and rounded then."""
    device, scales = implementation.device, head_scales(2)
    floats = fused_problem([5, None, 70, 0], heads=(4, 2), head_dim=64, block_size=64, dtype=dtype)
    angles = random_tensor(71, 32, seed=3)
    norm = (1 + 0.5 * random_tensor(6, 64, seed=4)).to(dtype).to(device) if has_norm else None
    rotation = Rotation(torch.cat((angles.cos(), angles.sin()), 1).to(device), norm, 1e-3)
    plain, eight = floats.on(device), fused_in_eight_bits(floats, scales).on(device)
    outs = [torch.full((4, 256), NAN, dtype=dtype, device=device) for _ in range(2)]
    fused_attention(*plain.arguments, outs[0], scale=floats.scale, rotation=rotation)
    fused_attention(
        *eight.arguments, outs[1], scale=floats.scale, rotation=rotation, scales=scales.to(device)
    )
    for place, (mine, theirs) in enumerate(
        ((eight.k_cache, plain.k_cache), (eight.v_cache, plain.v_cache))
    ):
        exact = theirs.double().cpu()
        back = mine.cpu().double() * scales[place].double()[:, None, None]
        # A key on either side of the middle of two numbers of eight bits.
        bound = torch.maximum(exact.abs() / 15, scales[place].double()[:, None, None] * 2**-9)
        assert ((back - exact).abs() <= bound)[~exact.isnan()].all()
        assert torch.equal(back.isnan(), exact.isnan())
    assert not outs[1][1].any()
    error = (outs[1].double() - outs[0].double()).norm() / outs[0].double().norm()
    assert 0 < float(error) < 0.1


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", [1, 3, 4, 8, 16])
def test_the_ring_against_the_reference_and_the_plain_kernel(
    hopper: torch.device, dtype: torch.dtype, head_dim: int, group: int
) -> None:
    """However many programs share a context, and whether they meet in memory or in a cluster."""
    from kernels.attention.decode_append import launch_fused
    from kernels.attention.hopper.ring_launch import launch_ring_append

    scales = head_scales(2, seed=group)
    problem = fused_problem(
        RAGGED, heads=(2 * group, 2), head_dim=head_dim, block_size=64, dtype=dtype, seed=group
    )
    problem = fused_in_eight_bits(problem, scales)
    reference, floats = decoded(problem.after, scales), as_floats(problem.after, scales)
    launched = partial(_launched_side_by_side, problem, scales, hopper)
    result = launched(launch_ring_append, serial=True)
    assert_close_to_reference(result, reference, floats)
    assert not result[~problem.is_running].any()
    for cluster in (1, 2, 4, 8):
        assert same_bits(launched(launch_ring_append, serial=False, cluster=cluster), result)
    apart = _launched(problem, scales, hopper, launch_ring_append, serial=True)
    assert same_bits(apart, result)
    plain = launched(launch_fused, serial=True)
    assert_close_to_reference(plain, reference, floats)
    unit = 4 * torch.finfo(dtype).eps
    assert float((plain.double() - result.double()).abs().max()) <= unit
    is_served = head_dim == 128 or group <= 4
    appended = _appended(problem, scales, hopper, ring=ring_tile(head_dim, group))
    assert same_bits(appended, result if is_served else plain)


def _launched_side_by_side(
    problem: FusedProblem, scales: torch.Tensor, device: torch.device, launch: Any, **how: Any
) -> torch.Tensor:
    """The result with each value behind its key, with both caches compared."""
    moved = problem.on(device).side_by_side()
    shape = (len(problem.qkv), problem.num_columns)
    out = torch.full(shape, NAN, dtype=problem.qkv.dtype, device=device)
    arguments = FusedArguments(*moved.arguments, out, problem.scale, None, scales.to(device))
    launch(arguments, False, **how)
    assert same_bits(moved.k_cache.cpu(), problem.after.k_cache)
    assert same_bits(moved.v_cache.cpu(), problem.after.v_cache)
    return out.cpu().unflatten(1, (-1, problem.k_cache.shape[3]))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("group", [1, 3, 4])
def test_the_ring_over_cached_tokens(hopper: torch.device, dtype: torch.dtype, group: int) -> None:
    from kernels.attention.hopper.ring_launch import launch_ring_decode

    scales = head_scales(2)
    contexts = [context or 0 for context in RAGGED]
    problem = paged_problem(
        contexts, heads=(2 * group, 2), head_dim=64, block_size=64, dtype=dtype, seed=group
    )
    problem = in_eight_bits(problem, scales)
    moved, on_device = problem.on(hopper).side_by_side(), scales.to(hopper)
    outs = []
    for how in ({"serial": True}, {"serial": False, "cluster": 1}, {"serial": False, "cluster": 4}):
        out = torch.full_like(moved.query, NAN)
        launch_ring_decode(*moved.decode_arguments, 64**-0.5, out, on_device, **how)
        outs.append(out)
    assert all(same_bits(out, outs[0]) for out in outs[1:])
    floats = as_floats(problem, scales)
    assert_close_to_reference(outs[0].cpu(), decoded(problem, scales), floats)
    chosen = kernels.paged_attention_decode(*moved.decode_arguments, scales=on_device)
    assert same_bits(chosen, outs[0])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("has_norm", [False, True])
def test_the_ring_turns_as_the_plain_kernel_does(
    hopper: torch.device, dtype: torch.dtype, head_dim: int, has_norm: bool
) -> None:
    from kernels.attention.decode_append import launch_fused
    from kernels.attention.hopper.ring_launch import launch_ring_append

    scales = head_scales(2).to(hopper)
    problem = fused_problem(
        [3 * S + 1, 17, None, S, 0], heads=(8, 2), head_dim=head_dim, block_size=64, dtype=dtype
    )
    problem = fused_in_eight_bits(problem, scales.cpu())
    angles = random_tensor(3 * S + 2, head_dim // 2, seed=3)
    norm = (1 + 0.5 * random_tensor(10, head_dim, seed=4)).to(dtype).to(hopper)
    table = torch.cat((angles.cos(), angles.sin()), 1).to(hopper)
    rotation = Rotation(table, norm if has_norm else None, 1e-3)
    outs, keys = [], []
    for launched in (launch_ring_append, launch_fused):
        moved = problem.on(hopper).side_by_side()
        out = torch.full((5, problem.num_columns), NAN, dtype=dtype, device=hopper)
        arguments = FusedArguments(*moved.arguments, out, problem.scale, rotation, scales)
        launched(arguments, False)
        outs.append(out.float())
        keys.append(moved.k_cache.float())
    # Keys that were summed in another order may round to either side.
    torch.testing.assert_close(keys[0], keys[1], rtol=1 / 7, atol=2**-9, equal_nan=True)
    torch.testing.assert_close(outs[0], outs[1], rtol=0.02, atol=0.02)


def test_the_rules_that_choose_kernels(hopper: torch.device) -> None:
    cache = torch.empty(4, 2, 64, 64, dtype=FP8, device=hopper)
    assert ring_serves(cache, cache, 1, append=True, dtype=torch.float16)
    assert ring_serves(cache, cache, 4, append=False, dtype=torch.bfloat16)
    assert not ring_serves(cache, cache, 1, append=True, dtype=torch.float32)
    odd = torch.empty(4, 2, 64, 72, dtype=FP8, device=hopper)[..., :64]
    assert not ring_serves(odd, odd, 1, append=True, dtype=torch.float16)
    # Two kernels serve a single row, not one.
    linear = fold_linear(
        torch.zeros(384, 256, dtype=torch.float16, device=hopper), None,
        torch.ones(256, device=hopper), torch.zeros(256, device=hopper), 1e-5,
    )  # fmt: skip
    half = torch.empty(4, 2, 64, 64, dtype=torch.float16, device=hopper)
    assert row_attention_serves(1, linear, half, half)
    assert not row_attention_serves(1, linear, cache, cache)


def test_scales_and_caches_that_do_not_fit_are_refused_by_name() -> None:
    scales = head_scales(2)
    problem = in_eight_bits(paged_problem([5, 9], heads=(4, 2)), scales)

    def refusal(found: PagedProblem, scales: torch.Tensor | None) -> str:
        with pytest.raises(KernelArgumentError) as refused:
            kernels.paged_attention_decode(*found.decode_arguments, scales=scales)
        return str(refused.value)

    assert refusal(problem, None).endswith("float8_e4m3fn: give the scales of its heads")
    floats = as_floats(problem, scales)
    assert refusal(floats, scales).startswith("k_cache must be torch.float8_e4m3fn where scales")
    assert refusal(problem, scales[:1]).startswith("scales must be [2, 2], of keys and of values")
    assert refusal(problem, scales.double()).startswith("scales must be torch.float32")
    wide = torch.ones(2, 4)[:, ::2]
    assert refusal(problem, wide).startswith("scales must be [2, 2]")
    with pytest.raises(KernelArgumentError, match="query must be a float32, float16 or bfloat16"):
        kernels.paged_attention_decode(
            problem.query.to(FP8), *problem.decode_arguments[1:], scales=scales
        )
    out = torch.empty(problem.query.shape, dtype=torch.float16)
    with pytest.raises(KernelArgumentError, match=r"out must be torch.float32"):
        kernels.paged_attention_decode(*problem.decode_arguments, scales=scales, out=out)
    key = torch.zeros(1, 2, 16)
    place = torch.zeros(1, dtype=torch.int32)
    caches = problem.k_cache, problem.v_cache
    with pytest.raises(KernelArgumentError, match=r"value must be torch\.float32"):
        kernels.kv_append(*caches, key, key.half(), place, 0, scales=scales)
