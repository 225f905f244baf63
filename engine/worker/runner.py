"""Runs the model on the device: a prefill of ragged chunks, or one decode step of all rows.

The two differ in where token ids come from and in how attention reads the cache. Both end by
sampling on the device and by writing the tokens into their slots; neither waits for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from engine.fused.weights import can_fuse
from engine.kv.memory import KVCache
from engine.models.decoder import Decoder
from engine.scheduling.plans import PrefillPlan
from engine.transport.device_rows import KNOWN_TAIL, DeviceRows
from engine.transport.staging import StagingBuffers
from engine.transport.token_slots import TokenSlots
from engine.worker.prefill_inputs import PackedPrompts, PrefillInputs, PrefillShape
from engine.worker.ranges import span
from engine.worker.sampler import INVALID_TOKEN, sample
from kernels.attention.plans import Append, Attend, plan_append, plan_decode, plan_prefill

if TYPE_CHECKING:
    from engine.fused.step import FusedDecode


class ComputedPrompts(NamedTuple):
    """A prefill whose layers are launched: what it reads, and each sequence's last state [N, E].

    `greedy` is `ModelRunner.sample_greedily` of both for all that sample, where captured.
    """

    inputs: PrefillInputs[torch.Tensor]
    hidden: torch.Tensor
    greedy: torch.cuda.CUDAGraph | None = None


class ModelRunner:
    """The device's side of a step.

    Parameters
    ----------
    model
        On its device, in its dtype.
    cache
        KV memory of all layers.
    rows
        Those of the running sequences.
    token_slots
        Where sampled tokens go.
    staging
        Pinned buffers for what a prefill sends to the device.
    block_size
        Tokens per KV block.
    fuse
        Run decode steps with fused kernels, where they run this model.
    feeds_known
        Let decode steps feed known tokens. Worth its few operations where steps are replayed.
    feeds_rows
        Let prefills feed the last tokens of running rows, which thereby take a step.
    most_drafted
        Tokens that one such launch may feed behind those.

    Attributes
    ----------
    enter_limit
        Known tokens that may be left to compute when a sequence begins to decode.
    is_alone
        The model is whole: no other rank waits for what is launched.
    fused
        Runs decode steps; None where the fused kernels do not run this model.
    """

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        rows: DeviceRows,
        token_slots: TokenSlots,
        staging: StagingBuffers,
        block_size: int,
        *,
        fuse: bool = True,
        feeds_known: bool = False,
        feeds_rows: bool = False,
        most_drafted: int = 0,
    ) -> None:
        self._feeds_rows = feeds_rows or most_drafted > 0
        self.most_drafted = most_drafted
        self.enter_limit = KNOWN_TAIL if feeds_known else 1
        self.rows = rows
        self.token_slots = token_slots
        self.cache = cache
        self.is_alone = model.group is None
        self._model = model
        self._staging = staging
        self._block_size = block_size
        spec = model.config
        self._layers = [
            (*cache.layer(layer), spec.attention_scale(layer), spec.window(layer))
            for layer in range(spec.num_layers)
        ]
        # Layers of one window share what a step looks at once.
        self._windows = set(map(spec.window, range(spec.num_layers)))
        self.fused: FusedDecode | None = None
        if fuse and can_fuse(model):
            from engine.fused.step import FusedDecode

            self.fused = FusedDecode(model, cache, rows, token_slots)

    @property
    def weight_bytes(self) -> int:
        """What the model's parameters take."""
        return self._model.num_bytes

    def decode(self, num_rows: int) -> torch.Tensor:
        """The likeliest token for each of rows 0 to `num_rows - 1` that has budget left.

        Everything is read from the device's rows and written back there, so that the call can be
        captured in a CUDA graph and replayed. Rows without budget compute on padding: they append
        nothing, attend to nothing, and keep their state.

        Returns the rows' last states [num_rows, E], from which `redraw` draws.
        """
        if self.fused is not None:
            return self.fused.step(num_rows)
        rows = self.rows.fields
        is_running = rows.remaining[:num_rows] > 0
        # A row that ended at the model's last position must not index beyond the embeddings.
        positions = torch.where(is_running, rows.position[:num_rows], 0)
        token_ids = rows.last_token[:num_rows]
        block_tables = rows.block_table[:num_rows]
        column = (positions // self._block_size).to(torch.int64)
        block_index = block_tables.gather(1, column[:, None]).squeeze(1)
        block_index = torch.where(is_running, block_index, -1)
        block_offset = positions % self._block_size
        context_lens = torch.where(is_running, positions + 1, 0)
        keys, values, *_ = self._layers[0]
        append = plan_append(keys, num_rows, block_index, block_offset)
        heads = self._model.config.num_heads
        dtype = self._model.dtype
        attends: dict[int | None, Attend] = {}
        for window in self._windows:
            attends[window] = plan_decode(
                keys, values, heads, block_tables, context_lens, dtype, window
            )
        with span("forward"):
            hidden = self._forward(token_ids, positions, append, attends)
        with span("sampling"):
            tokens = self._model.head.likeliest(hidden)
            self.token_slots.write(rows.position[:num_rows] + 1, tokens)
            # An invalid token ends its request when the host sees it; until then the row goes on
            # with any token that exists.
            fed = tokens.clamp(min=0)
            is_sampling = is_running
            if self.enter_limit > 1:
                known_left = rows.known_len[:num_rows] - (positions + 1)
                is_sampling = is_running & (known_left <= 0)
                column = (KNOWN_TAIL - known_left).clamp(0, KNOWN_TAIL - 1).to(torch.int64)
                known = rows.known_tail[:num_rows].gather(1, column[:, None]).squeeze(1)
                fed = torch.where(is_sampling, fed, known)
            rows.last_token[:num_rows].copy_(torch.where(is_running, fed, token_ids))
            rows.position[:num_rows] += is_running.to(torch.int32)
            rows.remaining[:num_rows] -= is_sampling.to(torch.int32)
        return hidden

    def budgets(self, num_rows: int) -> torch.Tensor:
        """Tokens that rows 0 to `num_rows - 1` may sample yet, int32 [num_rows], for `redraw`."""
        return self.rows.fields.remaining[:num_rows].clone()

    def redraw(self, states: torch.Tensor, budgets: torch.Tensor) -> None:
        """After `decode`, replace the likeliest token by a drawn one in the rows that sample.

        The token of a greedy row is thus the same whether or not other rows sample. A second call
        changes nothing. Like `decode` the call can be captured.

        Parameters
        ----------
        states
            What `decode` returned, [N, E] or longer.
        budgets
            `budgets(N)` before it: rows that have spent none of it got no token.
        """
        num_rows, rows = len(budgets), self.rows.fields
        positions, last_token = rows.position[:num_rows], rows.last_token[:num_rows]
        hidden = states[:num_rows]
        if self.fused is not None:
            hidden = self._model.final_norm(hidden)
        with span("sampling"):
            drawn = self._draw(hidden, slice(num_rows), positions)
            is_drawn = (rows.temperature[:num_rows] > 0) & (rows.remaining[:num_rows] < budgets)
            self.token_slots.write(
                positions, torch.where(is_drawn, drawn, self.token_slots.read(positions))
            )
            last_token.copy_(torch.where(is_drawn, drawn.clamp(min=0), last_token))

    def logits_of_step(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [N, V] of some of the states [N, E] that `decode` returned."""
        if self.fused is not None:
            states = self._model.final_norm(states)
        return self._model.logits(states)

    def logits_of_prompts(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores [N, V] of some of the states [N, E] of `ComputedPrompts`."""
        return self._model.logits(hidden)

    def pack(self, plan: PrefillPlan) -> PackedPrompts:
        """The plan as it is sent to the device."""
        return PrefillShape.of(plan, self._block_size).packed(plan, self._block_size)

    def compute(self, plan: PrefillPlan) -> ComputedPrompts:
        """Compute the plan's chunks; `sample_prompts` takes what this returns."""
        return self.launch(self.pack(plan))

    def launch(self, prompts: PackedPrompts) -> ComputedPrompts:
        """Compute what `pack` has packed."""
        with span("copies"):
            inputs = prompts.shape.views(self._staging.to_device(prompts.numbers))
        with span("forward"):
            return ComputedPrompts(inputs, self.compute_prompts(inputs))

    def compute_prompts(self, inputs: PrefillInputs[torch.Tensor]) -> torch.Tensor:
        """Run all layers over the tokens; the last hidden state of each sequence to sample, [N, E].

        Launches device work only, and the same for any plan of one shape, so that it can be
        captured in a CUDA graph.
        """
        keys = self._layers[0][0]
        append = plan_append(keys, len(inputs.token_ids), inputs.block_index, inputs.block_offset)
        attends: dict[int | None, Attend] = {}
        for window in self._windows:
            attends[window] = plan_prefill(
                keys,
                len(inputs.token_ids),
                inputs.block_tables,
                inputs.context_lens,
                inputs.query_start_loc,
                window,
            )
        token_ids = inputs.token_ids
        if self._feeds_rows:
            rows = (-1 - token_ids).clamp(min=0).to(torch.int64)
            token_ids = torch.where(token_ids < 0, self.rows.fields.last_token[rows], token_ids)
        return self._forward(token_ids, inputs.positions, append, attends, inputs.sampled_tokens)

    def _advance_fed(self, inputs: PrefillInputs[torch.Tensor], count: int) -> None:
        """Move the fed rows among the first `count` that sample by a token, as `decode` does.

        The host feeds no row that has ended, but for ends that the device does not know either.
        Where a row has a draft, it is the host that moves it.
        """
        fields = self.rows.fields
        places = inputs.sampled_rows[:count].to(torch.int64)
        is_fed = inputs.token_ids[inputs.sampled_tokens[:count].to(torch.int64)] < 0
        # Copies of a row write the same.
        fields.position[places] = fields.position[places] + is_fed.to(torch.int32)
        fields.remaining[places] = fields.remaining[places] - is_fed.to(torch.int32)

    def sample_prompts(self, plan: PrefillPlan, computed: ComputedPrompts) -> bool:
        """Sample the first token of each prompt that the plan completes, and one for each row that
        is fed.

        The rows of those prompts must have been flushed before: their sampling parameters are
        read from there. Returns whether tokens were sampled, and so written into their slots.
        """
        if not plan.num_sampled:
            return False
        self.sample(computed, plan.num_sampled, is_drawn=draws_any(plan))
        return True

    def sample(self, computed: ComputedPrompts, count: int, *, is_drawn: bool) -> None:
        """As `sample_prompts`, of `count` tokens; `is_drawn` where some of them are drawn."""
        inputs = computed.inputs
        with span("sampling"):
            if computed.greedy is not None:
                computed.greedy.replay()
            else:
                self.sample_greedily(inputs, computed.hidden, count)
            if is_drawn:
                places = inputs.sampled_rows[:count].to(torch.int64)
                positions = inputs.sampled_positions[:count]
                drawn = self._draw(computed.hidden[:count], places, positions)
                draws = self.rows.fields.temperature[places] > 0
                greedy = self.token_slots.read_rows(places, positions)
                self._deliver(places, positions, torch.where(draws, drawn, greedy))

    def sample_greedily(
        self, inputs: PrefillInputs[torch.Tensor], hidden: torch.Tensor, count: int
    ) -> None:
        """The likeliest token of each that samples, of which there are 1 to `count`.

        Launches device work only, the same for any plan of one shape: for the first `count` places
        of `inputs`, of which those beyond the ones that sample repeat the first.
        """
        if self._feeds_rows:
            self._advance_fed(inputs, count)
        places = inputs.sampled_rows[:count].to(torch.int64)
        tokens = self._model.head.likeliest(hidden[:count])
        # Equal rows of a batch may differ in the last bit. Copies of a row must write the same
        # token, so take the first one's.
        positions = inputs.sampled_positions[:count]
        are_copies = places == places[0]
        if self.most_drafted:
            are_copies &= positions == positions[0]
        tokens = torch.where(are_copies, tokens[0], tokens)
        self._deliver(places, positions, tokens)

    def _forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        append: Append,
        attends: dict[int | None, Attend],
        kept: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run all layers over T tokens [T]; their last hidden states [T, E], or the kept ones'.

        `attends` has what layers of each window attend with.
        """

        def append_and_attend(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            keys, values, scales, scale, window = self._layers[layer]
            with span("append"):
                append(keys, values, key, value, scales)
            with span("attention"):
                out = query.new_empty(query.shape)
                return attends[window](query, keys, values, scale, out, scales)

        return self._model.forward(token_ids, positions, append_and_attend, kept)

    def _draw(
        self, hidden: torch.Tensor, places: slice | torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Tokens at `positions` int32 [N] of the rows `places`, drawn from states [N, E].

        Where memory does not suffice nothing is drawn, and the requests that sample end with an
        error; greedy ones go on. A capture fails instead, as its replays would never draw, and so
        does a rank of several, as the others have drawn.
        """
        rows = self.rows.fields
        try:
            return sample(
                self._model.logits(hidden),
                rows.temperature[places],
                rows.top_k[places],
                rows.top_p[places],
                rows.seed[places],
                positions,
            )
        except torch.OutOfMemoryError:
            is_captured = hidden.is_cuda and torch.cuda.is_current_stream_capturing()
            if is_captured or not self.is_alone:
                raise
            return torch.full_like(positions, INVALID_TOKEN)

    def _deliver(self, places: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        """Send the tokens of the rows `places` to the host, and feed them to the next step."""
        self.token_slots.write_rows(places, positions, tokens)
        self.rows.fields.last_token[places] = tokens.clamp(min=0)


def draws_any(plan: PrefillPlan) -> bool:
    """Whether a token after it is drawn."""
    is_drawn = plan.fed is not None and plan.fed.is_drawn
    return is_drawn or any(request.params.temperature > 0 for request in plan.completed)
