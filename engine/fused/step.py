"""The decode step as few fused kernels: what `ModelRunner.decode` does, near memory speed.

How rows flow through a step, launch by launch:

1. embed: each row's token, with its learned position if there are such, becomes its row of the
   residual stream x, and leaves x's statistics by tiles of columns.
2. q, k, v of x: the norm's gain is folded into the weights; what a norm takes besides is worked out
   from the statistics (`NORM`: layer or rms) once the product is made. A bias is added there.
3. attention: heads of q and k are normed and turned as they are read, where the model does so; k
   and v are appended, one program a sequence and KV head attends for its group of queries.
4. out: the projection is added to x, and leaves the new x's statistics.
5. feed-forward in: the norm as in 2, and the activation, or the gate: the activation of one half
   times the other, which lie by turns in one map so that a tile has both.
6. feed-forward out: as 4. Steps 2 to 6 repeat for each layer.
7. head: the norm as in 2; a tile of the vocabulary leaves its best logit and that token.
8. pick: the best of the tiles, and each row moves on.

Where ranks have a part of the model each, 4 and 6 make a part of a sum, which the ranks add up
before it is added to x and leaves statistics, in a launch of its own; and each rank's best of 8 are
gathered before the pick. All of it is captured with the step.

Maps of eight bits are read as they are stored, and their products scaled. Their rows are normed by
a launch of their own where the Hopper kernel serves, which takes them in eight bits, too
(`kernels.linear.halves`); elsewhere the gains of norms are multiplied to the rows.

For a single row 2 and 3 are one launch where `row_attention_serves`, which is not over a cache of
eight bits. Single rows may keep no statistics: the maps then norm from x itself. Logits never reach
memory; for rows that sample they are made from the residual stream afterwards.

Importing this module imports Triton.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch

from engine.fused.weights import (
    FusedBlock,
    epilogue_of,
    fused_blocks,
    fused_head,
    step_shapes,
)
from engine.kv.memory import KVCache
from engine.models.decoder import Decoder
from engine.parallel.group import lowest_best
from engine.transport.device_rows import DeviceRows
from engine.transport.token_slots import TokenSlots
from engine.worker.ranges import span
from kernels.attention.fused import fused_attention
from kernels.attention.row import row_attention, row_attention_serves
from kernels.linear.epilogue import RESIDUAL
from kernels.linear.folded import FoldedLinear, SplitWorkspace
from kernels.linear.head import best_of_tiles
from kernels.linear.projections import fused_linear, runs_stream
from kernels.step.rows import begin_step, finish_step
from kernels.tiles.table import ConfigTable, committed_table
from kernels.tiles.tile import ROLES, LinearTile, StepTiles


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Activations of a step of B rows and how its linear maps are tiled.

    The residual stream `x` [B, E]; `qkv` [B, (H_q + 2 H_kv) D]; `attended` [B, H_q D]; `inner`
    [B, F]; statistics of x, float32 [B, 2, tiles]: `block_stats` as the embedding or a block left
    it, and `attention_stats` as its attention did; `tile_max` and `tile_token` [B, tiles of the
    head].
    """

    tiles: StepTiles
    x: torch.Tensor
    qkv: torch.Tensor
    attended: torch.Tensor
    inner: torch.Tensor
    block_stats: torch.Tensor
    attention_stats: torch.Tensor
    tile_max: torch.Tensor
    tile_token: torch.Tensor


class FusedDecode:
    """A model prepared for fused decode steps.

    Holds a second copy of the weights that follow a LayerNorm, and of a tied head, and scratch for
    the largest batch. A step allocates rows of eight bits, and what lies between launches of the
    library, but no more. RMS norms are folded into the model's own weights.

    Parameters
    ----------
    model
        One for which `can_fuse` holds.
    cache, rows, token_slots
        What steps read and write.
    table
        How the kernels are cut; None: as the committed table says.
    """

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        rows: DeviceRows,
        token_slots: TokenSlots,
        table: ConfigTable | None = None,
    ) -> None:
        self._table = table or committed_table()
        self._model = model
        self._rows = rows
        self._token_slots = token_slots
        self._shapes = step_shapes(model.config)
        self._activation = epilogue_of(model.config)
        self._blocks = fused_blocks(model, cache)
        self._head = fused_head(model)
        self._head_tokens = model.head.tokens
        self._group = model.group
        quantized = [one for block in self._blocks for one in block.quantized]
        # The Hopper kernel takes maps of eight bits with a scale for each row.
        self._streams = runs_stream(self._head.weight)
        self._streams_fp8 = self._streams and all(one.has_row_scales for one in quantized)
        self._rounds_rows = self._streams_fp8 and all(one.halves == 1 for one in quantized)
        self._buffers: dict[int, StepBuffers] = {}
        self._workspace = self._reserve()

    def retabled(self, table: ConfigTable) -> FusedDecode:
        """The same steps cut as another table says, on the same weights, rows and cache."""
        other = copy(self)
        other._table = table
        other._buffers = {}
        other._workspace = other._reserve()
        return other

    def step(self, num_rows: int) -> torch.Tensor:
        """One token for each of rows 0 to `num_rows - 1` that has budget left.

        As `ModelRunner.decode`: everything is read from the device's rows and written back there.
        Returns the residual stream [num_rows, E] before the final norm, valid until the next.
        """
        rows = self._rows.fields
        buffers = self._buffers_for(num_rows)
        self._last_step = buffers
        tiles = buffers.tiles
        positions = rows.position[:num_rows]
        remaining = rows.remaining[:num_rows]
        block_tables = rows.block_table[:num_rows]
        begin_step(
            rows.last_token,
            rows.position,
            rows.remaining,
            self._model.token_embedding,
            self._model.position_embedding,
            buffers.x,
            buffers.block_stats,
        )
        with span("forward"):
            for block in self._blocks:
                reader = tiles.head if block is self._blocks[-1] else tiles.attention_in
                self._run_block(block, buffers, positions, remaining, block_tables, reader)
        with span("sampling"):
            best_of_tiles(
                buffers.x,
                self._head,
                len(self._head_tokens),
                tiles.head,
                buffers.tile_max,
                buffers.tile_token,
                x_stats=buffers.block_stats if tiles.keeps_statistics else None,
            )
            tile_max, tile_token = buffers.tile_max, buffers.tile_token
            if self._group is not None:
                best, token = lowest_best(tile_max, tile_token)
                tile_max, tile_token = self._group.best(best, token + self._head_tokens.start)
            finish_step(
                tile_max,
                tile_token,
                rows.last_token,
                rows.position,
                rows.remaining,
                rows.known_len,
                rows.known_tail,
                self._token_slots.slots,
            )
        return buffers.x

    @property
    def best_of_tiles(self) -> torch.Tensor:
        """The last step's largest logit of each tile of the head, float32 [B, tiles]."""
        return self._last_step.tile_max

    def _run_block(
        self,
        block: FusedBlock,
        buffers: StepBuffers,
        positions: torch.Tensor,
        remaining: torch.Tensor,
        block_tables: torch.Tensor,
        reader: LinearTile,
    ) -> None:
        """One block; the map of tile `reader` reads what it makes."""
        tiles, workspace = buffers.tiles, self._workspace
        # The library takes no statistics, and leaves none where it need not.
        are_read = not (tiles.attention_out.library and tiles.feed_forward_in.library)
        are_read_after = not (tiles.feed_forward_out.library and reader.library)
        self._attend(block, buffers, positions, remaining, block_tables)
        self._add(
            buffers.attended,
            block.attention_out,
            buffers.x,
            tiles.attention_out,
            buffers.attention_stats if are_read else None,
        )
        fused_linear(
            buffers.x,
            block.feed_forward_in,
            buffers.inner,
            tiles.feed_forward_in,
            workspace,
            epilogue=self._activation,
            x_stats=buffers.attention_stats if tiles.keeps_statistics else None,
        )
        self._add(
            buffers.inner,
            block.feed_forward_out,
            buffers.x,
            tiles.feed_forward_out,
            buffers.block_stats if are_read_after else None,
        )

    def _add(
        self,
        made: torch.Tensor,
        linear: FoldedLinear,
        x: torch.Tensor,
        tile: LinearTile,
        stats: torch.Tensor | None,
    ) -> None:
        """Add a map of `made`, or all ranks' parts of it, to x, whose statistics go to `stats`."""
        if self._group is None:
            fused_linear(made, linear, x, tile, self._workspace, epilogue=RESIDUAL, y_stats=stats)
            return
        part = self._group.room(len(x), x.shape[1], x.dtype)
        fused_linear(made, linear, part, tile, self._workspace)
        self._group.add_up(part, x, stats)

    def _attend(
        self,
        block: FusedBlock,
        buffers: StepBuffers,
        positions: torch.Tensor,
        remaining: torch.Tensor,
        block_tables: torch.Tensor,
    ) -> None:
        """From the residual stream to what every head attended to."""
        keys, values, tiles = block.keys, block.values, buffers.tiles
        if row_attention_serves(len(buffers.x), block.attention_in, keys, values, block.rotation):
            with span("attention"):
                row_attention(
                    buffers.x,
                    block.attention_in,
                    keys,
                    values,
                    block_tables,
                    positions,
                    remaining,
                    buffers.attended,
                    scale=block.scale,
                    pdl=True,
                    rotation=block.rotation,
                )
            return
        fused_linear(
            buffers.x,
            block.attention_in,
            buffers.qkv,
            tiles.attention_in,
            self._workspace,
            x_stats=buffers.block_stats if tiles.keeps_statistics else None,
        )
        with span("attention"):
            fused_attention(
                buffers.qkv,
                keys,
                values,
                block_tables,
                positions,
                remaining,
                buffers.attended,
                scale=block.scale,
                pdl=True,
                ring=self._table.ring(self._model.config.head_dim, self._model.config.group),
                rotation=block.rotation,
                scales=block.scales,
            )

    def _reserve(self) -> SplitWorkspace:
        """Scratch for any number of rows, and where programs that share a tile meet."""
        device, rows, shapes = self._model.device, self._rows.num_rows, self._shapes
        embed, attended = shapes.attention_out
        _, inner = shapes.feed_forward_out
        qkv, _ = shapes.attention_in
        widths = {"x": embed, "qkv": qkv, "attended": attended, "inner": inner}
        self._activations = {
            name: torch.empty(rows, width, dtype=self._model.dtype, device=device)
            for name, width in widths.items()
        }
        every = [self._tiles(count) for count in range(1, rows + 1)]
        most_tiles = embed // min(
            min(tiles.attention_out.block_n, tiles.feed_forward_out.block_n) for tiles in every
        )
        head_places = max(
            count * (self._head.out_features // tiles.head.block_n)
            for count, tiles in enumerate(every, 1)
        )
        self._stats = torch.empty(2, rows * 2 * most_tiles, dtype=torch.float32, device=device)
        self._tile_max = torch.empty(head_places, dtype=torch.float32, device=device)
        self._tile_token = torch.empty(head_places, dtype=torch.int32, device=device)
        cuts = [
            (getattr(shapes, role)[0], getattr(tiles, role))
            for tiles in every
            for role in ROLES
            if role != "head"
        ]
        return SplitWorkspace.for_tiles(rows, cuts, device)

    def _tiles(self, num_rows: int) -> StepTiles:
        tiles = self._table.tiles(num_rows, self._shapes)
        if not self._streams:
            tiles = tiles.portable()
        return tiles.in_fp8(
            self._model.quantized,
            num_rows,
            self._shapes,
            streams=self._streams_fp8,
            rounds_rows=self._rounds_rows,
        ).fitted(self._shapes)

    def _buffers_for(self, num_rows: int) -> StepBuffers:
        """The scratch as a step of that many rows sees it."""
        if num_rows not in self._buffers:
            tiles = self._tiles(num_rows)
            embed = self._model.config.hidden_size
            head_tiles = self._head.out_features // tiles.head.block_n

            def stats(place: int, columns: int) -> torch.Tensor:
                shape = (num_rows, 2, embed // columns)
                return self._stats[place, : num_rows * 2 * (embed // columns)].view(shape)

            def by_tile(flat: torch.Tensor) -> torch.Tensor:
                return flat[: num_rows * head_tiles].view(num_rows, head_tiles)

            self._buffers[num_rows] = StepBuffers(
                tiles=tiles,
                **{name: whole[:num_rows] for name, whole in self._activations.items()},
                block_stats=stats(0, tiles.feed_forward_out.block_n),
                attention_stats=stats(1, tiles.attention_out.block_n),
                tile_max=by_tile(self._tile_max),
                tile_token=by_tile(self._tile_token),
            )
        return self._buffers[num_rows]
