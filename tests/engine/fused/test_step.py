"""Fused decode steps against unfused ones: same tokens, same rows, same slots, same cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fused_step_cases import (
    CONFIG,
    DEVICE,
    FAMILIES,
    NUM_ROWS,
    ON_GPU,
    REMAINING,
    Side,
    assert_fused_as_unfused,
    assert_same,
    make_side,
    needs_triton,
    written_tokens,
)
from threaded_ranks import on_ranks

from engine.fused.weights import can_fuse
from engine.models.decoder import Decoder
from engine.models.head import Head
from engine.models.random_weights import random_weights
from engine.models.share import Share
from engine.models.spec import DecoderSpec
from engine.parallel.group import Group
from kernels.backend import interpreting
from kernels.linear.reference import reference_best_of_tiles
from kernels.tiles.table import committed_table
from kernels.tiles.tile import ROLES, LinearTile


def _model(dtype: torch.dtype, **changes: object) -> Decoder:
    config = replace(CONFIG, **changes)
    return Decoder(config, random_weights(config, seed=3, device=DEVICE, dtype=dtype))


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 3e-2)], ids=str
)
@pytest.mark.parametrize("num_rows", [1, 4, NUM_ROWS])
def test_steps_leave_what_unfused_steps_leave(
    dtype: torch.dtype, tolerance: float, num_rows: int
) -> None:
    model = _model(dtype)
    fused, plain = make_side(model, fuse=True), make_side(model, fuse=False)
    for _ in range(3):
        for side in (fused, plain):
            side.runner.decode(num_rows)
        assert_same(fused, plain, num_rows, tolerance)


@needs_triton
@pytest.mark.parametrize(
    ("num_rows", "dtype", "tolerance"),
    [(1, torch.float16, 3e-2), (NUM_ROWS, torch.float32, 1e-4)],
    ids=["vectors", "tiles"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_leave_what_unfused_steps_of_unfolded_weights_leave(
    family: str, num_rows: int, dtype: torch.dtype, tolerance: float
) -> None:
    assert_fused_as_unfused(FAMILIES[family], num_rows, dtype, tolerance, quantize=False)


@needs_triton
def test_maps_left_to_the_library_leave_what_unfused_steps_leave() -> None:
    """All of a block's, and those whose statistics the others and the head then read."""
    config = FAMILIES["llama"]
    fused, plain = (
        make_side(
            Decoder(config, random_weights(config, seed=3, device=DEVICE, dtype=torch.float32)),
            fuse=fuse,
        )
        for fuse in (True, False)
    )
    step = fused.runner.fused
    assert step is not None
    logits = _record_logits(plain)
    place = committed_table().place(NUM_ROWS)
    for roles in (ROLES[:-1], ("attention_out", "feed_forward_out")):
        table = committed_table()
        for role in roles:
            table = table.with_tile(place, role, LinearTile(64, 32, 64, library=True))
        fused.runner.fused = retabled = step.retabled(table)
        retabled._stats.fill_(torch.nan)
        for side in (fused, plain):
            side.runner.decode(NUM_ROWS)
        assert_same(fused, plain, NUM_ROWS, 1e-4)
        # None are left where nobody reads them.
        assert retabled._stats[1].isnan().all() == (len(roles) == 4)
        best = retabled.best_of_tiles
        expected, _ = reference_best_of_tiles(logits[-1], best.shape[1], 256 // best.shape[1])
        running = [row for row, left in enumerate(REMAINING) if left > 0]
        torch.testing.assert_close(best[running], expected[running], rtol=1e-4, atol=1e-4)


@needs_triton
def test_rows_that_sample_leave_the_others_theirs() -> None:
    """Drawn tokens are those of unfused steps; a greedy row has the bits it has among greedy ones.

    Steps with draws and without alternate: each begins from what the other has left.
    """
    model = _model(torch.float32, num_layers=1)
    fused, plain, greedy = (make_side(model, fuse=fuse) for fuse in (True, False, True))
    # Row 4 does not run: nothing is drawn for it.
    sampled = [1, 3, 4, 5]
    for side in (fused, plain):
        side.rows.fields.temperature[sampled] = 1.5
    for is_drawn in (True, False):
        for side in (fused, plain):
            budgets = side.runner.budgets(NUM_ROWS)
            states = side.runner.decode(NUM_ROWS)
            if is_drawn:
                side.runner.redraw(states, budgets)
        greedy.runner.decode(NUM_ROWS)
        assert_same(fused, plain, NUM_ROWS, 1e-4)
    tokens, likeliest = written_tokens(fused, NUM_ROWS), written_tokens(greedy, NUM_ROWS)
    last = [side.rows.fields.last_token.tolist() for side in (fused, greedy)]
    for row in range(NUM_ROWS):
        is_drawn = row in sampled and bool(REMAINING[row])
        assert (tokens[row] != likeliest[row]) == is_drawn, row
        assert is_drawn or last[0][row] == last[1][row], row


@needs_triton
def test_an_untied_head_and_scaled_layers() -> None:
    model = _model(torch.float32, tied_head=False, scale_by_layer=True)
    fused, plain = make_side(model, fuse=True), make_side(model, fuse=False)
    for side in (fused, plain):
        side.runner.decode(NUM_ROWS)
    assert_same(fused, plain, NUM_ROWS, 1e-4)


@needs_triton
def test_logits_that_are_not_numbers_are_told_and_survived() -> None:
    model = _model(torch.float32)
    model.final_norm.bias[3] = float("nan")
    fused, plain = make_side(model, fuse=True), make_side(model, fuse=False)
    for side in (fused, plain):
        side.runner.decode(NUM_ROWS)
    assert_same(fused, plain, NUM_ROWS, 1e-4)
    # Row 0 feeds a known token whatever its logits are.
    assert fused.rows.fields.last_token.tolist()[:2] == [41, 0]


@needs_triton
@pytest.mark.parametrize("outliers", [False, True], ids=["ordinary", "outlier-channels"])
@pytest.mark.parametrize(
    ("num_rows", "head"),
    [(1, LinearTile(1, 8, 16)), (1, LinearTile(16, 64, 32)), (NUM_ROWS, LinearTile(16, 64, 32))],
    ids=["vectors", "vectors-and-a-tile", "tiles"],
)
def test_logits_are_as_close_to_full_precision_as_unfused_ones(
    num_rows: int, head: LinearTile, outliers: bool
) -> None:
    """Every tile's best logit, fused and unfused in fp16, against fp32 of the same weights.

    Vectors leave no statistics: a head in tiles behind them makes its own.
    """
    committed = committed_table()
    assert (committed.tiles(num_rows).feed_forward_out.block_m == 1) == (num_rows == 1)
    weights = random_weights(CONFIG, seed=3, device=DEVICE, dtype=torch.float16)
    if outliers:
        # As trained models have them: two channels far beyond the rest, from the start to the end.
        weights["position_embedding.weight"][:, 7] += 40.0
        weights["position_embedding.weight"][:, 50] -= 15.0
    fused, plain = (make_side(Decoder(CONFIG, weights), fuse=fuse) for fuse in (True, False))
    exact = make_side(
        Decoder(CONFIG, {name: one.float() for name, one in weights.items()}), fuse=False
    )
    exact.cache.keys.copy_(plain.cache.keys)
    exact.cache.values.copy_(plain.cache.values)
    logits = [_record_logits(side) for side in (plain, exact)]
    assert fused.runner.fused is not None
    table = committed.with_tile(committed.place(num_rows), "head", head)
    fused.runner.fused = fused.runner.fused.retabled(table)
    for side in (fused, plain, exact):
        side.runner.decode(num_rows)
    tile_max = fused.runner.fused.best_of_tiles
    running = [row for row in range(num_rows) if REMAINING[row] > 0]
    tiles = tile_max.shape[1]
    block = 256 // tiles  # the head is padded to 256 rows
    theirs, truth = (
        reference_best_of_tiles(one[0].double(), tiles, block)[0][running] for one in logits
    )
    is_real = torch.isfinite(truth)
    own_error = (theirs - truth)[is_real].norm()
    error = (tile_max[running].double() - truth)[is_real].norm()
    assert 0 < float(error) <= 2 * float(own_error)


def _record_logits(side: Side) -> list[torch.Tensor]:
    """A list that takes every logits tensor the side's model makes from now on."""
    recorded: list[torch.Tensor] = []

    class Recording(Head):
        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            recorded.append(super().logits(hidden))
            return recorded[-1]

    head = side.model.head
    side.model.head = Recording(head.weight, head.vocab_size)
    return recorded


@needs_triton
def test_another_table_cuts_the_same_step() -> None:
    """A table given to the steps is the one they use, and changes no token."""
    from engine.fused.step import FusedDecode

    model = _model(torch.float32)
    fused, plain = make_side(model, fuse=True), make_side(model, fuse=False)
    assert fused.runner.fused is not None
    committed = committed_table()
    table = committed.with_tile(committed.place(NUM_ROWS), "head", LinearTile(16, 64, 32))
    narrow = fused.runner.fused.retabled(table)
    fused.runner.fused = narrow
    for side in (fused, plain):
        side.runner.decode(NUM_ROWS)
    assert_same(fused, plain, NUM_ROWS, 1e-4)
    assert narrow.best_of_tiles.shape == (NUM_ROWS, 256 // 64)
    again = FusedDecode(model, fused.cache, fused.rows, fused.token_slots, table)
    again.step(NUM_ROWS)
    assert again.best_of_tiles.shape == narrow.best_of_tiles.shape


@needs_triton
def test_steps_repeat_bit_for_bit() -> None:
    model = _model(torch.float16)
    caches = []
    for _ in range(2):
        side = make_side(model, fuse=True)
        for _ in range(2):
            side.runner.decode(NUM_ROWS)
        caches.append(side.cache)
    assert torch.equal(caches[0].keys, caches[1].keys)
    assert torch.equal(caches[0].values, caches[1].values)


def test_the_rule_takes_half_precision_gpt2_on_cuda_only() -> None:
    model = _model(torch.float16)
    assert can_fuse(model) == ON_GPU
    assert not can_fuse(_model(torch.float32))
    assert not can_fuse(_model(torch.float16, activation="relu"))
    assert not can_fuse(_model(torch.float16, hidden_size=96))


# Widths of a rank are multiples of 64, and vocabularies do not divide evenly.
_WIDE = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "inner_size": 128}
SPLIT = {
    "gpt2": replace(CONFIG, **(_WIDE | {"num_kv_heads": 4})),
    "llama": replace(FAMILIES["llama"], **_WIDE),
    "qwen": replace(FAMILIES["qwen"], **_WIDE, attention_out_bias=True),
}


def _split_side(spec: DecoderSpec, num_rows: int, group: Group | None, *, fuse: bool) -> Side:
    share = Share() if group is None else Share(group.rank, group.size)
    weights = random_weights(spec, seed=3, device=DEVICE, dtype=torch.float32, share=share)
    side = make_side(Decoder(share.spec(spec), weights, group), fuse=fuse)
    # Of fewer heads `make_side` draws other contexts: rows see none but their own tokens.
    side.cache.keys.zero_()
    side.cache.values.zero_()
    for _ in range(3):
        side.runner.decode(num_rows)
    return side


@pytest.mark.skipif(
    not interpreting() or ON_GPU,
    reason="needs TRITON_INTERPRET=1: `nox -s kernels` sets it where there is no GPU",
)
@pytest.mark.parametrize(
    ("name", "num_rows"), [("gpt2", NUM_ROWS), ("llama", 1), ("qwen", 4)], ids=str
)
def test_ranks_with_a_part_each_leave_what_one_leaves(name: str, num_rows: int) -> None:
    spec = SPLIT[name]
    whole = _split_side(spec, num_rows, None, fuse=False)
    parts = on_ranks(2, lambda group: _split_side(spec, num_rows, group, fuse=True))
    first = 0
    for part in parts:
        for field in ("last_token", "position", "remaining"):
            assert torch.equal(getattr(part.rows.fields, field), getattr(whole.rows.fields, field))
        assert written_tokens(part, num_rows) == written_tokens(whole, num_rows)
        heads = slice(first, first + part.cache.keys.shape[2])
        own, every = (one.rows.fields.block_table.flatten() for one in (part, whole))
        for name in ("keys", "values"):
            torch.testing.assert_close(
                getattr(part.cache, name)[:, own],
                getattr(whole.cache, name)[:, every, heads],
                rtol=1e-4,
                atol=1e-4,
            )
        first = heads.stop
