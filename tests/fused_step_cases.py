"""Rows in the middle of their sequences, and what fused and unfused steps must leave alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from engine.kv.memory import KVCache
from engine.models.decoder import Decoder
from engine.models.gpt2 import gpt2
from engine.models.llama import llama3
from engine.models.qwen import qwen3
from engine.models.random_weights import random_weights
from engine.models.spec import DecoderSpec
from engine.requests.params import SamplingParams
from engine.transport.device_rows import NO_TOKENS, DeviceRows, RowStarts
from engine.transport.staging import StagingBuffers
from engine.transport.token_slots import TokenSlots
from engine.worker.runner import ModelRunner
from kernels.backend import interpreting

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


def make_side(model: Decoder, *, fuse: bool, scales: torch.Tensor | None = None) -> Side:
    """Rows at `POSITIONS` of a drawn cache, which is of eight bits where it has `scales`."""
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


def written_tokens(side: Side, num_rows: int) -> list[list[int]]:
    """The tokens that each row has been given since its start, from their slots."""
    ends = side.rows.fields.position.tolist()
    tokens = []
    for row in range(num_rows):
        positions = np.arange(POSITIONS[row] + 1, ends[row] + 1)
        rows = np.full(len(positions), row)
        tokens.append(side.token_slots.receive(side.token_slots.send(), rows, positions).tolist())
    return tokens


def assert_same(fused: Side, plain: Side, num_rows: int, tolerance: float) -> None:
    """Both have the same rows, tokens and, within the tolerance, keys and values."""
    for name in ("last_token", "position", "remaining", "block_table"):
        assert torch.equal(getattr(fused.rows.fields, name), getattr(plain.rows.fields, name))
    assert written_tokens(fused, num_rows) == written_tokens(plain, num_rows)
    assert not fused.token_slots.slots[:, num_rows:].any()
    for left, right in (
        (fused.cache.keys, plain.cache.keys),
        (fused.cache.values, plain.cache.values),
    ):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


def assert_fused_as_unfused(
    config: DecoderSpec, num_rows: int, dtype: torch.dtype, tolerance: float, *, quantize: bool
) -> None:
    """Fused steps leave what unfused steps do, and the model that they fold still computes it."""
    folded, apart = (
        Decoder(
            config, random_weights(config, seed=3, device=DEVICE, dtype=dtype, quantize=quantize)
        )
        for _ in range(2)
    )
    fused, plain = make_side(folded, fuse=True), make_side(apart, fuse=False)
    for _ in range(2):
        for side in (fused, plain):
            side.runner.decode(num_rows)
        assert_same(fused, plain, num_rows, tolerance)
    again = make_side(folded, fuse=False)
    for _ in range(2):
        again.runner.decode(num_rows)
    assert_same(again, plain, num_rows, tolerance)
