"""Fused linear maps against float64 and unfolded weights, with poison wherever none may read."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from fused_cases import (
    NAN,
    half_dtypes,
    outlier_rows,
    poisoned_rows,
    random_tensor,
    same_bits,
    within_torch_error,
)
from interpreted_launches import shuffled_programs, within_bounds

from kernels.linear.epilogue import GELU, PLAIN, RESIDUAL, SILU, Epilogue, activate
from kernels.linear.folded import (
    RMS_NORM,
    FoldedLinear,
    SplitWorkspace,
    fold_linear,
    fold_rms_norm,
    pack_gate,
    packed_halves,
)
from kernels.linear.projections import fused_linear
from kernels.linear.reference import reference_linear, reference_statistics
from kernels.tiles.tile import LinearTile

EPSILON = 1e-5
GATED, GELU_GATED = Epilogue(SILU, is_gated=True), Epilogue(GELU, is_gated=True)
SHAPES = [
    pytest.param(1, LinearTile(16, 16, 16), id="1-row"),
    pytest.param(1, LinearTile(1, 8, 16), id="vector"),
    pytest.param(3, LinearTile(1, 4, 16, warps=2), id="3-vectors"),
    pytest.param(5, LinearTile(16, 32, 32), id="5-rows"),
    pytest.param(16, LinearTile(16, 16, 64, stages=1), id="16-rows-whole-tile"),
    pytest.param(37, LinearTile(16, 32, 32), id="37-rows"),
    pytest.param(33, LinearTile(32, 16, 16, split_k=2), id="33-rows-split-2"),
    pytest.param(7, LinearTile(16, 32, 16, split_k=4), id="7-rows-split-4"),
]
LIBRARY = pytest.param(5, LinearTile(64, 32, 64, library=True), id="library")
IN_FEATURES, OUT_FEATURES = 64, 96
ALL_DTYPES = [torch.float32, *half_dtypes()]


@dataclass(slots=True)
class Problem:
    """A linear map with a LayerNorm before it; x lies in a buffer of NaN."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    gain: torch.Tensor
    shift: torch.Tensor

    @property
    def folded(self) -> FoldedLinear:
        return fold_linear(self.weight, self.bias, self.gain, self.shift, EPSILON)

    def statistics(self, tiles: int) -> torch.Tensor:
        """As the producer of x would have left them."""
        return reference_statistics(self.x, tiles).float()


def _problem(
    rows: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    out_features: int = OUT_FEATURES,
    in_features: int = IN_FEATURES,
) -> Problem:
    def make(*shape: int, seed: int, scale: float = 1.0, center: float = 0.0) -> torch.Tensor:
        return (random_tensor(*shape, seed=seed) * scale + center).to(device=device, dtype=dtype)

    x = poisoned_rows(make(rows, in_features, seed=1))
    return Problem(
        x=x,
        weight=make(out_features, in_features, seed=2, scale=in_features**-0.5),
        bias=make(out_features, seed=3, scale=0.1),
        gain=make(in_features, seed=4, scale=0.3, center=1.0),
        shift=make(in_features, seed=5, scale=0.1),
    )


def _run(
    x: torch.Tensor,
    linear: FoldedLinear,
    tile: LinearTile,
    start: torch.Tensor | None = None,
    **how,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y and its statistics, each checked to be all that was written."""
    rows, out_features = x.shape[0], linear.out_features
    made = out_features // 2 if how.get("epilogue", PLAIN).is_gated else out_features
    y = poisoned_rows(torch.full((rows, made), NAN, dtype=x.dtype, device=x.device))
    if start is not None:
        y.copy_(start)
    stats = poisoned_rows(torch.full((rows, 2, out_features // tile.block_n), NAN, device=x.device))
    workspace = SplitWorkspace.for_tiles(rows, [(out_features, tile)], x.device)
    workspace.partials.fill_(NAN)
    fused_linear(x, linear, y, tile, workspace, y_stats=stats, **how)
    assert not workspace.arrivals.any()
    for written in (y, stats):
        around = written._base
        assert around is not None
        assert around[rows + 1 :].isnan().all()
        assert around[0].isnan().all()
    return y, stats


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "tile"), [*SHAPES, LIBRARY])
def test_bias(triton_device: torch.device, dtype: torch.dtype, rows: int, tile: LinearTile) -> None:
    problem = _problem(rows, dtype, triton_device)
    y, stats = _run(problem.x, fold_linear(problem.weight, problem.bias), tile)
    assert stats.isnan().all()
    within_torch_error(
        y,
        reference_linear(problem.x, problem.weight, problem.bias),
        F.linear(problem.x, problem.weight, problem.bias),
    )


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "tile"), SHAPES)
@pytest.mark.parametrize("x_tiles", [1, 3, 4, None], ids=lambda tiles: f"x-tiles-{tiles}")
def test_layer_norm_and_gelu(
    triton_device: torch.device,
    dtype: torch.dtype,
    rows: int,
    tile: LinearTile,
    x_tiles: int | None,
) -> None:
    # 48 is no power of two: ranges over a whole row are padded.
    in_features = 48 if x_tiles in (3, None) else IN_FEATURES
    tile = tile.fitted(OUT_FEATURES, in_features)
    problem = _problem(rows, dtype, triton_device, in_features=in_features)
    stats = None if x_tiles is None else poisoned_rows(problem.statistics(x_tiles))
    y, _ = _run(problem.x, problem.folded, tile, epilogue=Epilogue(GELU), x_stats=stats)
    normal = F.layer_norm(problem.x, (in_features,), problem.gain, problem.shift, EPSILON)
    within_torch_error(
        y,
        reference_linear(
            problem.x,
            problem.weight,
            problem.bias,
            gain=problem.gain,
            shift=problem.shift,
            epsilon=EPSILON,
            activation=GELU,
        ),
        F.gelu(F.linear(normal, problem.weight, problem.bias), approximate="tanh"),
    )


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "tile", "x_tiles", "in_features", "epilogue"),
    [
        (3, LinearTile(1, 4, 16, warps=2), None, 48, PLAIN),
        (3, LinearTile(1, 4, 16, warps=2), None, 48, GATED),
        (2, LinearTile(1, 8, 512), None, 768, PLAIN),
        (2, LinearTile(1, 8, 256), None, 768, GATED),
        (5, LinearTile(16, 32, 16), None, 48, PLAIN),
        (5, LinearTile(16, 32, 16), None, 48, GATED),
        (37, LinearTile(16, 16, 16, split_k=3), 3, 48, GATED),
        (5, LinearTile(64, 32, 64, library=True), None, 48, PLAIN),
        (5, LinearTile(64, 32, 64, library=True), None, 48, GATED),
        (3, LinearTile(1, 4, 16, warps=2), None, 48, GELU_GATED),
        (5, LinearTile(16, 32, 16), None, 48, GELU_GATED),
        (5, LinearTile(64, 32, 64, library=True), None, 48, GELU_GATED),
        (3, LinearTile(1, 4, 16, warps=2), None, 48, Epilogue(SILU)),
        (5, LinearTile(16, 32, 16), None, 48, Epilogue(SILU)),
        (5, LinearTile(64, 32, 64, library=True), None, 48, Epilogue(SILU)),
    ],
    ids=[
        "vectors",
        "vectors-gate",
        "chunks",
        "chunks-gate",
        "tiles",
        "tiles-gate",
        "statistics-gate",
        "library",
        "library-gate",
        "vectors-gelu-gate",
        "tiles-gelu-gate",
        "library-gelu-gate",
        "vectors-silu",
        "tiles-silu",
        "library-silu",
    ],
)
@pytest.mark.parametrize("kind", ["tiny", "far mean"])
def test_rms_norm_and_gate(
    triton_device: torch.device,
    dtype: torch.dtype,
    rows: int,
    tile: LinearTile,
    x_tiles: int | None,
    in_features: int,
    epilogue: Epilogue,
    kind: str,
) -> None:
    """A mean that is not taken out counts in the mean square, within tiles and between them."""
    problem = _problem(rows, dtype, triton_device, in_features=in_features)
    problem.x = poisoned_rows(outlier_rows(rows, in_features, kind).to(problem.x))
    is_gated = epilogue.is_gated
    pack = pack_gate if is_gated else torch.clone
    linear = fold_rms_norm(pack(problem.weight), pack(problem.bias), problem.gain, EPSILON)
    stats = None if x_tiles is None else poisoned_rows(problem.statistics(x_tiles))
    y, _ = _run(problem.x, linear, tile, epilogue=epilogue, x_stats=stats)
    normal = F.rms_norm(problem.x, (in_features,), problem.gain, EPSILON)
    exact = reference_linear(
        problem.x,
        problem.weight,
        problem.bias,
        gain=problem.gain,
        epsilon=EPSILON,
        activation=epilogue.activation,
        is_gated=is_gated,
    )
    theirs = F.linear(normal, problem.weight, problem.bias)
    if is_gated:
        gate, gated = theirs.chunk(2, dim=1)
        theirs = activate(gate, epilogue.activation) * gated
    else:
        theirs = activate(theirs, epilogue.activation)
    within_torch_error(y, exact, theirs)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["tiny", "huge"])
def test_a_gate_of_the_librarys_without_a_bias(
    triton_device: torch.device, dtype: torch.dtype, kind: str
) -> None:
    """Where the norm may follow the product; of huge rows that would overflow in float16."""
    rows, in_features = 5, 48
    problem = _problem(rows, dtype, triton_device, in_features=in_features)
    x = poisoned_rows(outlier_rows(rows, in_features, kind).to(problem.x))
    linear = fold_rms_norm(pack_gate(problem.weight), None, problem.gain, EPSILON)
    y, _ = _run(x, linear, LinearTile(64, 32, 64, library=True), epilogue=GATED)
    normal = F.rms_norm(x, (in_features,), problem.gain, EPSILON)
    gate, gated = F.linear(normal, problem.weight).chunk(2, dim=1)
    exact = reference_linear(
        x, problem.weight, None, gain=problem.gain, epsilon=EPSILON, activation=SILU, is_gated=True
    )
    within_torch_error(y, exact, F.silu(gate) * gated)


def test_packing_a_gate_takes_turns_and_is_undone() -> None:
    both = random_tensor(3, 32, seed=1)
    packed = pack_gate(both.t()).t()
    assert torch.equal(packed[:, :16], torch.cat((both[:, :8], both[:, 16:24]), 1))
    halves = packed_halves(packed)
    for half, expected in zip(halves, both.chunk(2, dim=1), strict=True):
        assert torch.equal(half.flatten(1), expected)


def test_a_weight_that_has_its_gain_in_is_shared() -> None:
    weight = random_tensor(8, 4, seed=1)
    linear = fold_rms_norm(weight, None, None, EPSILON)
    assert linear.weight.data_ptr() == weight.data_ptr()
    assert linear.norm == RMS_NORM


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "tile"), [*SHAPES, LIBRARY])
def test_residual_and_its_statistics(
    triton_device: torch.device, dtype: torch.dtype, rows: int, tile: LinearTile
) -> None:
    problem = _problem(rows, dtype, triton_device)
    start = random_tensor(rows, OUT_FEATURES, seed=9).to(device=triton_device, dtype=dtype) * 3
    linear = fold_linear(problem.weight, problem.bias)
    y, stats = _run(problem.x, linear, tile, start, epilogue=RESIDUAL)
    within_torch_error(
        y,
        reference_linear(problem.x, problem.weight, problem.bias, residual=start),
        start + F.linear(problem.x, problem.weight, problem.bias),
    )
    if tile.block_m == 1:
        assert stats.isnan().all()
        return
    expected = reference_statistics(y, OUT_FEATURES // tile.block_n)
    torch.testing.assert_close(stats.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", half_dtypes(), ids=str)
@pytest.mark.parametrize("kind", ["outliers", "far mean", "tiny", "constant"])
def test_folding_keeps_what_trained_models_stress(
    triton_device: torch.device, dtype: torch.dtype, kind: str
) -> None:
    """Channels hundreds of times the others, and rows whose mean dwarfs their deviation."""
    problem = _problem(9, dtype, triton_device)
    problem.x = poisoned_rows(outlier_rows(9, IN_FEATURES, kind).to(problem.x))
    tile = LinearTile(16, 32, 32)
    y, _ = _run(problem.x, problem.folded, tile, x_stats=problem.statistics(4))
    again, _ = _run(problem.x, problem.folded, tile)
    alone, _ = _run(problem.x, problem.folded, LinearTile(1, 8, 16))
    exact = reference_linear(
        problem.x,
        problem.weight,
        problem.bias,
        gain=problem.gain,
        shift=problem.shift,
        epsilon=EPSILON,
    )
    normal = F.layer_norm(problem.x, (IN_FEATURES,), problem.gain, problem.shift, EPSILON)
    theirs = F.linear(normal, problem.weight, problem.bias)
    for result in (y, again, alone):
        if kind == "far mean":
            # The raw product is larger than what is left of it by mean / deviation, here 64, and
            # its weights are rounded after the gain: see the bound in the module's docstring.
            bound = 64 * 2 * torch.finfo(dtype).eps
            assert float((result.double() - exact).abs().max()) <= bound
        else:
            within_torch_error(result, exact, theirs)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_extreme_values(triton_device: torch.device, sign: float) -> None:
    """GELU of values far out on both sides neither overflows nor makes NaN."""
    x = torch.full((3, 16), 100.0 * sign, device=triton_device)
    linear = FoldedLinear(
        torch.full((16, 16), 10.0, device=triton_device), torch.zeros(16, device=triton_device)
    )
    y, _ = _run(x, linear, LinearTile(16, 16, 16), epilogue=Epilogue(GELU))
    assert torch.equal(y, torch.full_like(y, max(0.0, 16_000.0 * sign)))


@pytest.mark.parametrize("epilogue", [PLAIN, Epilogue(GELU), RESIDUAL])
def test_a_row_of_nan_stays_alone(triton_device: torch.device, epilogue: Epilogue) -> None:
    problem = _problem(5, torch.float32, triton_device)
    problem.x[2] = NAN
    start = torch.zeros(5, OUT_FEATURES, device=triton_device)
    y, _ = _run(
        problem.x,
        problem.folded,
        LinearTile(16, 32, 32, split_k=2),
        start,
        epilogue=epilogue,
        x_stats=problem.statistics(2),
    )
    assert y.isnan().all(dim=1).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("split_k", [1, 2])
def test_a_row_does_not_depend_on_its_neighbours_and_repeats_bit_for_bit(
    triton_device: torch.device, dtype: torch.dtype, split_k: int
) -> None:
    problem = _problem(20, dtype, triton_device)
    tile = LinearTile(16, 32, 32, split_k=split_k)
    stats = problem.statistics(4)
    first, _ = _run(problem.x, problem.folded, tile, x_stats=stats)
    again, _ = _run(problem.x, problem.folded, tile, x_stats=stats)
    assert same_bits(first, again)
    for row in (0, 7, 19):
        alone, _ = _run(
            problem.x[row : row + 1].clone(), problem.folded, tile, x_stats=stats[row : row + 1]
        )
        assert same_bits(alone[0], first[row])


def test_any_order_of_arrival_gives_the_same_bits(
    triton_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter runs programs in order; here parts of several tiles arrive mixed."""
    if triton_device.type == "cuda":
        pytest.skip("the GPU orders programs itself: test_fused_on_gpu.py repeats launches instead")
    from triton.runtime.interpreter import InterpreterBuilder

    problem = _problem(40, torch.float32, triton_device)
    linear = fold_linear(problem.weight, problem.bias)
    tile = LinearTile(16, 32, 16, split_k=4)
    in_order, _ = _run(problem.x, linear, tile)
    for seed in (1, 2):
        with monkeypatch.context() as patched:
            patched.setattr(InterpreterBuilder, "set_grid_idx", shuffled_programs(seed))
            shuffled, _ = _run(problem.x, linear, tile)
        assert same_bits(shuffled, in_order)


@pytest.mark.parametrize(("rows", "tile"), SHAPES)
@pytest.mark.parametrize("epilogue", [PLAIN, RESIDUAL])
def test_nothing_is_read_or_written_beside_the_tensors(
    triton_device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    tile: LinearTile,
    epilogue: Epilogue,
) -> None:
    if triton_device.type == "cuda":
        pytest.skip("`nox -s memcheck` watches accesses on the GPU")
    problem = _problem(rows, torch.float32, triton_device, in_features=48)
    tile = tile.fitted(OUT_FEATURES, 48)
    start = torch.zeros(rows, OUT_FEATURES)
    norms = [(fold_linear(problem.weight, problem.bias), None)]
    if epilogue == PLAIN:
        norms += [(problem.folded, None), (problem.folded, problem.statistics(3))]
    with within_bounds(monkeypatch):
        for linear, stats in norms:
            _run(problem.x, linear, tile, start, epilogue=epilogue, x_stats=stats)


def test_bounds_are_watched(triton_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would see an access that it should see."""
    if triton_device.type == "cuda":
        pytest.skip("`nox -s memcheck` watches accesses on the GPU")
    problem = _problem(16, torch.float32, triton_device)
    linear = fold_linear(problem.weight, problem.bias)
    wrong = FoldedLinear(linear.weight, linear.bias[:-1])
    from triton.runtime.errors import InterpreterError

    with within_bounds(monkeypatch), pytest.raises(InterpreterError, match="BeyondBounds"):
        _run(problem.x, wrong, LinearTile(16, 16, 16))
