"""LM head by tiles, and the kernels that turn tokens into rows and rows into tokens."""

from __future__ import annotations

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

from kernels.linear.folded import FoldedLinear, fold_linear, fold_rms_norm
from kernels.linear.head import best_of_tiles
from kernels.linear.reference import (
    reference_best_of_tiles,
    reference_finish,
    reference_linear,
    reference_statistics,
)
from kernels.step.rows import begin_step, finish_step
from kernels.tiles.tile import LinearTile

ALL_DTYPES = [torch.float32, *half_dtypes()]
EPSILON = 1e-5
EMBED, VOCAB, HEAD_ROWS = 64, 90, 96
SENTINEL = -7
NUM_SLOTS = 4


def _best(
    x: torch.Tensor,
    head: FoldedLinear,
    tile: LinearTile,
    x_stats: torch.Tensor | None = None,
    vocab_size: int = VOCAB,
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (x.shape[0] + 1, head.out_features // tile.block_n)
    best = torch.full(shape, NAN, device=x.device)
    token = torch.full(shape, SENTINEL, dtype=torch.int32, device=x.device)
    best_of_tiles(x, head, vocab_size, tile, best[:-1], token[:-1], x_stats=x_stats)
    assert best[-1].isnan().all()
    assert (token[-1] == SENTINEL).all()
    return best[:-1], token[:-1]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("block_m", "rows", "x_tiles"),
    [
        *((16, rows, x_tiles) for rows in (1, 4, 16, 21, 33) for x_tiles in (None, 2, 4)),
        # Single rows make their own statistics.
        *((1, rows, None) for rows in (1, 2, 5)),
    ],
)
@pytest.mark.parametrize("kind", ["ordinary", "outliers"])
def test_every_tile_leaves_its_best(
    triton_device: torch.device,
    dtype: torch.dtype,
    block_m: int,
    rows: int,
    x_tiles: int | None,
    kind: str,
) -> None:
    def make(*shape: int, seed: int, scale: float, center: float = 0.0) -> torch.Tensor:
        made = random_tensor(*shape, seed=seed) * scale + center
        return made.to(device=triton_device, dtype=dtype)

    x = poisoned_rows(outlier_rows(rows, EMBED, kind).to(device=triton_device, dtype=dtype))
    weight = make(HEAD_ROWS, EMBED, seed=2, scale=0.3)
    gain = make(EMBED, seed=3, scale=0.3, center=1.0)
    shift = make(EMBED, seed=4, scale=0.1)
    head = fold_linear(weight, None, gain, shift, EPSILON)
    # What lies beyond the vocabulary would win if it were looked at.
    head.bias[VOCAB:] = 1e4
    stats = None if x_tiles is None else poisoned_rows(reference_statistics(x, x_tiles).float())
    best, token = _best(x, head, LinearTile(block_m, 32, 32), stats)

    exact = reference_linear(x, weight, None, gain=gain, shift=shift, epsilon=EPSILON)[:, :VOCAB]
    expected, _ = reference_best_of_tiles(exact, 3, 32)
    normal = F.layer_norm(x, (EMBED,), gain, shift, EPSILON)
    theirs, _ = reference_best_of_tiles(F.linear(normal, weight)[:, :VOCAB].double(), 3, 32)
    assert token.min() >= 0
    assert token.max() < VOCAB
    assert torch.equal(token // 32, torch.arange(3, device=x.device).expand(rows, 3).int())
    if dtype == torch.float32:
        within_torch_error(best, expected, theirs)
    else:
        own = float((theirs - expected).abs().max())
        unit = torch.finfo(dtype).eps * float(expected.abs().max())
        assert float((best - expected).abs().max()) <= 2 * own + unit
    # The token that is named has the logit that is given.
    named = exact.gather(1, token.long())
    assert float((named - best).abs().max()) <= float((best - expected).abs().max()) + 1e-2


@pytest.mark.parametrize(
    ("tile", "x_tiles", "embed"),
    [
        (LinearTile(1, 32, 32), None, EMBED),
        (LinearTile(1, 32, 256), None, 768),
        (LinearTile(16, 32, 32), None, EMBED),
        (LinearTile(16, 32, 32), 4, EMBED),
    ],
    ids=["vectors", "chunks", "tiles", "statistics"],
)
def test_a_head_behind_an_rms_norm(
    triton_device: torch.device, tile: LinearTile, x_tiles: int | None, embed: int
) -> None:
    x = poisoned_rows((random_tensor(5, embed, seed=1) + 2.0).to(triton_device))
    weight = (random_tensor(HEAD_ROWS, embed, seed=2) * 0.3).to(triton_device)
    gain = (random_tensor(embed, seed=3) * 0.3 + 1.0).to(triton_device)
    stats = None if x_tiles is None else poisoned_rows(reference_statistics(x, x_tiles).float())
    head = fold_rms_norm(weight, None, gain, EPSILON)
    best, token = _best(x, head, tile, stats)
    exact = reference_linear(x, weight, None, gain=gain, epsilon=EPSILON)[:, :VOCAB]
    expected, tokens = reference_best_of_tiles(exact, 3, 32)
    within_torch_error(best, expected, expected)
    assert torch.equal(token, tokens)


@pytest.mark.parametrize("block_m", [1, 16], ids=["vectors", "tiles"])
def test_the_lowest_of_equals_wins_and_nan_is_kept(
    triton_device: torch.device, block_m: int
) -> None:
    """Whole numbers through a weight of unit vectors, so that logits are exact and tie."""
    rows = torch.zeros(4, 16)
    rows[0, [3, 5, 9]] = 2.0
    rows[1, :] = -1.0
    rows[2, 4] = NAN
    rows[3, 15] = 8.0
    weight = torch.eye(16).repeat(3, 1)
    neutral = FoldedLinear(
        weight.to(triton_device),
        torch.zeros(48, device=triton_device),
        torch.zeros(48, device=triton_device),
        1.0,
    )
    # Sum 0 and squares 0 with epsilon 1: the LayerNorm does nothing.
    stats = torch.zeros(4, 2, 1, device=triton_device)
    tile = LinearTile(block_m, 16, 16)
    best, token = _best(rows.to(triton_device), neutral, tile, stats, 47)
    assert token[0].tolist() == [3, 19, 35]
    assert token[1].tolist() == [0, 16, 32]
    assert best[2].isnan().all()
    assert token[3].tolist()[:2] == [15, 31]
    # Token 47 is padding, so the last tile's best is one of its zeros.
    assert token[3].tolist()[2] == 32
    if block_m == 1:
        # It looks at the row itself: variance 3.75, and the column sums of 0 keep the mean in.
        assert best[3].tolist() == pytest.approx([8.0 / 4.75**0.5, 8.0 / 4.75**0.5, 0.0])
    else:
        assert best[3].tolist() == [8.0, 8.0, 0.0]


def _rows(device: torch.device, *values: list[int]) -> list[torch.Tensor]:
    return [torch.tensor(one, dtype=torch.int32, device=device) for one in values]


@pytest.mark.parametrize("tiles", [1, 3, 24, 393, 6288, 18992])
def test_finish_picks_and_advances(triton_device: torch.device, tiles: int) -> None:
    count = 6
    tile_max = random_tensor(count, tiles, seed=tiles).round().to(triton_device)
    tile_token = torch.arange(tiles, dtype=torch.int32, device=triton_device) * 128
    tile_token = (tile_token + torch.arange(count, device=triton_device)[:, None]).int()
    tile_max[1] = -torch.inf
    tile_max[2, tiles - 1] = NAN
    tile_max[3] = NAN
    tile_max[4, tiles // 2] = torch.inf
    last, position, remaining = _rows(
        triton_device, [5, 6, 7, 8, 9, 1], [0, 63, 64, 1023, 7, 2], [1, 0, 3, 2, 100, 1]
    )
    # Rows 0, 2 and 5 have a known token to feed next: the last, the first of three, and one whose
    # logits are not asked for. Row 1 has one too but does not run; row 4 has none left.
    known_len, tail_length = _rows(triton_device, [2, 65, 68, 0, 8, 4])[0], 3
    known_tail = torch.arange(100, 100 + count * tail_length, dtype=torch.int32)
    known_tail = known_tail.view(count, tail_length).to(triton_device)
    tile_max[5, 0] = NAN
    expected = reference_finish(
        tile_max, tile_token, last, position, remaining, known_len, known_tail
    )
    assert expected[1].tolist()[:3] == [102, 6, 106]
    assert expected[1].tolist()[5] == 117
    assert expected[3].tolist() == [1, 0, 3, 1, 99, 1]
    slots = torch.full((NUM_SLOTS, count + 2), SENTINEL, dtype=torch.int32, device=triton_device)
    before = slots.clone()
    # Row 1 does not run, so that nothing of it is written.
    for row, chosen_at in zip((0, 2, 3, 4, 5), (1, 65, 1024, 8, 3), strict=True):
        before[chosen_at % NUM_SLOTS, row] = expected[0][row]
    finish_step(tile_max, tile_token, last, position, remaining, known_len, known_tail, slots)
    for got, wanted in zip((last, position, remaining), expected[1:], strict=True):
        assert torch.equal(got, wanted)
    assert torch.equal(slots, before)
    assert expected[0].tolist()[2:4] == [-1, -1]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("embed", "tiles", "has_places"),
    [(64, 1, True), (64, 4, True), (96, 3, True), (768, 24, True), (96, 3, False)],
)
def test_begin_embeds_with_statistics(
    triton_device: torch.device, dtype: torch.dtype, embed: int, tiles: int, has_places: bool
) -> None:
    tokens = random_tensor(20, embed, seed=1).to(device=triton_device, dtype=dtype)
    places = random_tensor(8, embed, seed=2).to(device=triton_device, dtype=dtype)
    # The third row has ended at a position that does not exist.
    last, position, remaining = _rows(triton_device, [0, 19, 4, 4], [7, 0, 8, 3], [1, 5, 0, 2])
    x = poisoned_rows(torch.full((4, embed), NAN, dtype=dtype, device=triton_device))
    stats = poisoned_rows(torch.full((4, 2, tiles), NAN, device=triton_device))
    begin_step(last, position, remaining, tokens, places if has_places else None, x, stats)
    embedded = tokens[[0, 19, 4, 4]]
    assert same_bits(x, embedded + places[[7, 0, 0, 3]] if has_places else embedded)
    torch.testing.assert_close(stats.double(), reference_statistics(x, tiles), rtol=1e-5, atol=1e-4)
    for written in (x, stats):
        around = written._base
        assert around is not None
        assert around[5:].isnan().all()
        assert around[0].isnan().all()
