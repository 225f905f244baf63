"""Fused decode steps against unfused ones: same tokens, same rows, same slots, same cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from threaded_ranks import on_ranks

from engine.fused.weights import can_fuse
from engine.kv.memory import KVCache
from engine.models.decoder import Decoder
from engine.models.gpt2 import gpt2
from engine.models.head import Head
from engine.models.llama import llama3
from engine.models.qwen import qwen3
from engine.models.random_weights import random_weights
from engine.models.share import Share
from engine.models.spec import DecoderSpec
from engine.parallel.group import Group
from engine.requests.params import SamplingParams
from engine.transport.device_rows import NO_TOKENS, DeviceRows, RowStarts
from engine.transport.staging import StagingBuffers
from engine.transport.token_slots import TokenSlots
from engine.worker.runner import ModelRunner
from kernels.backend import interpreting
from kernels.linear.reference import reference_best_of_tiles
from kernels.tiles.table import committed_table
from kernels.tiles.tile import ROLES, LinearTile

ON_GPU = torch.cuda.is_available() and not interpreting()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
BLOCK_SIZE, NUM_ROWS = 16, 6
# Positions at the start, around block boundaries, and one row without budget at the last position.
POSITIONS, REMAINING = [0, 15, 16, 30, 63, 7], [4, 4, 4, 1, 0, 2]
# Tokens that rows are given to feed: more, as many and fewer than the steps of a test.
UNCOMPUTED = {
    0: np.arange(40, 45, dtype=np.int32),
    2: np.array([9, 8, 7], np.int32),
    5: np.array([77], np.int32),
}
CONFIG = gpt2(
    vocab_size=200,
    max_positions=64,
    num_layers=2,
    num_heads=4,
    hidden_size=64,
    inner_size=128,
    activation="gelu_new",
)
FAMILIES = {
    "llama": replace(
        llama3(
            vocab_size=200,
            max_positions=64,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            hidden_size=64,
            inner_size=128,
            stretch=8.0,
            tied_head=True,
        ),
        norm_epsilon=1e-3,
    ),
    # Heads together are wider than the residual stream, and all maps into a block have biases.
    "qwen": replace(
        qwen3(
            vocab_size=200,
            max_positions=64,
            num_layers=2,
            num_heads=3,
            num_kv_heads=1,
            head_dim=32,
            hidden_size=64,
            inner_size=192,
            tied_head=False,
        ),
        attention_in_bias=True,
        feed_forward_bias=True,
    ),
}
FAMILIES |= {
    "gate of GELU": replace(FAMILIES["llama"], activation="gelu_pytorch_tanh"),
    "SiLU without a gate": replace(FAMILIES["llama"], is_gated=False),
    "shared keys without turns": replace(
        FAMILIES["llama"], rotary=None, max_positions=64, activation="gelu_new"
    ),
    "turned behind layer norms": replace(
        CONFIG, rotary=FAMILIES["llama"].rotary, num_kv_heads=2, is_gated=True, activation="silu"
    ),
}
"""Those that there are, and combinations of their parts."""

needs_triton = pytest.mark.skipif(
    not ON_GPU and not interpreting(),
    reason="needs a GPU or TRITON_INTERPRET=1: `nox -s kernels` sets what the machine has",
)


@dataclass(slots=True)
class Side:
    """One engine's device side, with rows in the middle of their sequences."""

    model: Decoder
    runner: ModelRunner
    cache: KVCache
    rows: DeviceRows
    token_slots: TokenSlots


def _model(dtype: torch.dtype, **changes: object) -> Decoder:
    config = replace(CONFIG, **changes)
    return Decoder(config, random_weights(config, seed=3, device=DEVICE, dtype=dtype))


def _side(model: Decoder, *, fuse: bool, scales: torch.Tensor | None = None) -> Side:
    from engine.fused.step import FusedDecode

    config = model.config
    columns = config.max_positions // BLOCK_SIZE
    staging = StagingBuffers(DEVICE)
    cache = KVCache(
        config.num_layers,
        NUM_ROWS * columns,
        config.num_kv_heads,
        BLOCK_SIZE,
        config.head_dim,
        device=DEVICE,
        dtype=model.dtype,
        scales=scales,
    )
    generator = torch.Generator().manual_seed(5)
    for whole in (cache.keys, cache.values):
        whole.copy_(torch.randn(whole.shape, generator=generator))
    blocks = torch.randperm(NUM_ROWS * columns, generator=generator).to(torch.int32)
    rows = DeviceRows(blocks.view(NUM_ROWS, columns).numpy(), DEVICE)
    uncomputed = [UNCOMPUTED.get(row, NO_TOKENS) for row in range(NUM_ROWS)]
    rows.start(
        RowStarts(
            rows=np.arange(NUM_ROWS),
            positions=POSITIONS,
            remaining=REMAINING,
            seeds=[0] * NUM_ROWS,
            params=[SamplingParams()] * NUM_ROWS,
            num_blocks=[columns] * NUM_ROWS,
            known_len=[
                position + len(left) for position, left in zip(POSITIONS, uncomputed, strict=True)
            ],
            uncomputed=uncomputed,
        )
    )
    rows.send()
    rows.fields.last_token.copy_(torch.arange(NUM_ROWS) * 31)
    token_slots = TokenSlots(NUM_ROWS, DEVICE)
    runner = ModelRunner(
        model, cache, rows, token_slots, staging, BLOCK_SIZE, fuse=False, feeds_known=True
    )
    if fuse:
        runner.fused = FusedDecode(model, cache, rows, token_slots)
    return Side(model, runner, cache, rows, token_slots)


def _written(side: Side, num_rows: int) -> list[list[int]]:
    """The tokens that each row has been given since its start, from their slots."""
    ends = side.rows.fields.position.tolist()
    tokens = []
    for row in range(num_rows):
        positions = np.arange(POSITIONS[row] + 1, ends[row] + 1)
        rows = np.full(len(positions), row)
        tokens.append(side.token_slots.receive(side.token_slots.send(), rows, positions).tolist())
    return tokens


def _assert_same(fused: Side, plain: Side, num_rows: int, tolerance: float) -> None:
    for name in ("last_token", "position", "remaining", "block_table"):
        assert torch.equal(getattr(fused.rows.fields, name), getattr(plain.rows.fields, name))
    assert _written(fused, num_rows) == _written(plain, num_rows)
    assert not fused.token_slots.slots[:, num_rows:].any()
    for left, right in (
        (fused.cache.keys, plain.cache.keys),
        (fused.cache.values, plain.cache.values),
    ):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 3e-2)], ids=str
)
@pytest.mark.parametrize("num_rows", [1, 4, NUM_ROWS])
def test_steps_leave_what_unfused_steps_leave(
    dtype: torch.dtype, tolerance: float, num_rows: int
) -> None:
    model = _model(dtype)
    fused, plain = _side(model, fuse=True), _side(model, fuse=False)
    for _ in range(3):
        for side in (fused, plain):
            side.runner.decode(num_rows)
        _assert_same(fused, plain, num_rows, tolerance)


def _assert_fused_as_unfused(
    config: DecoderSpec, num_rows: int, dtype: torch.dtype, tolerance: float, *, quantize: bool
) -> None:
    folded, apart = (
        Decoder(
            config, random_weights(config, seed=3, device=DEVICE, dtype=dtype, quantize=quantize)
        )
        for _ in range(2)
    )
    fused, plain = _side(folded, fuse=True), _side(apart, fuse=False)
    for _ in range(2):
        for side in (fused, plain):
            side.runner.decode(num_rows)
        _assert_same(fused, plain, num_rows, tolerance)
    # The model that was folded computes that, too.
    again = _side(folded, fuse=False)
    for _ in range(2):
        again.runner.decode(num_rows)
    _assert_same(again, plain, num_rows, tolerance)


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
    _assert_fused_as_unfused(FAMILIES[family], num_rows, dtype, tolerance, quantize=False)


@needs_triton
@pytest.mark.parametrize(
    ("num_rows", "dtype", "tolerance"),
    [(1, torch.float16, 3e-2), (NUM_ROWS, torch.float32, 1e-4)],
    ids=["vectors", "tiles"],
)
@pytest.mark.parametrize("family", [*FAMILIES, "gpt2"])
def test_steps_of_weights_in_eight_bits_leave_what_unfused_steps_leave(
    family: str, num_rows: int, dtype: torch.dtype, tolerance: float
) -> None:
    config = FAMILIES.get(family, CONFIG)
    _assert_fused_as_unfused(config, num_rows, dtype, tolerance, quantize=True)


@needs_triton
@pytest.mark.parametrize(
    ("num_rows", "dtype"), [(1, torch.float16), (NUM_ROWS, torch.float32)], ids=["vectors", "tiles"]
)
@pytest.mark.parametrize("family", ["llama", "qwen", "gpt2"])
def test_steps_over_a_cache_of_eight_bits_leave_what_unfused_steps_leave(
    family: str, num_rows: int, dtype: torch.dtype
) -> None:
    """The same tokens, and keys and values of which few lie one number of eight bits further.

    In half precision those of the first layer: what reads them then differs by more.
    """
    config = FAMILIES.get(family, CONFIG)
    exponents = torch.arange(2 * 2 * config.num_kv_heads).view(2, 2, -1) % 3 - 5.0
    scales = torch.exp2(exponents).to(DEVICE)
    folded, apart = (
        Decoder(config, random_weights(config, seed=3, device=DEVICE, dtype=dtype))
        for _ in range(2)
    )
    fused = _side(folded, fuse=True, scales=scales)
    plain = _side(apart, fuse=False, scales=scales)
    exact = dtype == torch.float32
    before = [whole.view(torch.int8).clone() for whole in (plain.cache.keys, plain.cache.values)]
    for _ in range(3 if exact else 1):
        for side in (fused, plain):
            side.runner.decode(num_rows)
        for name in ("last_token", "position", "remaining") if exact else ("position",):
            mine, theirs = (getattr(side.rows.fields, name) for side in (fused, plain))
            assert torch.equal(mine, theirs)
    assert not exact or _written(fused, num_rows) == _written(plain, num_rows)
    for name, old in zip(("keys", "values"), before, strict=True):
        mine, theirs = (
            getattr(side.cache, name).view(torch.int8).short()[: None if exact else 1]
            for side in (fused, plain)
        )
        apart_by = (mine - theirs).abs()
        changed = int((theirs != old[: len(theirs)]).sum())
        assert changed > 0
        assert int((apart_by > 0).sum()) <= (0.01 if exact else 0.2) * changed
        assert int(apart_by.max()) <= 1


@needs_triton
def test_maps_left_to_the_library_leave_what_unfused_steps_leave() -> None:
    """All of a block's, and those whose statistics the others and the head then read."""
    config = FAMILIES["llama"]
    fused, plain = (
        _side(
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
        _assert_same(fused, plain, NUM_ROWS, 1e-4)
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
    fused, plain, greedy = (_side(model, fuse=fuse) for fuse in (True, False, True))
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
        _assert_same(fused, plain, NUM_ROWS, 1e-4)
    tokens, likeliest = _written(fused, NUM_ROWS), _written(greedy, NUM_ROWS)
    last = [side.rows.fields.last_token.tolist() for side in (fused, greedy)]
    for row in range(NUM_ROWS):
        is_drawn = row in sampled and bool(REMAINING[row])
        assert (tokens[row] != likeliest[row]) == is_drawn, row
        assert is_drawn or last[0][row] == last[1][row], row


@needs_triton
def test_an_untied_head_and_scaled_layers() -> None:
    model = _model(torch.float32, tied_head=False, scale_by_layer=True)
    fused, plain = _side(model, fuse=True), _side(model, fuse=False)
    for side in (fused, plain):
        side.runner.decode(NUM_ROWS)
    _assert_same(fused, plain, NUM_ROWS, 1e-4)


@needs_triton
def test_logits_that_are_not_numbers_are_told_and_survived() -> None:
    model = _model(torch.float32)
    model.final_norm.bias[3] = float("nan")
    fused, plain = _side(model, fuse=True), _side(model, fuse=False)
    for side in (fused, plain):
        side.runner.decode(NUM_ROWS)
    _assert_same(fused, plain, NUM_ROWS, 1e-4)
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
    fused, plain = (_side(Decoder(CONFIG, weights), fuse=fuse) for fuse in (True, False))
    exact = _side(Decoder(CONFIG, {name: one.float() for name, one in weights.items()}), fuse=False)
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
    fused, plain = _side(model, fuse=True), _side(model, fuse=False)
    assert fused.runner.fused is not None
    committed = committed_table()
    table = committed.with_tile(committed.place(NUM_ROWS), "head", LinearTile(16, 64, 32))
    narrow = fused.runner.fused.retabled(table)
    fused.runner.fused = narrow
    for side in (fused, plain):
        side.runner.decode(NUM_ROWS)
    _assert_same(fused, plain, NUM_ROWS, 1e-4)
    assert narrow.best_of_tiles.shape == (NUM_ROWS, 256 // 64)
    again = FusedDecode(model, fused.cache, fused.rows, fused.token_slots, table)
    again.step(NUM_ROWS)
    assert again.best_of_tiles.shape == narrow.best_of_tiles.shape


@needs_triton
def test_steps_repeat_bit_for_bit() -> None:
    model = _model(torch.float16)
    caches = []
    for _ in range(2):
        side = _side(model, fuse=True)
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
    side = _side(Decoder(share.spec(spec), weights, group), fuse=fuse)
    # Of fewer heads `_side` draws other contexts: rows see none but their own tokens.
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
        assert _written(part, num_rows) == _written(whole, num_rows)
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
