"""One device's half of the engine: what lies on the device, and what launches work there.

The other half, the queue and the books, is the host's (`engine.scheduling`). Nothing here knows a
request but by its row.
"""

from __future__ import annotations

from engine.config import EngineConfig
from engine.kv.blocks import BlockCopy
from engine.kv.memory import KVCache
from engine.models.decoder import Decoder
from engine.scheduling.rows import Rows
from engine.transport.device_rows import DeviceRows
from engine.transport.staging import StagingBuffers
from engine.transport.token_slots import TokenSlots
from engine.worker.ahead import compile_ahead
from engine.worker.decode_graphs import DecodeGraphs
from engine.worker.prefill_graphs import PrefillGraphs
from engine.worker.ranges import span
from engine.worker.runner import ModelRunner


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
        )
        self.decoder = self.prefiller = self.runner
        if use_graphs:
            compile_ahead(self.runner, max_prefill_tokens)
            self.decoder = DecodeGraphs(self.runner, num_rows)
            self.prefiller = PrefillGraphs(
                self.runner,
                self._staging,
                max_tokens=max_prefill_tokens,
                block_size=config.block_size,
            )

    def copy_blocks(self, copies: list[BlockCopy]) -> None:
        """Copy blocks of the cache, in their order."""
        with span("copies"):
            self._cache.copy_blocks(copies, self._staging)

    def send_rows(self) -> None:
        """Send what changed in the host's rows."""
        with span("block_tables"):
            self.rows.send()

    def decode(self, num_rows: int, *, is_sampled: bool) -> None:
        """A step of rows 0 to `num_rows - 1`; with `is_sampled` some draw their tokens."""
        decoder = self.decoder
        budgets = decoder.budgets(num_rows) if is_sampled else None
        states = decoder.decode(num_rows)
        if budgets is not None:
            decoder.redraw(states, budgets)
