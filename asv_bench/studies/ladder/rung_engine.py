"""An engine around a rung's host path: requests in, tokens out, one synchronous step at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asv_bench.errors import Refused
from asv_bench.studies.ladder.block_tables import LadderSequence, row_of
from asv_bench.studies.ladder.host_path import CacheShape, HostPath, Parts
from asv_bench.studies.ladder.integrity import check_blocks
from asv_bench.studies.ladder.model import seeded_model
from asv_bench.studies.ladder.prefixes import Prefixes
from engine import EngineConfig, SamplingParams, TokenEvent
from kernels import kv_append, paged_attention_decode, paged_attention_prefill


@dataclass(slots=True, eq=False)
class RungSession:
    """One request, from its submission on."""

    request_id: int
    prompt: list[int]
    max_new_tokens: int
    sequence: LadderSequence
    last_token: int = -1
    generated: int = 0


class RungEngine:
    """Greedy decoding with continuous batching, on the host path of one rung.

    Parameters
    ----------
    config
        As for the engine; read are the model, its device and dtype, the sizes of blocks, batches,
        prefills and the cache, and `prefix_cache`. `num_kv_blocks` counts the blocks of each layer.
    parts
        What the rung is made of.

    Raises
    ------
    Refused
        Where the sizes are left open.
    """

    def __init__(self, config: EngineConfig, parts: Parts) -> None:
        if config.num_kv_blocks is None or config.max_model_len is None:
            raise Refused("a rung needs num_kv_blocks and max_model_len; it chooses no sizes.")
        self.config = config
        self.model = seeded_model(
            str(config.model), device=config.device, dtype=config.dtype, seed=config.seed
        )
        self.model_config = sizes = self.model.sizes
        self.device = self.model.device
        self._block_size = config.block_size
        shape = CacheShape(
            sizes.num_layers,
            config.num_kv_blocks,
            sizes.num_heads,
            config.block_size,
            sizes.head_dim,
            config.max_batch_size,
            self._blocks_of(config.max_model_len),
        )
        with torch.inference_mode():
            self.path = HostPath(shape, parts, self.device, self.model.dtype)
        self._scale = sizes.head_dim**-0.5
        self._staged = torch.empty(0, dtype=torch.int32)
        self._prefixes = Prefixes(self.path) if config.prefix_cache else None
        self._waiting: deque[RungSession] = deque()
        self._running: list[RungSession] = []
        self._next_id = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether a `step` has anything left to do."""
        return bool(self._waiting or self._running)

    def submit(self, prompt: Sequence[int], params: SamplingParams | None = None) -> int:
        """Queue a request; returns its id.

        Raises
        ------
        Refused
            If the rung cannot run it: rungs decode greedily, to the last token.
        """
        params = params or SamplingParams()
        if params.temperature > 0 or not params.ignore_eos or params.stop_token_ids:
            raise Refused("a rung decodes greedily and to the last token; set ignore_eos.")
        length = len(prompt) + params.max_new_tokens
        wanted, there = self._blocks_wanted(length), self.path.blocks.max_blocks
        if not prompt or length > (self.config.max_model_len or 0) or wanted > there:
            raise Refused(
                f"the request takes {length} tokens, {len(prompt)} of them its prompt, and up to "
                f"{wanted} blocks; this rung runs requests with a prompt, of up to "
                f"{self.config.max_model_len} tokens and {there} blocks."
            )
        session = RungSession(
            self._next_id, list(prompt), params.max_new_tokens, self.path.new_sequence()
        )
        self._next_id += 1
        self._waiting.append(session)
        return session.request_id

    def step(self) -> list[TokenEvent]:
        """Admit and prefill who fits, decode one token of everybody else, and wait for both."""
        with torch.inference_mode():
            decoding = list(self._running)
            admitted = self._admit()
            events = self._prefill(admitted) if admitted else []
            if decoding:
                events += self._decode(decoding)
        for session in self._running:
            if session.generated == session.max_new_tokens:
                self.path.release(session.sequence)
        self._running = [one for one in self._running if one.generated < one.max_new_tokens]
        return events

    def check_integrity(self) -> None:
        """Check the KV metadata; see `integrity.check_blocks`."""
        holders = [session.sequence for session in self._running]
        if self._prefixes is not None:
            holders += self._prefixes.holders()
        check_blocks(self.path.blocks, holders)

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _blocks_wanted(self, tokens: int) -> int:
        """Blocks of each layer that a sequence may take, the copy of a shared one included."""
        return self._blocks_of(tokens) + (self._prefixes is not None)

    def _admit(self) -> list[RungSession]:
        """Move sessions from the queue to the batch, as many as surely fit to their ends."""
        admitted: list[RungSession] = []
        limit = self.config.prefill_max_batch_size or self.config.max_batch_size
        while self._waiting and len(admitted) < limit and self._has_room(self._waiting[0]):
            session = self._waiting.popleft()
            admitted.append(session)
            self._running.append(session)
        return admitted

    def _has_room(self, session: RungSession) -> bool:
        if len(self._running) == self.config.max_batch_size:
            return False
        # As if nothing were shared: what prefixes hold is on top, and is given up first.
        wanted = sum(
            self._blocks_wanted(len(one.prompt) + one.max_new_tokens)
            for one in (*self._running, session)
        )
        kept = 0 if self._prefixes is None else self._prefixes.num_blocks
        if wanted + kept > self.path.blocks.max_blocks and self._prefixes is not None:
            self._prefixes.clear()
        return wanted <= self.path.blocks.max_blocks

    def _prefill(self, admitted: list[RungSession]) -> list[TokenEvent]:
        """Compute the prompts of the admitted, all in one forward pass, and their first tokens."""
        if self._prefixes is not None:
            for session in admitted:
                session.sequence = self._prefixes.attach(session.prompt)
        starts = [session.sequence.length for session in admitted]
        counts = [len(one.prompt) - start for one, start in zip(admitted, starts, strict=True)]
        slots = [
            self.path.extend(session.sequence, count)
            for session, count in zip(admitted, counts, strict=True)
        ]
        layers = range(self.path.shape.num_layers)
        shape = self.path.table_shape
        # [L, T, 2] and [L, B, width]
        places = np.array([[slot for of in slots for slot in of[layer]] for layer in layers])
        tables = np.array([[row_of(one.sequence, k, shape) for one in admitted] for k in layers])
        new = list(zip(admitted, starts, strict=True))
        tokens, positions, blocks, offsets, table, contexts, query_starts, last = self._send(
            np.concatenate([one.prompt[start:] for one, start in new]),
            np.concatenate([np.arange(start, len(one.prompt)) for one, start in new]),
            places[:, :, 0],
            places[:, :, 1],
            tables,
            np.array([len(one.prompt) for one in admitted]),
            np.concatenate([[0], np.cumsum(counts)]),
            np.cumsum(counts) - 1,
        )

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self.path.layer(layer)
            kv_append(keys, values, key, value, blocks[layer], offsets[layer])
            return paged_attention_prefill(
                *(query, keys, values, table[layer], contexts, query_starts),
                scale=self._scale,
            )

        hidden = self.model.forward(tokens, positions, attend)
        events = self._take(admitted, hidden.index_select(0, last))
        if self._prefixes is not None:
            for session in admitted:
                self._prefixes.keep(session.prompt, session.sequence)
        return events

    def _decode(self, sessions: list[RungSession]) -> list[TokenEvent]:
        """One more token of each session."""
        sequences = [session.sequence for session in sessions]
        step = self.path.begin_step(sequences)
        inputs = self._send(
            np.array([session.last_token for session in sessions]),
            np.array([sequence.length - 1 for sequence in sequences]),
            np.array([sequence.length for sequence in sequences]),
        )
        tokens, positions, contexts = inputs

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.path.append(step, layer, key, value)
            keys, values = self.path.layer(layer)
            return paged_attention_decode(
                query, keys, values, step.tables[layer], contexts, scale=self._scale
            )

        return self._take(sessions, self.model.forward(tokens, positions, attend))

    def _take(self, sessions: list[RungSession], hidden: Tensor) -> list[TokenEvent]:
        """Choose the likeliest tokens, wait for them, and note them; hidden is [B, E]."""
        tokens = self.model.logits(hidden).argmax(dim=-1).tolist()
        now = time.perf_counter()
        events: list[TokenEvent] = []
        for session, token in zip(sessions, tokens, strict=True):
            index = session.generated
            session.last_token = token
            session.generated += 1
            is_last = session.generated == session.max_new_tokens
            events.append(
                TokenEvent(session.request_id, token, index, now, "length" if is_last else None)
            )
        return events

    def _send(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        """The arrays as int32 on the device, in one copy."""
        numbers = np.concatenate([array.ravel() for array in arrays]).astype(np.int32)
        if len(numbers) > len(self._staged):
            on_gpu = self.device.type == "cuda"
            self._staged = torch.empty(2 * len(numbers), dtype=torch.int32, pin_memory=on_gpu)
        # The copy before has run: each pass waits for its tokens.
        staged = self._staged[: len(numbers)]
        staged.numpy()[:] = numbers
        packed = staged.to(self.device, non_blocking=True)
        pieces = packed.split([array.size for array in arrays])
        return [piece.view(array.shape) for piece, array in zip(pieces, arrays, strict=True)]
