"""Fused decode steps in eight bits, of weights or of the cache, against unfused ones."""

from __future__ import annotations

import pytest
import torch
from fused_step_cases import (
    CONFIG,
    DEVICE,
    FAMILIES,
    NUM_ROWS,
    assert_fused_as_unfused,
    make_side,
    needs_triton,
    written_tokens,
)

from engine.models.decoder import Decoder
from engine.models.random_weights import random_weights


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
    assert_fused_as_unfused(config, num_rows, dtype, tolerance, quantize=True)


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
    fused = make_side(folded, fuse=True, scales=scales)
    plain = make_side(apart, fuse=False, scales=scales)
    exact = dtype == torch.float32
    before = [whole.view(torch.int8).clone() for whole in (plain.cache.keys, plain.cache.values)]
    for _ in range(3 if exact else 1):
        for side in (fused, plain):
            side.runner.decode(num_rows)
        for name in ("last_token", "position", "remaining") if exact else ("position",):
            mine, theirs = (getattr(side.rows.fields, name) for side in (fused, plain))
            assert torch.equal(mine, theirs)
    assert not exact or written_tokens(fused, num_rows) == written_tokens(plain, num_rows)
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
