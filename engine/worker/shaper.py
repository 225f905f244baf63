"""Chooses the tokens of requests that ask more of their logits, and reports probabilities.

A step chooses the likeliest tokens of all rows, and draws those of the rows that sample. For rows
that ask for penalties, `min_p`, a least length or logprobs, logits are made again afterwards and
chosen from anew. So a step without such rows launches what it always did, captured or not, and the
tokens of the other rows are the same beside them.

What a row has said so far is kept on the device, in a slot of its own: the host launches steps
before it has seen the tokens of the last ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.requests.request import Request, Shaping, TokenLogprobs
from engine.scheduling.rows import RowIndex, Rows
from engine.transport.device_rows import DeviceRows
from engine.transport.logprob_slots import LogprobSlots
from engine.transport.staging import StagingBuffers
from engine.transport.token_slots import TokenSlots
from engine.worker.ranges import span
from engine.worker.sampler import INVALID_TOKEN, sample
from kernels.sampling.adjust import ENDS, IN_PROMPT, above_min_p, penalized, without_ends

Logits = Callable[[torch.Tensor], torch.Tensor]

_PARAMETERS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "min_p")


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that are shaped together, M of them.

    `rows` and `changes` are the host's; `places` int64 [M] those rows on the device, `slots` int64
    [M] where their states are, and `adjusts` bool [M] which of them choose anew. The others only
    report.
    """

    rows: RowIndex
    changes: int
    places: torch.Tensor
    slots: torch.Tensor
    adjusts: torch.Tensor
    counts: bool
    has_min_p: bool
    is_adjusted: bool
    num_top: int | None


class Shaper:
    """The second path of sampling, for the rows that ask for it.

    Parameters
    ----------
    vocab_size
        V, tokens that have logits.
    held, rows
        The host's and the device's rows.
    token_slots, staging
        Where tokens go, and how small arrays reach the device.
    """

    def __init__(
        self,
        vocab_size: int,
        held: Rows,
        rows: DeviceRows,
        token_slots: TokenSlots,
        staging: StagingBuffers,
    ) -> None:
        self._vocab_size = vocab_size
        self._held = held
        self._rows = rows
        self._token_slots = token_slots
        self._staging = staging
        self._group: _Group | None = None
        self._owners: list[Request | None] = []
        # Of each slot; made when the first request asks.
        self._parameters = torch.empty(0, len(_PARAMETERS), device=rows.device)
        self._least_length = torch.empty(0, dtype=torch.int32, device=rows.device)
        self._words: torch.Tensor | None = None
        self._logprob_slots: LogprobSlots | None = None

    def choose(
        self,
        rows: RowIndex,
        logits: Logits,
        states: torch.Tensor,
        places: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Choose the last tokens of `rows` [M] again, which are on the device already.

        Parameters
        ----------
        logits
            Scores [M, V] of some of the states.
        states
            [N, E], from which the tokens were chosen.
        places
            int64 [M], which of them are those of the rows; None: those at the rows.
        """
        with span("sampling"):
            try:
                group = self._group_of(rows)
                at = group.places if places is None else self._staging.to_device(places)
                self._choose(group, logits(states[at]).float())
            except torch.OutOfMemoryError:
                self._group = None
                self._fail(rows)

    def reported(
        self, rows: RowIndex, positions: npt.NDArray[np.int32]
    ) -> list[TokenLogprobs | None]:
        """What was reported of the tokens at `positions` [M] of `rows` [M], whose step has run."""
        if self._logprob_slots is None:
            return [None] * len(rows)
        asked = [self._num_reported(self._held.holder(row)) for row in rows.tolist()]
        return self._logprob_slots.read(rows, positions, asked)

    def _num_reported(self, request: Request) -> int | None:
        wanted = request.params.logprobs
        return None if wanted is None else min(wanted, self._vocab_size)

    def _choose(self, group: _Group, raw: torch.Tensor) -> None:
        fields, places = self._rows.fields, group.places
        positions = fields.position[places]
        tokens = self._token_slots.read_rows(places, positions)
        if group.is_adjusted:
            temperature = fields.temperature[places]
            chosen = sample(
                self._adjusted(group, raw, temperature, positions),
                temperature,
                fields.top_k[places],
                fields.top_p[places],
                fields.seed[places],
                positions,
            )
            tokens = torch.where(group.adjusts, chosen, tokens)
            self._token_slots.write_rows(places, positions, tokens)
            fields.last_token[places] = tokens.clamp(min=0)
        if group.counts and self._words is not None:
            # No two rows share a slot.
            self._words[group.slots, tokens.clamp(min=0).to(torch.int64)] += 1
        if group.num_top is not None:
            if self._logprob_slots is None:
                self._logprob_slots = LogprobSlots(self._rows.num_rows, self._rows.device)
            self._logprob_slots.write(raw, tokens, places, positions, group.num_top)

    def _adjusted(
        self,
        group: _Group,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        presence, frequency, repetition, min_p = self._parameters[group.slots].unbind(1)
        if group.counts and self._words is not None:
            words = self._words[group.slots]
            logits = penalized(logits, words, presence, frequency, repetition)
            is_too_short = positions < self._least_length[group.slots]
            logits = without_ends(logits, words, is_too_short)
        if group.has_min_p:
            logits = above_min_p(logits, min_p, temperature)
        return logits

    def _fail(self, rows: RowIndex) -> None:
        """Let the requests of the rows end with an error: their tokens could not be chosen."""
        places = self._staging.to_device(rows.astype(np.int64))
        positions = self._rows.fields.position[places]
        invalid = torch.full_like(positions, INVALID_TOKEN)
        self._token_slots.write_rows(places, positions, invalid)

    def _group_of(self, rows: RowIndex) -> _Group:
        """The group of the rows: the last one, where they and their holders are the same."""
        group = self._group
        changes = self._held.changes
        if group is not None and group.changes == changes and np.array_equal(group.rows, rows):
            return group
        requests = [self._held.holder(row) for row in rows.tolist()]
        shapings = [_shaping(request) for request in requests]
        slots = [
            self._started(request, shaping) if shaping.slot is None else shaping.slot
            for request, shaping in zip(requests, shapings, strict=True)
        ]
        packed = np.empty((3, len(rows)), np.int64)
        packed[0] = rows
        packed[1] = slots
        packed[2] = [shaping.adjusts for shaping in shapings]
        # Staged memory is used again, and a group serves many steps.
        on_device = self._staging.to_device(packed).clone()
        asked = [one.params.logprobs for one in shapings if one.params.logprobs is not None]
        self._group = _Group(
            rows,
            changes,
            on_device[0],
            on_device[1],
            on_device[2].to(torch.bool),
            counts=any(shaping.counts for shaping in shapings),
            has_min_p=any(shaping.params.min_p > 0 for shaping in shapings),
            is_adjusted=any(shaping.adjusts for shaping in shapings),
            num_top=max(asked, default=None),
        )
        return self._group

    def _started(self, request: Request, shaping: Shaping) -> int:
        """The slot that a request is given, with what it has said already."""
        slot = self._free_slot()
        params = shaping.params
        numbers = np.array([getattr(params, name) for name in _PARAMETERS], np.float32)
        self._staging.copy(numbers, self._parameters[slot])
        self._least_length[slot].fill_(shaping.least_length)
        if shaping.counts:
            if self._words is None:
                shape = (len(self._owners), self._vocab_size)
                self._words = torch.zeros(shape, dtype=torch.int32, device=self._rows.device)
            self._fill_words(self._words[slot], request, shaping)
        self._owners[slot] = request
        shaping.slot = slot
        return slot

    def _fill_words(self, words: torch.Tensor, request: Request, shaping: Shaping) -> None:
        """Of what is known of the request; its words [V]."""
        words.zero_()
        if len(request.generated):
            said, times = np.unique(request.generated, return_counts=True)
            places = self._staging.to_device(said.astype(np.int64))
            words[places] = self._staging.to_device(times.astype(np.int32))
        for token_ids, mark in (
            (np.unique(request.prompt), IN_PROMPT),
            (np.array(shaping.stop_ids, np.int64), ENDS),
        ):
            if len(token_ids):
                words[self._staging.to_device(token_ids.astype(np.int64))] |= mark

    def _free_slot(self) -> int:
        """A slot that no running request has; more are made where there is none.

        A request that was sent away to be computed again keeps its slot until another needs it.
        """
        for slot, owner in enumerate(self._owners):
            if owner is None or owner.row is None:
                if owner is not None:
                    _shaping(owner).slot = None
                    self._owners[slot] = None
                return slot
        count = len(self._owners)
        more = min(max(count, 4), self._rows.num_rows - count)
        self._parameters = _longer(self._parameters, more)
        self._least_length = _longer(self._least_length, more)
        if self._words is not None:
            self._words = _longer(self._words, more)
        self._owners += [None] * more
        return count


def _shaping(request: Request) -> Shaping:
    if request.shaping is None:
        raise ValueError(f"Request {request.request_id} asks nothing of its logits.")
    return request.shaping


def _longer(tensor: torch.Tensor, more: int) -> torch.Tensor:
    return torch.cat([tensor, tensor.new_zeros(more, *tensor.shape[1:])])
