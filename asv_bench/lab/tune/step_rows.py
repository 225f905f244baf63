"""A decode step in the middle of its sequences, and the check that a differently cut step is right.

A step is right if its logits and appended keys and values are about as close to full precision as
those of the unfused step, its tokens are the best but for rounding, and it repeats bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from asv_bench.lab.tune.candidates import Point, Rejected
from engine.kv.memory import KVCache
from engine.requests.params import SamplingParams
from engine.transport.device_rows import NO_TOKENS, DeviceRows, RowStarts
from engine.transport.token_slots import TokenSlots
from kernels import kv_append, paged_attention_decode
from kernels.linear.reference import reference_best_of_tiles
from kernels.tiles.tile import HEAD_PART

if TYPE_CHECKING:
    from engine.fused.step import FusedDecode
    from engine.models.decoder import Decoder

BLOCK_SIZE = 64
ROOM = 64
"""Tokens that a sequence can grow by before `reset`."""
MOST_ERROR = 2.0
"""Times the unfused step's own error against full precision: the bound of the kernels' tests."""


@dataclass(frozen=True, slots=True)
class Computed:
    """What one step computes: logits [B, V], and new keys and values [2, layers, B, H, D]."""

    logits: torch.Tensor
    appended: torch.Tensor


@dataclass(frozen=True, slots=True)
class Stepped:
    """The results of a fused step.

    The best logit of each tile of the head [B, tiles], the token of each row [B], and the new
    token's keys and values [2, layers, B, H, D], NaN if none were appended.
    """

    best_of_tiles: torch.Tensor
    tokens: torch.Tensor
    appended: torch.Tensor

    def equals(self, other: Stepped) -> bool:
        """Whether both are the same bit for bit."""
        return all(
            torch.equal(getattr(self, name), getattr(other, name)) for name in self.__slots__
        )


class StepRows:
    """Sequences of one length on a device, ready for a step of them all.

    `model` is in half precision; `exact` has the same weights in float32.
    """

    def __init__(self, model: Decoder, exact: Decoder, point: Point) -> None:
        from engine.fused.step import FusedDecode

        self.point = point
        self._model = model
        config, device = model.config, model.device
        columns = -(-(point.context + ROOM) // BLOCK_SIZE)
        generator = torch.Generator().manual_seed(0)
        cache = KVCache(
            config.num_layers,
            point.rows * columns,
            config.num_kv_heads,
            BLOCK_SIZE,
            config.head_dim,
            device=device,
            dtype=model.dtype,
        )
        # One layer's numbers serve all: what matters is that none of them is special.
        for whole in (cache.keys, cache.values):
            whole[:] = torch.randn(whole.shape[1:], generator=generator).to(device, model.dtype)
        self._cache = cache
        blocks = torch.randperm(point.rows * columns, generator=generator).to(torch.int32)
        self._rows = DeviceRows(blocks.view(-1, columns).numpy(), device)
        count, position = point.rows, point.context - 1
        self._rows.start(
            RowStarts(
                rows=np.arange(count),
                positions=[position] * count,
                remaining=[ROOM] * count,
                seeds=[0] * count,
                params=[SamplingParams()] * count,
                num_blocks=[columns] * count,
                known_len=[position] * count,
                uncomputed=[NO_TOKENS] * count,
            )
        )
        self._rows.send()
        rows = self._rows.fields
        tokens = torch.randint(config.vocab_size, (point.rows,), generator=generator)
        rows.last_token.copy_(tokens)
        self._kept = [one.clone() for one in (rows.last_token, rows.position, rows.remaining)]
        self._column = (point.context - 1) // BLOCK_SIZE
        self._slot = (point.context - 1) % BLOCK_SIZE
        self._truth = self._compute(exact)
        self._plain = self._compute(model)
        self.fused = FusedDecode(model, cache, self._rows, TokenSlots(point.rows, device))

    def reset(self) -> None:
        """Put every sequence back to where it began."""
        rows = self._rows.fields
        for field, kept in zip(
            (rows.last_token, rows.position, rows.remaining), self._kept, strict=True
        ):
            field.copy_(kept)

    def run(self, fused: FusedDecode) -> Stepped:
        """One step from where the sequences begin."""
        self._clear_appended()
        self.reset()
        fused.step(self.point.rows)
        tokens = self._rows.fields.last_token.clone()
        return Stepped(fused.best_of_tiles.clone(), tokens, self._appended())

    def check(self, fused: FusedDecode) -> None:
        """Run a step twice and compare it with the unfused one and with full precision.

        Raises Rejected if the step is wrong, or not the same twice.
        """
        stepped = self.run(fused)
        if not stepped.equals(self.run(fused)):
            raise Rejected("the step does not repeat bit for bit.")
        tile_max = stepped.best_of_tiles
        tiles = tile_max.shape[1]
        # The head is padded until its tiles are whole.
        block = -(-self._truth.logits.shape[1] // HEAD_PART) * HEAD_PART // tiles
        truth, plain = (
            reference_best_of_tiles(one.logits.double(), tiles, block)[0]
            for one in (self._truth, self._plain)
        )
        is_real = torch.isfinite(truth)
        _require_close("logits", tile_max.double()[is_real], plain[is_real], truth[is_real])
        _require_close(
            "appended keys and values",
            stepped.appended.double(),
            self._plain.appended.double(),
            self._truth.appended.double(),
        )
        scores = self._truth.logits
        bound = MOST_ERROR * float((self._plain.logits.float() - scores).abs().max())
        taken = scores.gather(1, stepped.tokens.long()[:, None])[:, 0]
        worst = float((scores.max(dim=1).values - taken).max())
        if not worst <= bound:
            raise Rejected(
                f"a token's score lies {worst:.3g} below the best one, more than rounding explains "
                f"({bound:.3g})."
            )

    def _blocks(self) -> torch.Tensor:
        return self._rows.fields.block_table[:, self._column].long()

    def _appended(self) -> torch.Tensor:
        """The new token's keys and values, [2, layers, B, H, D]."""
        cache, blocks = self._cache, self._blocks()
        return torch.stack([one[:, blocks, :, self._slot] for one in (cache.keys, cache.values)])

    def _clear_appended(self) -> None:
        """Poison the new token's slots: a step that appends nothing must not find its traces."""
        blocks = self._blocks()
        for one in (self._cache.keys, self._cache.values):
            one[:, blocks, :, self._slot] = float("nan")

    def _compute(self, model: Decoder) -> Computed:
        """The step by plain kernels, in the model's precision, on a copy of each layer's cache."""
        rows = self._rows.fields
        lengths = rows.position + 1
        blocks = self._blocks().int()
        slots = torch.full_like(blocks, self._slot)
        appended: list[torch.Tensor] = []

        def attend(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            keys = self._cache.keys[layer].to(model.dtype, copy=True)
            values = self._cache.values[layer].to(model.dtype, copy=True)
            kv_append(keys, values, key, value, blocks, slots)
            appended.append(torch.stack([key, value]))
            scale = model.config.attention_scale(layer)
            return paged_attention_decode(
                query, keys, values, rows.block_table, lengths, scale=scale
            )

        with torch.inference_mode():
            hidden = model.forward(rows.last_token, rows.position, attend)
            logits = model.logits(hidden)
        return Computed(logits, torch.stack(appended, dim=1))


def _require_close(what: str, got: torch.Tensor, plain: torch.Tensor, truth: torch.Tensor) -> None:
    own = float((plain - truth).norm())
    error = float((got - truth).norm())
    # NaN is not at most anything.
    if not error <= MOST_ERROR * own:
        raise Rejected(
            f"the {what} are {error:.3g} from full precision, the unfused step's {own:.3g}."
        )
