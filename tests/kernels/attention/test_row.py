"""A single row's attention with the map before it: against float64 and the two kernels it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from fused_attention_cases import FusedProblem, fused_problem
from fused_cases import random_tensor
from paged_cases import NAN, same_bits, side_by_side

from kernels.attention.fused import fused_attention
from kernels.attention.reference import reference_decode
from kernels.attention.row import row_attention, row_attention_serves
from kernels.errors import KernelArgumentError
from kernels.linear.folded import FoldedLinear, SplitWorkspace, fold_linear
from kernels.linear.projections import RESIDUAL, fused_linear
from kernels.linear.reference import reference_linear
from kernels.tiles.tile import LinearTile

HALVES = [torch.float16, torch.bfloat16]
ROW_TILE = LinearTile(block_m=1, block_n=2, block_k=16, warps=1)
EPSILON = 1e-5
# Around tiles, whole rounds of eight of them, and a third round.
CONTEXTS = [0, 1, 15, 16, 63, 64, 65, 127, 448, 511, 512, 513, 1000, 1024, 1025, 1500]


@pytest.fixture
def hopper(gpu: torch.device) -> torch.device:
    """A GPU that the kernel is for."""
    if torch.cuda.get_device_capability(gpu) != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    return gpu


@dataclass(slots=True)
class RowProblem:
    """A row [1, K], the map to its query, key and value, and the cache that it appends to.

    `exact_qkv` [1, 3 * H * D] is what the map makes of it in float64.
    """

    x: torch.Tensor
    linear: FoldedLinear
    cache: FusedProblem
    exact_qkv: torch.Tensor

    @property
    def arguments(self) -> tuple[torch.Tensor | FoldedLinear, ...]:
        return (self.x, self.linear, *self.cache.arguments[1:])


def row_problem(
    cached: int | None,
    *,
    heads: int = 2,
    features: int = 256,
    block_size: int = 64,
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> RowProblem:
    """A row with so many tokens in the cache; None: one that does not run."""
    cache = fused_problem(
        [cached], heads=(heads, heads), head_dim=64, block_size=block_size, dtype=dtype, seed=seed
    )
    made = 3 * heads * 64
    weight = (random_tensor(made, features, seed=seed + 1) * features**-0.5).to(dtype)
    bias = random_tensor(made, seed=seed + 2).to(dtype)
    gain = (1 + random_tensor(features, seed=seed + 3) / 4).to(dtype)
    shift = (random_tensor(features, seed=seed + 4) / 4).to(dtype)
    # Off the middle, so that a mean that is not taken out is seen.
    x = (2 * random_tensor(1, features, seed=seed + 5) + 1.5).to(dtype)
    exact_qkv = reference_linear(x, weight, bias, gain=gain, shift=shift, epsilon=EPSILON)
    linear = fold_linear(weight, bias, gain, shift, EPSILON)
    return RowProblem(x, linear, cache, exact_qkv)


def moved(problem: RowProblem, device: torch.device) -> RowProblem:
    linear = problem.linear
    assert linear.column_sums is not None
    there = replace(
        linear,
        weight=linear.weight.to(device),
        bias=linear.bias.to(device),
        column_sums=linear.column_sums.to(device),
    )
    return replace(problem, x=problem.x.to(device), linear=there, cache=problem.cache.on(device))


def two_kernels(problem: RowProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """What the row attends to and appends by the map, then attention, on a copy of the cache."""
    x, linear = problem.x, problem.linear
    qkv = torch.empty(1, linear.out_features, dtype=x.dtype, device=x.device)
    workspace = SplitWorkspace.for_tiles(1, [(linear.out_features, ROW_TILE)], x.device)
    fused_linear(x, linear, qkv, ROW_TILE, workspace)
    cache = problem.cache.on(x.device)
    out = torch.full((1, linear.out_features // 3), NAN, dtype=x.dtype, device=x.device)
    fused_attention(qkv, *cache.arguments[1:], out, scale=cache.scale)
    return out, new_slot(cache)


def exact(problem: RowProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64 from the row on: what it attends to [1, H * D], and appends [2, H, D]."""
    cache = problem.cache
    query, key, value = problem.exact_qkv.view(3, -1, 64)
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
    around = torch.full((3, problem.linear.out_features // 3), NAN, dtype=x.dtype, device=x.device)
    result = row_attention(*problem.arguments, around[1:2], scale=problem.cache.scale, pdl=pdl)  # type: ignore[arg-type]
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


def test_a_row_that_does_not_run_gets_zeros_and_appends_nothing(hopper: torch.device) -> None:
    problem = moved(row_problem(None), hopper)
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


def test_200_repeats_are_bit_equal(hopper: torch.device) -> None:
    problem = moved(row_problem(700, heads=12, features=768), hopper)
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
    assert not row_attention_serves(1, replace(linear, column_sums=None), keys, values)
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
