# mypy: disable-error-code="no-untyped-call"
"""Decode steps in the middle of their sequences: each cut as a table says, checked and timed.

A step is right if its logits and appended keys and values are about as close to full precision as
those of the unfused step, its tokens are the best but for rounding, and it repeats bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.lab.tune.candidates import Rejected, StepPoint, Timer
from asv_bench.memory.bandwidth import device_ms
from engine.kv.memory import KVCache
from engine.requests.params import SamplingParams
from engine.transport.device_rows import NO_TOKENS, DeviceRows, RowStarts
from engine.transport.token_slots import TokenSlots
from kernels import kv_append, paged_attention_decode
from kernels.linear.reference import reference_best_of_tiles
from kernels.tiles.table import ConfigTable
from kernels.tiles.tile import HEAD_PART

if TYPE_CHECKING:
    from engine.fused.step import FusedDecode
    from engine.models.decoder import Decoder
    from engine.models.spec import DecoderSpec

REPLAYS = 20
WARM_REPLAYS = 2
HOPPER = (9, 0)
MOST_SENTENCE = 160
BLOCK_SIZE = 64
ROOM = 64
"""Tokens that a sequence can grow by before `reset`."""
MOST_ERROR = 2.0
"""Times the unfused step's own error against full precision: the bound of the kernels' tests."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a step computes. Keys and values are the new token's, [2, layers, B, H, D]."""

    logits: torch.Tensor  # [B, V]; of a fused step the best of each tile of the head, [B, tiles]
    tokens: torch.Tensor  # [B]
    appended: torch.Tensor  # NaN where nothing was


class StepRows:
    """Sequences of one length on a device, ready for a step of them all.

    `model` is in half precision; `exact` has the same weights in float32.
    """

    def __init__(self, model: Decoder, exact: Decoder, point: StepPoint) -> None:
        from engine.fused.step import FusedDecode

        self.point = point
        config, device = model.config, model.device
        columns = -(-(point.context + ROOM) // BLOCK_SIZE)
        generator = torch.Generator().manual_seed(0)
        heads = config.num_kv_heads, BLOCK_SIZE, config.head_dim
        cache = KVCache(
            config.num_layers, point.rows * columns, *heads, device=device, dtype=model.dtype
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
        rows.last_token.copy_(torch.randint(config.vocab_size, (count,), generator=generator))
        self._moving = (rows.last_token, rows.position, rows.remaining)
        self._kept = [one.clone() for one in self._moving]
        self._column, self._slot = divmod(position, BLOCK_SIZE)
        self._truth = self._compute(exact)
        self._plain = self._compute(model)
        self.fused = FusedDecode(model, cache, self._rows, TokenSlots(point.rows, device))

    def reset(self) -> None:
        """Put every sequence back to where it began."""
        for field, kept in zip(self._moving, self._kept, strict=True):
            field.copy_(kept)

    def run(self, fused: FusedDecode) -> Stepped:
        """One step from where the sequences begin."""
        blocks = self._blocks()
        # A step that appends nothing must not find the traces of one that did.
        for one in (self._cache.keys, self._cache.values):
            one[:, blocks, :, self._slot] = float("nan")
        self.reset()
        fused.step(self.point.rows)
        cached = (self._cache.keys, self._cache.values)
        appended = torch.stack([one[:, blocks, :, self._slot] for one in cached])
        tokens = self._rows.fields.last_token.clone()
        return Stepped(fused.best_of_tiles.clone(), tokens, appended)

    def check(self, fused: FusedDecode) -> None:
        """Run a step twice and compare it with the unfused one and with full precision.

        Raises Rejected if the step is wrong, or not the same twice.
        """
        stepped, again = self.run(fused), self.run(fused)
        names = Stepped.__slots__
        if not all(torch.equal(getattr(stepped, one), getattr(again, one)) for one in names):
            raise Rejected("the step does not repeat bit for bit.")
        tiles = stepped.logits.shape[1]
        # The head is padded until its tiles are whole.
        block = -(-self._truth.logits.shape[1] // HEAD_PART) * HEAD_PART // tiles
        truth, plain = (
            reference_best_of_tiles(one.logits.double(), tiles, block)[0]
            for one in (self._truth, self._plain)
        )
        is_real = torch.isfinite(truth)
        _require_close("logits", stepped.logits.double()[is_real], plain[is_real], truth[is_real])
        three = (one.appended.double() for one in (stepped, self._plain, self._truth))
        _require_close("appended keys and values", *three)
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

    def _compute(self, model: Decoder) -> Stepped:
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
            logits = model.logits(model.forward(rows.last_token, rows.position, attend))
        return Stepped(logits, logits.argmax(dim=1), torch.stack(appended, dim=1))


def _require_close(what: str, got: torch.Tensor, plain: torch.Tensor, truth: torch.Tensor) -> None:
    own = float((plain - truth).norm())
    error = float((got - truth).norm())
    # NaN is not at most anything.
    if not error <= MOST_ERROR * own:
        raise Rejected(
            f"the {what} are {error:.3g} from full precision, the unfused step's {own:.3g}."
        )


class StepBench:
    """A model with seeded weights on a GPU, with rows for every point that was asked for.

    `dtype` is of weights and cache: float16 or bfloat16.
    """

    def __init__(self, config: DecoderSpec, device: torch.device, dtype: torch.dtype) -> None:
        from engine.models.decoder import Decoder
        from engine.models.random_weights import random_weights

        weights = random_weights(config, seed=0, device=device, dtype=dtype)
        self._model = Decoder(config, weights)
        self._exact = Decoder(config, {name: one.float() for name, one in weights.items()})
        self._rows: dict[StepPoint, StepRows] = {}

    def prepare(self, table: ConfigTable, point: StepPoint) -> Timer:
        """Check and capture the step cut as the table says.

        Raises Rejected if it does not compile, does not fit the device, or computes something else,
        and MeasurementFailed if it leaves the device unusable.
        """
        if point not in self._rows:
            self._rows[point] = StepRows(self._model, self._exact, point)
        rows = self._rows[point]
        try:
            fused = rows.fused.retabled(table)
            rows.check(fused)
            torch.cuda.synchronize()
            # All was compiled by the check.
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                fused.step(point.rows)
        except Rejected:
            raise
        except Exception as error:  # compilers and drivers raise whatever they like
            _require_working_device(error)
            lines = str(error).strip().splitlines() or [""]
            raise Rejected(f"{type(error).__name__}: {lines[0][:MOST_SENTENCE]}") from error
        return partial(_step_us, rows, graph, fused)


def hopper_bench(device: str, model: str, dtype: str) -> StepBench:
    """A bench of a model of `RANDOM_CONFIGS`. Raises Refused if the device is no Hopper GPU."""
    from engine.models.registry import RANDOM_CONFIGS

    if torch.cuda.get_device_capability(device) != HOPPER:
        raise Refused(
            "tune needs a Hopper GPU (compute capability 9.0): what other devices run in a fused "
            "step says nothing about it."
        )
    # Which takes no device without a number.
    torch.cuda.set_device(torch.device(device).index or 0)
    return StepBench(RANDOM_CONFIGS[model], torch.device(device), getattr(torch, dtype))


def _step_us(rows: StepRows, graph: torch.cuda.CUDAGraph, fused: FusedDecode) -> float:
    """Microseconds of a replay on the device's clock, over `REPLAYS` one after another.

    The caller holds `fused`, whose scratch memory the graph writes. Each replay attends to one
    token more than the one before.
    """

    def replay(count: int) -> None:
        for _ in range(count):
            graph.replay()

    rows.reset()
    replay(WARM_REPLAYS)
    [step_ms] = device_ms(partial(replay, REPLAYS), 1, warmups=0)
    return 1e3 * step_ms / REPLAYS


def _require_working_device(error: Exception) -> None:
    """An error that stays, such as an illegal address, makes every later figure worthless."""
    try:
        torch.cuda.synchronize()
    except Exception as lasting:
        raise MeasurementFailed(
            f"a candidate left the GPU unusable: {error}. Leave its role out and try again."
        ) from lasting
