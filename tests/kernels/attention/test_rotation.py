"""Queries and keys normed and turned on their way into attention, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fused_attention_cases import FusedProblem, fused_problem
from fused_cases import random_tensor
from paged_cases import NAN, assert_close_to_reference, same_bits

from kernels import KernelArgumentError
from kernels.attention.arguments import FusedArguments
from kernels.attention.fused import fused_attention, split_heads
from kernels.attention.reference import reference_decode, reference_rotation
from kernels.attention.rotation import HeadRotation, Rotation
from kernels.tiles.launch import SPLIT_TOKENS

EPSILON = 1e-3
CACHED = [5, None, 70, 0, 63]


def _rotation(problem: FusedProblem, *, has_norm: bool) -> Rotation:
    """A table as long as the longest running row needs, and weights that tell heads apart."""
    head_dim = problem.k_cache.shape[3]
    longest = int(problem.positions[problem.is_running].max())
    angles = random_tensor(longest + 1, head_dim // 2, seed=3)
    table = torch.cat((angles.cos(), angles.sin()), 1)
    heads = problem.after.query.shape[1] + problem.k_cache.shape[1]
    norm = (1 + 0.5 * random_tensor(heads, head_dim, seed=4)).to(problem.qkv.dtype)
    return Rotation(table, norm if has_norm else None, EPSILON)


def _turned(problem: FusedProblem, rotation: Rotation) -> torch.Tensor:
    """The new queries and keys, float64 [B, H_q + H_kv, D], NaN of rows that do not run."""
    query, key, _ = split_heads(problem.qkv, problem.k_cache.shape[1], problem.k_cache.shape[3])
    positions = torch.where(problem.is_running, problem.positions, 0)
    heads = torch.cat((query, key), 1)
    return reference_rotation(heads, positions, rotation.table, rotation.norm, rotation.epsilon)


def _expected(problem: FusedProblem, turned: torch.Tensor) -> FusedProblem:
    """The problem whose `after` has the turned query and key."""
    after = problem.after
    query, key = turned.to(problem.qkv.dtype).split(
        [after.query.shape[1], problem.k_cache.shape[1]], dim=1
    )
    k_cache = after.k_cache.clone()
    block_size = k_cache.shape[2]
    for row in problem.is_running.nonzero().flatten().tolist():
        place = int(problem.positions[row])
        k_cache[problem.block_tables[row, place // block_size], :, place % block_size] = key[row]
    running = problem.is_running[:, None, None]
    query = torch.where(running, query, after.query)
    return replace(problem, after=replace(after, query=query, k_cache=k_cache))


def _by_slot(problem: FusedProblem, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the cache holds in the new tokens' slots, and all of it with zeros there."""
    others, new = cache.clone(), []
    block_size = cache.shape[2]
    for row in problem.is_running.nonzero().flatten().tolist():
        place = int(problem.positions[row])
        slot = int(problem.block_tables[row, place // block_size]), slice(None), place % block_size
        new.append(cache[slot])
        others[slot] = 0.0
    return torch.stack(new), others


def _moved(rotation: Rotation, device: torch.device) -> Rotation:
    norm = None if rotation.norm is None else rotation.norm.to(device)
    return Rotation(rotation.table.to(device), norm, rotation.epsilon)


@pytest.mark.parametrize(
    ("heads", "head_dim", "has_norm"),
    [((8, 2), 64, False), ((2, 1), 128, True), ((3, 3), 24, True)],
    ids=["llama", "qwen3", "odd"],
)
def test_new_queries_and_keys_are_normed_and_turned(
    implementation: Any,
    dtype: torch.dtype,
    heads: tuple[int, int],
    head_dim: int,
    has_norm: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys are appended as they are attended to, and nothing else in the cache is touched."""
    if implementation.name == "torch":
        monkeypatch.setattr("kernels.attention.fused.uses_triton", lambda tensor: False)
    # In pages that the Hopper kernel takes, where there is such a GPU.
    problem = fused_problem(CACHED, heads=heads, head_dim=head_dim, dtype=dtype, block_size=64)
    rotation = _rotation(problem, has_norm=has_norm)
    expected = _expected(problem, _turned(problem, rotation)).after
    moved = problem.on(implementation.device)
    out = torch.full(
        (len(CACHED), problem.num_columns), NAN, dtype=dtype, device=implementation.device
    )
    fused_attention(
        *moved.arguments,
        out,
        scale=problem.scale,
        rotation=_moved(rotation, implementation.device),
    )
    assert same_bits(moved.v_cache.cpu(), expected.v_cache)
    new, others = _by_slot(problem, moved.k_cache.cpu())
    expected_new, expected_others = _by_slot(problem, expected.k_cache)
    assert same_bits(others, expected_others)
    # Rounded to either side of the exact key.
    close = torch.finfo(dtype).eps * (4 if dtype == torch.float32 else 1)
    torch.testing.assert_close(new, expected_new, rtol=close, atol=close)
    result = out.cpu().unflatten(1, (-1, head_dim))
    assert_close_to_reference(result, reference_decode(*expected.decode_arguments), expected)
    assert not result[~problem.is_running].any()


def test_splits_and_neighbours_change_no_bit(triton_device: torch.device) -> None:
    from kernels.attention.decode_append import launch_fused

    problem = fused_problem([SPLIT_TOKENS + 9, 31], heads=(2, 1), dtype=torch.float16)
    rotation = _rotation(problem, has_norm=True)
    outs, keys = [], []
    for one, serial in ((problem, True), (problem, False), (problem.alone(0), True)):
        moved = one.on(triton_device)
        shape = (moved.qkv.shape[0], problem.num_columns)
        out = torch.full(shape, NAN, dtype=torch.float16, device=triton_device)
        arguments = FusedArguments(
            *moved.arguments, out, problem.scale, _moved(rotation, triton_device)
        )
        launch_fused(arguments, pdl=False, serial=serial)
        outs.append(out[0].cpu())
        keys.append(moved.k_cache[int(problem.block_tables[0, SPLIT_TOKENS // 16]), :, 9].cpu())
    for out, key in zip(outs, keys, strict=True):
        assert same_bits(out, outs[0])
        assert same_bits(key, keys[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_ring_turns_as_the_plain_kernel_does(
    gpu: torch.device, dtype: torch.dtype, head_dim: int
) -> None:
    """However many programs share a context, to the bit; but for rounding as the plain kernel."""
    if torch.cuda.get_device_capability(gpu) != (9, 0):
        pytest.skip("needs a Hopper GPU")
    from kernels.attention.decode_append import launch_fused
    from kernels.attention.hopper.ring_launch import launch_ring_append

    problem = fused_problem(
        [3 * SPLIT_TOKENS + 1, 17, None, SPLIT_TOKENS, 0],
        heads=(8, 2),
        head_dim=head_dim,
        block_size=64,
        dtype=dtype,
    )
    rotation = _moved(_rotation(problem, has_norm=head_dim == 128), gpu)
    outs, keys = [], []
    for how in (
        {"serial": True},
        {"serial": False, "cluster": 1},
        {"serial": False, "cluster": 4},
        {},
    ):
        moved = problem.on(gpu)
        shape = (moved.qkv.shape[0], problem.num_columns)
        out = torch.full(shape, NAN, dtype=dtype, device=gpu)
        arguments = FusedArguments(*moved.arguments, out, problem.scale, rotation)
        if how:
            launch_ring_append(arguments, False, **how)
        else:
            launch_fused(arguments, False)
        outs.append(out)
        keys.append(moved.k_cache)
    for out, cache in zip(outs[:-1], keys[:-1], strict=True):
        assert same_bits(out, outs[0])
        assert same_bits(cache, keys[0])
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(outs[0], outs[-1], rtol=4 * unit, atol=4 * unit)
    torch.testing.assert_close(keys[0], keys[-1], rtol=unit, atol=unit, equal_nan=True)


def test_tables_that_do_not_fit_are_refused_by_name() -> None:
    problem = fused_problem([3, 20], heads=(4, 2))
    good = _rotation(problem, has_norm=True)
    assert good.norm is not None
    for wrong, what in (
        (replace(good, table=good.table[:, :8]), "rotation.table must be"),
        (replace(good, table=good.table.half()), "rotation.table must be torch.float32"),
        (replace(good, norm=good.norm[:4]), r"rotation.norm must be \[6, 16\]"),
    ):
        out = torch.empty(2, problem.num_columns)
        with pytest.raises(KernelArgumentError, match=what):
            fused_attention(*problem.arguments, out, scale=1.0, rotation=wrong)


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(("count", "head_dim"), [(1, 64), (11, 128), (3, 80)])
def test_heads_of_many_tokens_are_turned_alone(
    implementation: Any, dtype: torch.dtype, count: int, head_dim: int, has_norm: bool
) -> None:
    """Those behind them, values say, stay as they are."""
    device = implementation.device
    positions = torch.tensor([7, 0, 3, 3], device=device)
    angles = random_tensor(8, head_dim // 2, seed=1).to(device)
    table = torch.cat((angles.cos(), angles.sin()), 1)
    qkv = random_tensor(4, count + 2, head_dim, seed=2).to(dtype).to(device)
    norm = (1 + 0.5 * random_tensor(count, head_dim, seed=3)).to(dtype).to(device)
    norm_or_none = norm if has_norm else None
    expected = reference_rotation(qkv[:, :count], positions, table, norm_or_none, EPSILON)
    behind = qkv[:, count:].clone()
    turned = HeadRotation(positions, table).heads(qkv[:, :count], norm_or_none, EPSILON)
    unit = torch.finfo(dtype).eps
    assert float(((turned.double() - expected).abs() / (1 + expected.abs())).max()) <= 2 * unit
    assert same_bits(qkv[:, count:], behind)


def test_heads_that_do_not_lie_one_after_another_are_refused(implementation: Any) -> None:
    heads = torch.zeros(4, 16, 3, device=implementation.device).transpose(1, 2)
    positions = torch.zeros(4, dtype=torch.int32, device=implementation.device)
    with pytest.raises(KernelArgumentError, match="one after another"):
        HeadRotation(positions, torch.zeros(1, 16, device=implementation.device)).heads(heads)
