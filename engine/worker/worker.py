"""One device's half of the engine: what lies on the device, and what launches work there.

The other half, the queue and the books, is the host's (`engine.scheduling`). Nothing here knows a
request but by its row.
"""

from __future__ import annotations

import gc
from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
import torch

from engine.config import EngineConfig
from engine.kv.blocks import BlockCopy
from engine.kv.memory import KVCache
from engine.models.decoder import Decoder
from engine.scheduling.plans import DecodePlan, PrefillPlan
from engine.scheduling.rows import RowIndex, Rows
from engine.scheduling.scheduler import most_drafted_tokens
from engine.transport.device_rows import DeviceRows
from engine.transport.staging import StagingBuffers
from engine.transport.token_slots import TokenSlots
from engine.worker.ahead import compile_ahead
from engine.worker.cache_scales import cache_scales
from engine.worker.decode_graphs import DecodeGraphs
from engine.worker.prefill_graphs import PrefillGraphs
from engine.worker.ranges import span
from engine.worker.runner import ComputedPrompts, ModelRunner
from engine.worker.shaper import Shaper

_LARGE_BYTES = 8_000_000_000
"""Of weights: a step reads them in milliseconds, as long as a piece of a prompt takes."""
_PIECE_TOKENS = 320


def shared_tokens(config: EngineConfig, model: Decoder) -> int:
    """`EngineConfig.mixed_prefill_tokens`, or what None stands for."""
    if config.mixed_prefill_tokens is not None:
        return config.mixed_prefill_tokens
    is_slow = model.device.type == "cuda" and model.num_bytes >= _LARGE_BYTES
    return _PIECE_TOKENS if is_slow and not config.decode_first else 0


class Worker:
    """A model, its cache and its rows on one device.

    Parameters
    ----------
    config
        Limits and policies.
    model
        On its device, in its dtype.
    rows
        The host's rows, whose block tables the device's follow.
    num_kv_blocks
        Blocks of the KV cache.
    max_prefill_tokens
        Tokens of a prefill at most.
    use_graphs
        Replay captured CUDA graphs for decode steps and prefills.

    Attributes
    ----------
    rows
        The device's rows.
    token_slots
        Where sampled tokens go, and come from.
    runner, decoder, prefiller
        What samples prompts, runs decode steps, and computes prompts: the runner itself, or
        replays of it.
    shaper
        What chooses again for requests that ask more of their logits.
    """

    decoder: ModelRunner | DecodeGraphs
    prefiller: ModelRunner | PrefillGraphs

    def __init__(
        self,
        config: EngineConfig,
        model: Decoder,
        rows: Rows,
        *,
        num_kv_blocks: int,
        max_prefill_tokens: int,
        use_graphs: bool,
    ) -> None:
        device, num_rows = model.device, config.max_batch_size
        self._staging = StagingBuffers(device)
        self._cache = KVCache(
            model.config.num_layers,
            num_kv_blocks,
            model.config.num_kv_heads,
            config.block_size,
            model.config.head_dim,
            device=device,
            dtype=model.dtype,
            scales=cache_scales(model) if config.kv_cache_dtype == "fp8" else None,
        )
        self.rows = DeviceRows(rows.block_table, device)
        self.token_slots = TokenSlots(num_rows, device)
        self.runner = ModelRunner(
            model,
            self._cache,
            self.rows,
            self.token_slots,
            self._staging,
            config.block_size,
            fuse=config.fuse,
            feeds_known=use_graphs,
            feeds_rows=shared_tokens(config, model) > 0,
            most_drafted=most_drafted_tokens(config),
        )
        self.shaper = Shaper(
            model.config.vocab_size, rows, self.rows, self.token_slots, self._staging
        )
        self.decoder = self.prefiller = self.runner
        if use_graphs:
            # Each rank compiles what it finds missing: the others may be doing something else.
            with nullcontext() if model.group is None else model.group.muted():
                compile_ahead(self.runner, max_prefill_tokens)
            self.decoder = DecodeGraphs(self.runner, num_rows)
            self.prefiller = PrefillGraphs(
                self.runner,
                self._staging,
                max_tokens=max_prefill_tokens,
                block_size=config.block_size,
            )

    def drop_graphs(self) -> None:
        """Forget what was captured; nothing is launched afterwards."""
        self.decoder = self.prefiller = self.runner
        gc.collect()

    def copy_blocks(self, copies: list[BlockCopy]) -> None:
        """Copy blocks of the cache, in their order."""
        with span("copies"):
            self._cache.copy_blocks(copies, self._staging)

    def to_device(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        """A copy of a small array, to be read by what is launched next."""
        return self._staging.to_device(array)

    def send_rows(self) -> None:
        """Send what changed in the host's rows."""
        with span("block_tables"):
            self.rows.send()

    def compute(self, plan: PrefillPlan) -> ComputedPrompts:
        """Compute the plan's chunks; `sample_prompts` takes what this returns."""
        return self.prefiller.compute(plan)

    def sample_prompts(self, plan: PrefillPlan, computed: ComputedPrompts) -> bool:
        """As `ModelRunner.sample_prompts`."""
        return self.runner.sample_prompts(plan, computed)

    def decode(self, plan: DecodePlan) -> torch.Tensor:
        """A step of the plan's rows, and of those between them, which keep their state.

        Returns the rows' last states.
        """
        decoder, num_rows = self.decoder, plan.num_rows
        budgets = decoder.budgets(num_rows) if plan.is_sampled else None
        states = decoder.decode(num_rows)
        if budgets is not None:
            decoder.redraw(states, budgets)
        if plan.shaped is not None:
            self.shaper.choose(plan.shaped, self.runner.logits_of_step, states)
        return states

    def shape_prompts(self, plan: PrefillPlan, computed: ComputedPrompts) -> None:
        """After `sample_prompts`, choose again for the prompts that ask more of their logits."""
        rows, places = shaped_prompts(plan)
        if len(rows):
            self.shaper.choose(rows, self.runner.logits_of_prompts, computed.hidden, places)


def shaped_prompts(plan: PrefillPlan) -> tuple[RowIndex, npt.NDArray[np.int64]]:
    """The rows that ask more of the logits that a plan samples from, and their places in these."""
    completed, fed = plan.completed, plan.fed
    places = [place for place, one in enumerate(completed) if one.shaping is not None]
    rows = np.array([completed[place].row for place in places], np.intp)
    if fed is None or fed.shaped is None:
        return rows, np.array(places, np.int64)
    behind = len(completed) + np.searchsorted(fed.rows, fed.shaped)
    return np.concatenate((rows, fed.shaped)), np.concatenate((places, behind)).astype(np.int64)
