"""The Hopper attention kernel: against the float64 reference and the plain one, on the GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from fused_attention_cases import FusedProblem, fused_problem
from paged_cases import (
    NAN,
    PagedProblem,
    assert_close_to_reference,
    paged_problem,
    same_bits,
)

from kernels import paged_attention_decode
from kernels.attention.arguments import FusedArguments
from kernels.attention.fused import fused_attention
from kernels.attention.reference import reference_decode
from kernels.backend import ring_serves
from kernels.tiles.launch import SPLIT_TOKENS, ring_tile
from kernels.tiles.tile import RingTile

HALVES = [torch.float16, torch.bfloat16]
S = SPLIT_TOKENS
# Around splits, pages, the tiles of 32 tokens and the pieces of 8 in which the last one is copied.
RAGGED = [3 * S + 1, 17, None, S, 2 * S - 1, 0, 63, 64, 65, S + 1, 1, 31, 32, 33, S - 1, 127]
RAGGED += [7, 8, 9, 24, 25, 40, S + 47, 2 * S + 56]


def _launched(
    problem: FusedProblem,
    device: torch.device,
    *,
    serial: bool | None = None,
    cluster: int | None = None,
    ring: bool = True,
    tile: RingTile | None = None,
    beside: bool = False,
) -> torch.Tensor:
    """The result, with the whole cache compared after the append.

    `beside`: each value stands behind its key, rather than in a cache of its own.
    """
    from kernels.attention.decode_append import launch_fused
    from kernels.attention.hopper.ring_launch import launch_ring_append

    moved = problem.on(device)
    if beside:
        moved = moved.side_by_side()
    rows = problem.qkv.shape[0]
    out = torch.full((rows, problem.num_columns), NAN, dtype=problem.qkv.dtype, device=device)
    launch = partial(launch_ring_append, cluster=cluster, ring=tile) if ring else launch_fused
    launch(FusedArguments(*moved.arguments, out, problem.scale), False, serial=serial)
    assert same_bits(moved.k_cache.cpu(), problem.after.k_cache)
    assert same_bits(moved.v_cache.cpu(), problem.after.v_cache)
    return out.cpu().unflatten(1, (-1, problem.after.query.shape[2]))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", [1, 3, 4, 8, 16])
def test_against_the_reference_and_the_plain_kernel(
    hopper: torch.device, dtype: torch.dtype, head_dim: int, group: int
) -> None:
    problem = fused_problem(
        RAGGED, heads=(2 * group, 2), head_dim=head_dim, block_size=64, dtype=dtype, seed=group
    )
    reference = reference_decode(*problem.after.decode_arguments)
    results = [
        _launched(problem, hopper, serial=serial, beside=beside)
        for serial in (False, True)
        for beside in (False, True)
    ]
    assert all(same_bits(results[0], other) for other in results[1:])
    assert_close_to_reference(results[0], reference, problem.after)
    assert not results[0][~problem.is_running].any()
    plain = _launched(problem, hopper, ring=False)
    assert_close_to_reference(plain, reference, problem.after)
    unit = 4 * torch.finfo(dtype).eps
    assert float((plain.double() - results[0].double()).abs().max()) <= unit


def _attended(
    problem: PagedProblem, *, serial: bool | None = None, cluster: int | None = None
) -> torch.Tensor:
    """The result over tokens that are all in the cache."""
    from kernels.attention.hopper.ring_launch import launch_ring_decode

    out = torch.full_like(problem.query, NAN)
    launch_ring_decode(
        *problem.decode_arguments,
        problem.query.shape[2] ** -0.5,
        out,
        serial=serial,
        cluster=cluster,
    )
    return out


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", [1, 3, 4, 16])
def test_cached_tokens_against_the_reference_and_the_plain_kernel(
    hopper: torch.device, dtype: torch.dtype, head_dim: int, group: int
) -> None:
    from kernels.attention.decode import launch_decode

    contexts = [context or 0 for context in RAGGED]
    shape = {"heads": (2 * group, 2), "head_dim": head_dim, "block_size": 64}
    problem = paged_problem(contexts, dtype=dtype, seed=group, **shape).on(hopper)  # type: ignore[arg-type]
    reference = reference_decode(*problem.decode_arguments)
    results = [
        _attended(laid, serial=serial)
        for serial in (False, True)
        for laid in (problem, problem.side_by_side())
    ]
    assert all(same_bits(results[0], other) for other in results[1:])
    assert_close_to_reference(results[0], reference, problem)
    assert not results[0][problem.context_lens == 0].any()
    plain = torch.full_like(problem.query, NAN)
    launch_decode(*problem.decode_arguments, head_dim**-0.5, plain)
    assert_close_to_reference(plain, reference, problem)
    unit = 4 * torch.finfo(dtype).eps
    assert float((plain.double() - results[0].double()).abs().max()) <= unit


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", [1, 3])
def test_parts_that_meet_in_a_cluster_or_in_memory_give_the_same_bits(
    hopper: torch.device, dtype: torch.dtype, head_dim: int, group: int
) -> None:
    """Whether a program takes one split, several of them, or none."""
    shape = {"heads": (2 * group, 2), "head_dim": head_dim, "block_size": 64, "dtype": dtype}
    fused = fused_problem(RAGGED, seed=group, **shape)  # type: ignore[arg-type]
    contexts = [context or 0 for context in RAGGED]
    cached = paged_problem(contexts, seed=group, **shape).on(hopper)  # type: ignore[arg-type]
    appended = _launched(fused, hopper, serial=True)
    attended = _attended(cached, serial=True)
    for cluster in (1, 2, 4, 8):
        assert same_bits(_launched(fused, hopper, serial=False, cluster=cluster), appended)
        assert same_bits(_attended(cached, serial=False, cluster=cluster), attended)


@pytest.mark.parametrize("dtype", HALVES)
def test_cached_tokens_alone_equal_themselves_in_a_batch(
    hopper: torch.device, dtype: torch.dtype
) -> None:
    contexts = [context or 0 for context in RAGGED]
    problem = paged_problem(contexts, head_dim=64, block_size=64, dtype=dtype).on(hopper)
    together = _attended(problem, serial=True)
    for row in (0, 1, 3, 4, 5, 8):
        alone = paged_attention_decode(*problem.alone(row).decode_arguments)
        assert same_bits(alone[0], together[row])


def test_a_length_beyond_the_table_is_as_long_as_the_table(hopper: torch.device) -> None:
    shape = {"heads": (2, 2), "head_dim": 64, "block_size": 64}
    problem = paged_problem([128, 64], dtype=torch.float16, **shape).on(hopper)  # type: ignore[arg-type]
    problem.block_tables[1] = problem.block_tables[1, 0]
    for serial in (False, True):
        problem.context_lens.copy_(torch.tensor([128, 128]))
        within = _attended(problem, serial=serial)
        problem.context_lens.copy_(torch.tensor([4096, 129]))
        assert same_bits(_attended(problem, serial=serial), within)


def test_heads_of_a_wider_row(hopper: torch.device) -> None:
    """Queries and results that are slices, as those of a projection for all heads are."""
    problem = paged_problem([100, 0, 65], head_dim=64, block_size=64, dtype=torch.float16)
    problem = problem.on(hopper)
    expected = _attended(problem)
    wide = torch.full((3, 6, 64), NAN, dtype=torch.float16, device=hopper)
    wide[:, ::3] = problem.query
    out = torch.full((3, 2, 128), NAN, dtype=torch.float16, device=hopper)[..., :64]
    _, *others = problem.decode_arguments
    assert same_bits(paged_attention_decode(wide[:, ::3], *others, out=out), expected)


@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_pages_of_one_tile_and_more(hopper: torch.device, block_size: int) -> None:
    p = block_size
    problem = fused_problem(
        [p - 1, p, p + 1, 0, None, 2 * p, 5 * p + 3],
        head_dim=64,
        block_size=p,
        dtype=torch.float16,
    )
    reference = reference_decode(*problem.after.decode_arguments)
    assert_close_to_reference(_launched(problem, hopper), reference, problem.after)


@pytest.mark.parametrize("dtype", HALVES)
def test_alone_equals_in_a_batch_bit_for_bit(hopper: torch.device, dtype: torch.dtype) -> None:
    problem = fused_problem(RAGGED, heads=(2, 2), head_dim=64, block_size=64, dtype=dtype)
    together = _launched(problem, hopper, serial=True)
    for row in (0, 1, 3, 4, 5, 8):
        moved = problem.alone(row).on(hopper)
        out = torch.full((1, problem.num_columns), NAN, dtype=dtype, device=hopper)
        fused_attention(*moved.arguments, out, scale=problem.scale)
        assert same_bits(out.cpu().unflatten(1, (-1, 64))[0], together[row])


@pytest.mark.parametrize(
    ("choice", "values", "serial"),
    [
        ("ring_stages", (2, 3, 4, 6), False),
        ("ring_stages", (2, 3, 4, 6), True),
        ("ring_spare", (0, 128, 7680, 66432), True),
    ],
)
def test_the_memory_that_a_ring_takes_changes_no_bit(
    hopper: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    values: tuple[int, ...],
    serial: bool,
) -> None:
    from kernels.attention.hopper import ring_launch

    problem = fused_problem(RAGGED, heads=(2, 2), head_dim=64, block_size=64, dtype=torch.float16)
    results = []
    for value in values:
        monkeypatch.setattr(ring_launch, choice, lambda *_, value=value, **__: value)
        results.append(_launched(problem, hopper, serial=serial))
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("serial", "cluster"), [(True, None), (False, 1), (False, 8)])
def test_tokens_are_written_before_or_after_the_context_alike(
    hopper: torch.device, dtype: torch.dtype, head_dim: int, serial: bool, cluster: int | None
) -> None:
    problem = fused_problem(RAGGED, heads=(6, 2), head_dim=head_dim, block_size=64, dtype=dtype)
    results = [
        _launched(
            problem,
            hopper,
            serial=serial,
            cluster=cluster,
            tile=replace(ring_tile(head_dim), late_append=programs),
            beside=beside,
        )
        for programs in (math.inf, 0.0)
        for beside in (False, True)
    ]
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize(
    ("rows", "columns", "programs"), [(1, 8, 96), (2, 16, 192), (8, 4, 768), (9, 9, 432)]
)
def test_the_depth_of_a_ring_is_that_for_the_programs_that_there_are(
    hopper: torch.device, monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, programs: int
) -> None:
    """Those of the clusters, however many splits the block tables leave room for."""
    from kernels.attention.hopper import ring_launch

    asked = []

    def ring_stages(head_dim: int, count: int, *_: object, in_clusters: bool) -> int:
        asked.append((head_dim, count, in_clusters))
        return 2

    monkeypatch.setattr(ring_launch, "ring_stages", ring_stages)
    monkeypatch.setattr(ring_launch, "multiprocessors", lambda _: 132)
    problem = fused_problem(
        [columns * 64 - 1] * rows,
        heads=(12, 12),
        head_dim=64,
        block_size=64,
        dtype=torch.float16,
    )
    _launched(problem, hopper)
    assert asked == [(64, programs, True)]


@pytest.mark.parametrize("sign", [-1, 1])
def test_extreme_scores(hopper: torch.device, sign: int) -> None:
    problem = fused_problem(
        [40, S + 30, 0],
        heads=(2, 1),
        head_dim=64,
        block_size=64,
        dtype=torch.float16,
        integers=True,
        sign=sign,
    )
    result = _launched(problem, hopper)
    error = (result.double() - reference_decode(*problem.after.decode_arguments)).abs().max()
    assert float(error) < 8 * torch.finfo(torch.float16).eps


def test_the_rule_that_chooses_it(hopper: torch.device) -> None:
    def serves(
        dtype: torch.dtype, head_dim: int, block_size: int, group: int = 1, append: bool = True
    ) -> bool:
        cache = torch.empty(4, 2, block_size, head_dim, dtype=dtype, device=hopper)
        return ring_serves(cache, cache.clone(), group, append=append)

    assert serves(torch.float16, 64, 64)
    assert serves(torch.float16, 64, 64, append=False)
    assert serves(torch.float16, 64, 64, group=4)
    assert serves(torch.bfloat16, 128, 64, group=4)
    assert not serves(torch.bfloat16, 128, 64, group=4, append=False)
    assert not serves(torch.float32, 64, 64)
    assert not serves(torch.float16, 96, 64)
    assert not serves(torch.float16, 64, 8)
    assert not serves(torch.float16, 64, 64, group=5)
    assert not serves(torch.float16, 128, 64, group=17)
    assert not serves(torch.float16, 128, 16), "a tile of 32 tokens is more than a page"
    wide = torch.empty(4, 2, 64, 128, dtype=torch.float16, device=hopper)
    assert ring_serves(wide[..., :64], wide[..., 64:], 1, append=True)
    assert not ring_serves(wide[:, :1, :, :64], wide[:, 1:, :, :64], 1, append=True)
    odd = torch.empty(4, 2, 64, 68, dtype=torch.float16, device=hopper)[..., :64]
    assert not ring_serves(odd, odd, 1, append=True), "slots do not begin at every 16 bytes"
    shifted = torch.empty(4 * 2 * 64 * 64 + 1, dtype=torch.float16, device=hopper)[1:]
    dense = wide[..., :64].contiguous()
    assert not ring_serves(dense, shifted.view(4, 2, 64, 64), 1, append=True)


@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize("ring", [False, True])
def test_a_replayed_graph_of_steps(gpu: torch.device, ring: bool, pdl: bool) -> None:
    """Layers in turn, step after step, against the same steps made eagerly and apart.

    Each layer's output is the next one's input, so that dependent launches would show a query
    read too early, and each step moves the positions on, so that they would show a stale cache.
    """
    if ring and torch.cuda.get_device_capability(gpu)[0] != 9:
        pytest.skip("needs a Hopper GPU")
    layers, steps, dtype = 6, 70, torch.float16
    heads, head_dim = (2, 2), 64 if ring else 32
    start = [S - 30, 3, None, 60, 2 * S - 5, 0]
    problem = fused_problem(start, heads=heads, head_dim=head_dim, block_size=64, dtype=dtype)
    rows, columns = len(start), 2 * S // 64 + 3
    table = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(0))
    shape = (layers, rows * columns, heads[1], 64, head_dim)
    keys = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(gpu, dtype)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(gpu, dtype)
    problem = replace(problem, block_tables=table.int().view(rows, columns)).on(gpu)
    problem.positions[2] = 0
    weight = torch.randn(2 * head_dim, 6 * head_dim, device=gpu, dtype=dtype) / 8

    def step(state: list[torch.Tensor], early: bool) -> torch.Tensor:
        k, v, at, x = state
        out = torch.empty(rows, heads[0] * head_dim, dtype=dtype, device=gpu)
        for layer in range(layers):
            qkv = x @ weight
            fused_attention(
                qkv, k[layer], v[layer], problem.block_tables, at, problem.is_running, out,
                scale=problem.scale, pdl=early,
            )  # fmt: skip
            x = out + 0.5 * x
        return x / x.norm(dim=1, keepdim=True).clamp(min=1e-3) * 8

    x0 = torch.randn(rows, heads[0] * head_dim, device=gpu, dtype=dtype)
    eager = [tensor.clone() for tensor in (keys, values, problem.positions, x0)]
    static = [tensor.clone() for tensor in (keys, values, problem.positions, x0)]
    for _ in range(steps):
        eager[3] = step(eager, early=False)
        eager[2] += problem.is_running
        torch.cuda.synchronize()
    warm = [tensor.clone() for tensor in static]
    step(warm, early=pdl)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static[3].copy_(step(static, early=pdl))
        static[2] += problem.is_running
    for _ in range(steps):
        graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(eager, static, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
    assert torch.isfinite(static[3][problem.is_running]).all()


def test_200_repeats_are_bit_equal(hopper: torch.device) -> None:
    problem = fused_problem(RAGGED, heads=(2, 2), head_dim=64, block_size=64, dtype=torch.float16)
    moved = problem.on(hopper)
    outs = [
        torch.empty(len(RAGGED), problem.num_columns, dtype=torch.float16, device=hopper)
        for _ in range(2)
    ]
    fused_attention(*moved.arguments, outs[0], scale=problem.scale)
    differing = torch.zeros((), dtype=torch.int64, device=hopper)
    for _ in range(200):
        fused_attention(*moved.arguments, outs[1], scale=problem.scale)
        differing += (outs[0] != outs[1]).sum()
    assert int(differing) == 0
