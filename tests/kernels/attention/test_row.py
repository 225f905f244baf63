"""A single row's attention with the map before it: against float64 and the two kernels it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from fused_attention_cases import FusedProblem, fused_problem
from fused_cases import random_tensor
from paged_cases import NAN, same_bits, side_by_side

from kernels.attention.fused import fused_attention
from kernels.attention.reference import reference_decode, reference_rotation
from kernels.attention.rotation import Rotation
from kernels.attention.row import row_attention, row_attention_serves
from kernels.attention.row_plan import row_plan
from kernels.errors import KernelArgumentError
from kernels.linear.epilogue import RESIDUAL
from kernels.linear.folded import FoldedLinear, SplitWorkspace, fold_linear, fold_rms_norm
from kernels.linear.projections import fused_linear
from kernels.linear.reference import reference_linear
from kernels.tiles.tile import LinearTile

HALVES = [torch.float16, torch.bfloat16]
ROW_TILE = LinearTile(block_m=1, block_n=2, block_k=16, warps=1)
EPSILON = 1e-5
# Around tiles, whole rounds of eight of them, and a third round.
CONTEXTS = [0, 1, 15, 16, 63, 64, 65, 127, 448, 511, 512, 513, 1000, 1024, 1025, 1500]


@dataclass(slots=True)
class RowProblem:
    """A row [1, K], the map to its queries, key and value, and the cache that it appends to.

    `exact_qkv` [1, (H_q + 2 H_kv) D] is what the map makes of it in float64, before it is turned.
    """

    x: torch.Tensor
    linear: FoldedLinear
    cache: FusedProblem
    exact_qkv: torch.Tensor
    rotation: Rotation | None = None

    @property
    def arguments(self) -> tuple[torch.Tensor | FoldedLinear, ...]:
        return (self.x, self.linear, *self.cache.arguments[1:])


def row_problem(
    cached: int | None,
    *,
    heads: int = 2,
    group: int = 1,
    head_dim: int = 64,
    features: int = 256,
    block_size: int = 64,
    dtype: torch.dtype = torch.float16,
    is_turned: bool = False,
    has_head_norm: bool = True,
    seed: int = 0,
) -> RowProblem:
    """A row with so many tokens in the cache; None: one that does not run.

    Behind a LayerNorm; where `is_turned` behind an RMS norm, its heads turned and perhaps normed.
    """
    query_heads = group * heads
    cache = fused_problem(
        [cached],
        heads=(query_heads, heads),
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
        seed=seed,
    )
    made = (query_heads + 2 * heads) * head_dim
    weight = (random_tensor(made, features, seed=seed + 1) * features**-0.5).to(dtype)
    bias = random_tensor(made, seed=seed + 2).to(dtype)
    gain = (1 + random_tensor(features, seed=seed + 3) / 4).to(dtype)
    # Off the middle, so that a mean that is not taken out is seen.
    x = (2 * random_tensor(1, features, seed=seed + 5) + 1.5).to(dtype)
    if not is_turned:
        shift = (random_tensor(features, seed=seed + 4) / 4).to(dtype)
        exact_qkv = reference_linear(x, weight, bias, gain=gain, shift=shift, epsilon=EPSILON)
        linear = fold_linear(weight, bias, gain, shift, EPSILON)
        return RowProblem(x, linear, cache, exact_qkv)
    exact_qkv = reference_linear(x, weight, bias, gain=gain, epsilon=EPSILON)
    angles = random_tensor((cached or 0) + 1, head_dim // 2, seed=seed + 6)
    table = torch.cat((angles.cos(), angles.sin()), 1)
    norm = (1 + random_tensor(query_heads + heads, head_dim, seed=seed + 7) / 2).to(dtype)
    rotation = Rotation(table, norm if has_head_norm else None, EPSILON)
    linear = fold_rms_norm(weight, bias, gain, EPSILON)
    return RowProblem(x, linear, cache, exact_qkv, rotation)


def wide_problem(cached: int | None, **settings: Any) -> RowProblem:
    """Two heads of 128, each with two query heads, normed and turned."""
    return row_problem(cached, **{"group": 2, "head_dim": 128, "is_turned": True, **settings})


def moved(problem: RowProblem, device: torch.device) -> RowProblem:
    linear, rotation = problem.linear, problem.rotation
    sums = linear.column_sums
    there = replace(
        linear,
        weight=linear.weight.to(device),
        bias=linear.bias.to(device),
        column_sums=None if sums is None else sums.to(device),
    )
    if rotation is not None:
        norm = None if rotation.norm is None else rotation.norm.to(device)
        rotation = replace(rotation, table=rotation.table.to(device), norm=norm)
    return replace(
        problem,
        x=problem.x.to(device),
        linear=there,
        cache=problem.cache.on(device),
        rotation=rotation,
    )


def two_kernels(problem: RowProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """What the row attends to and appends by the map, then attention, on a copy of the cache."""
    x, linear = problem.x, problem.linear
    qkv = torch.empty(1, linear.out_features, dtype=x.dtype, device=x.device)
    workspace = SplitWorkspace.for_tiles(1, [(linear.out_features, ROW_TILE)], x.device)
    fused_linear(x, linear, qkv, ROW_TILE, workspace)
    cache = problem.cache.on(x.device)
    out = torch.full((1, cache.num_columns), NAN, dtype=x.dtype, device=x.device)
    fused_attention(qkv, *cache.arguments[1:], out, scale=cache.scale, rotation=problem.rotation)
    return out, new_slot(cache)


def exact(problem: RowProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64 from the row on: what it attends to [1, H_q D], and appends [2, H_kv, D]."""
    cache, rotation = problem.cache, problem.rotation
    _, kv_heads, _, head_dim = cache.k_cache.shape
    turned, value = problem.exact_qkv.view(-1, head_dim).tensor_split([-kv_heads])
    if rotation is not None:
        [turned] = reference_rotation(
            turned[None], cache.positions, rotation.table, rotation.norm, rotation.epsilon
        )
    query, key = turned.tensor_split([-kv_heads])
    keys, values = cache.k_cache.double(), cache.v_cache.double()
    block_size, at = keys.shape[2], int(cache.positions[0])
    block = int(cache.block_tables[0, at // block_size])
    keys[block, :, at % block_size] = key
    values[block, :, at % block_size] = value
    lengths = cache.positions + 1
    attended = reference_decode(query[None], keys, values, cache.block_tables, lengths)
    return attended.flatten(1), torch.stack([key, value])


def new_slot(cache: FusedProblem) -> torch.Tensor:
    """The new token's key and value as they lie in the cache, [2, H, D]."""
    block_size, at = cache.k_cache.shape[2], int(cache.positions[0])
    block = int(cache.block_tables[0, at // block_size])
    return torch.stack([one[block, :, at % block_size] for one in (cache.k_cache, cache.v_cache)])


def attended(problem: RowProblem, *, pdl: bool = False) -> torch.Tensor:
    """The kernel's result, in the middle of memory that must stay as it was."""
    x = problem.x
    around = torch.full((3, problem.cache.num_columns), NAN, dtype=x.dtype, device=x.device)
    result = row_attention(
        *problem.arguments,  # type: ignore[arg-type]
        around[1:2],
        scale=problem.cache.scale,
        pdl=pdl,
        rotation=problem.rotation,
    )
    assert around[::2].isnan().all()
    return result


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("cached", CONTEXTS)
@pytest.mark.parametrize("beside", [False, True], ids=["apart", "side by side"])
def test_against_float64_and_the_two_kernels(
    hopper: torch.device, beside: bool, cached: int, dtype: torch.dtype
) -> None:
    """Where keys and values have caches of their own, and where each value is behind its key."""
    assert_right(row_problem(cached, dtype=dtype, seed=cached), hopper, beside=beside)


@pytest.mark.parametrize(
    ("heads", "features", "block_size"),
    [(1, 512, 64), (12, 768, 128), (16, 1024, 64), (20, 1280, 64)],
)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rows_and_pages_of_other_sizes(
    hopper: torch.device, dtype: torch.dtype, heads: int, features: int, block_size: int
) -> None:
    problem = row_problem(
        700, heads=heads, features=features, block_size=block_size, dtype=dtype, seed=heads
    )
    assert_right(problem, hopper)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("cached", CONTEXTS)
@pytest.mark.parametrize("beside", [False, True], ids=["apart", "side by side"])
def test_grouped_heads_that_are_normed_and_turned(
    hopper: torch.device, beside: bool, cached: int, dtype: torch.dtype
) -> None:
    assert_right(wide_problem(cached, dtype=dtype, seed=cached), hopper, beside=beside)


@pytest.mark.parametrize(
    ("heads", "settings"),
    [
        (8, {"features": 1024}),
        (1, {"features": 512, "has_head_norm": False}),
        (3, {"features": 768, "block_size": 128}),
        (2, {"is_turned": False}),
        (12, {"features": 768, "group": 1, "head_dim": 64}),
    ],
    ids=["qwen3", "no head norm", "pages", "layer norm", "narrow"],
)
def test_other_heads(hopper: torch.device, heads: int, settings: dict[str, Any]) -> None:
    """As many dimensions and query heads as there are plans for, each with and without a turn."""
    problem = wide_problem(600, heads=heads, dtype=torch.bfloat16, seed=heads, **settings)
    assert_right(problem, hopper)


def assert_right(problem: RowProblem, device: torch.device, *, beside: bool = False) -> None:
    """At most twice the two kernels' own error, appended tokens too; the cache else as it was."""
    there = moved(problem, device)
    if beside:
        there.cache = there.cache.side_by_side()
    before = there.cache.on(device)
    plain, result = two_kernels(there), attended(there)
    written = new_slot(there.cache)
    unit = torch.finfo(result.dtype).eps
    for got, other, reference in zip((result, written), plain, exact(problem), strict=True):
        own = (other.cpu().double() - reference).abs()
        error = (got.cpu().double() - reference).abs()
        assert float(error.max()) <= 2 * float(own.max()) + unit
        assert float(error.norm()) <= 2 * float(own.norm()) + unit * float(reference.norm())
    assert new_slot(before).isnan().all()
    changed = sum(
        int((now.contiguous().view(torch.int16) != was.view(torch.int16)).sum())
        for now, was in (
            (there.cache.k_cache, before.k_cache),
            (there.cache.v_cache, before.v_cache),
        )
    )
    assert changed == written.numel()


@pytest.mark.parametrize("make", [row_problem, wide_problem])
def test_a_row_that_does_not_run_gets_zeros_and_appends_nothing(
    hopper: torch.device, make: Callable[..., RowProblem]
) -> None:
    problem = moved(make(None), hopper)
    before = problem.cache.on(hopper)
    problem.x.fill_(NAN)
    assert not attended(problem).any()
    assert same_bits(problem.cache.k_cache, before.k_cache)
    assert same_bits(problem.cache.v_cache, before.v_cache)


def test_a_position_beyond_the_table_is_a_row_that_does_not_run(hopper: torch.device) -> None:
    problem = moved(row_problem(100), hopper)
    problem.cache.positions.fill_(128)
    before = problem.cache.on(hopper)
    assert not attended(problem).any()
    assert same_bits(problem.cache.k_cache, before.k_cache)


@pytest.mark.parametrize("sign", [-1, 1])
def test_scores_beyond_what_an_exponential_holds(hopper: torch.device, sign: int) -> None:
    """Scores of thousands, where one token outweighs all others or none does."""
    problem = row_problem(600)
    problem.cache.k_cache *= 300 * sign
    reference, _ = exact(problem)
    there = moved(problem, hopper)
    plain, _ = two_kernels(there)
    result = attended(there)
    assert torch.isfinite(result).all()
    own = (plain.cpu().double() - reference).abs().max()
    error = (result.cpu().double() - reference).abs().max()
    assert float(error) <= 2 * float(own) + torch.finfo(torch.float16).eps


@pytest.mark.parametrize("make", [row_problem, wide_problem])
def test_200_repeats_are_bit_equal(hopper: torch.device, make: Callable[..., RowProblem]) -> None:
    problem = moved(make(700, heads=8, features=768), hopper)
    first = attended(problem).clone()
    differing = torch.zeros((), dtype=torch.int64, device=hopper)
    for _ in range(200):
        differing += (attended(problem) != first).sum()
    assert int(differing) == 0


@pytest.mark.parametrize("start", [30, 480])
def test_a_replayed_graph_of_dependent_steps(hopper: torch.device, start: int) -> None:
    """Layers in turn, step after step, against the same launches each after the one before.

    Each layer's projection adds to the row that the next one begins with, so that a row read too
    early would show, and each step moves on, so that a stale cache would.
    """
    layers, steps, dtype = 4, 70, torch.float16
    problems = [
        moved(row_problem(start + steps, heads=4, seed=10 * layer), hopper)
        for layer in range(layers)
    ]
    outward = [
        fold_linear((random_tensor(256, 256, seed=layer) / 16).to(hopper, dtype), None)
        for layer in range(layers)
    ]
    x0 = problems[0].x.clone()

    def step(caches: list[FusedProblem], x: torch.Tensor, at: torch.Tensor, pdl: bool) -> None:
        x.div_(x.norm() / 8)
        out = torch.empty_like(x)
        workspace = SplitWorkspace.for_tiles(1, [(256, ROW_TILE)], hopper)
        for problem, cache, linear in zip(problems, caches, outward, strict=True):
            row_attention(
                x, problem.linear, cache.k_cache, cache.v_cache, cache.block_tables, at,
                cache.is_running, out, scale=cache.scale, pdl=pdl,
            )  # fmt: skip
            if not pdl:
                torch.cuda.synchronize()
            fused_linear(out, linear, x, ROW_TILE, workspace, epilogue=RESIDUAL)
        at += 1

    def fresh() -> tuple[list[FusedProblem], torch.Tensor, torch.Tensor]:
        caches = [problem.cache.on(hopper) for problem in problems]
        return caches, x0.clone(), torch.full_like(caches[0].positions, start)

    eager, replayed, warm = fresh(), fresh(), fresh()
    for _ in range(steps):
        step(*eager, pdl=False)
    step(*warm, pdl=True)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step(*replayed, pdl=True)
    for _ in range(steps):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.isfinite(replayed[1]).all()
    assert same_bits(replayed[1], eager[1])
    for one, other in zip(replayed[0], eager[0], strict=True):
        assert same_bits(one.k_cache, other.k_cache)
        assert same_bits(one.v_cache, other.v_cache)


def test_the_rule_that_chooses_it(hopper: torch.device) -> None:
    problem = moved(row_problem(10), hopper)
    linear, keys, values = problem.linear, problem.cache.k_cache, problem.cache.v_cache
    assert row_attention_serves(1, linear, keys, values)
    assert not row_attention_serves(2, linear, keys, values)
    assert not row_attention_serves(1, replace(linear, column_sums=None), keys, values), "no norm"
    assert row_attention_serves(
        1, replace(linear, column_sums=None, has_rms_norm=True), keys, values
    )
    assert not row_attention_serves(1, linear, keys.float(), values.float())
    assert not row_attention_serves(1, linear, keys[:, :1].contiguous(), values[:, :1].contiguous())
    assert not row_attention_serves(1, linear, keys[:, :, :32], values[:, :, :32])
    assert row_attention_serves(1, linear, *side_by_side(keys, values))
    beside, _ = side_by_side(keys, values)
    assert not row_attention_serves(1, linear, beside, values), "one stride serves both"
    shape = (*keys.shape[:2], 32, 64)
    small = torch.empty(shape, dtype=keys.dtype, device=hopper)
    assert not row_attention_serves(1, linear, small, small), "a tile is more than a page"
    for features in (192, 1536, 1600):
        other = moved(row_problem(10, features=features), hopper).linear
        assert not row_attention_serves(1, other, keys, values)


def test_what_it_does_not_serve_is_refused() -> None:
    """On a CPU it serves nothing; what does not fit at all is named first."""
    problem = row_problem(10)
    out = torch.empty(1, 128, dtype=torch.float16)
    with pytest.raises(KernelArgumentError, match="such as row_attention_serves takes"):
        row_attention(*problem.arguments, out, scale=0.125)  # type: ignore[arg-type]
    x = problem.x[:, :128]
    with pytest.raises(KernelArgumentError, match=r"x must be \[1, 256\] of torch.float16 on cpu"):
        row_attention(x, *problem.arguments[1:], out, scale=0.125)  # type: ignore[arg-type]
    with pytest.raises(KernelArgumentError, match="scale must be a finite number"):
        row_attention(*problem.arguments, out, scale=0.0)  # type: ignore[arg-type]
    with pytest.raises(KernelArgumentError, match="out must have"):
        row_attention(*problem.arguments, out[:, :100], scale=0.125)  # type: ignore[arg-type]
    rotation = Rotation(torch.zeros(11, 32))
    with pytest.raises(KernelArgumentError, match=r"rotation.table must be \[11, 64\]"):
        row_attention(*problem.arguments, out, scale=0.125, rotation=rotation)  # type: ignore[arg-type]


def test_the_heads_that_there_are_plans_for() -> None:
    """Every program has a dimension of each head for each warp, and weights that fit registers."""
    served = {
        (group, head_dim, features)
        for group in (1, 2, 3, 4, 8)
        for head_dim in (32, 64, 96, 128, 256)
        for features in (0, 128, 256, 768, 1000, 1024, 1280, 1536, 2048)
        if row_plan(group, head_dim, features, torch.bfloat16) is not None
    }
    assert served == {
        *((1, 64, features) for features in (256, 768, 1024, 1280)),
        *((2, 128, features) for features in (256, 768, 1024)),
    }
    for group, head_dim, features in served:
        for dtype in HALVES:
            plan = row_plan(group, head_dim, features, dtype)
            assert plan is not None
            share = head_dim // plan.cluster
            assert share >= plan.warps
            weights = (group + 2) * share * features // 2
            assert weights <= 128 * 32 * plan.warps
            assert plan.registers * 32 * plan.warps <= 1 << 16


def test_an_inbox_holds_the_words_that_are_sent_to_it() -> None:
    """Whole queries and key, the own value; of every part the own dimensions and two more."""
    kernel = pytest.importorskip("kernels.attention.hopper.row_attention")
    barriers = 2 * 16
    own_heads = (64 + 64 + 8) + 8 * 4 * (8 + 2)
    assert kernel.inbox_bytes(1, 64, 8, 4, False) == barriers + 4 * own_heads
    grouped = (2 * 128 + 128 + 16) + 8 * 2 * (16 + 2)
    assert kernel.inbox_bytes(2, 128, 8, 8, True) == barriers + 4 * grouped
