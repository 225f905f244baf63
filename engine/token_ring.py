"""Sampled tokens on their way back to the host, one or more steps late.

A step writes its tokens into the next slot of a ring in the host's own memory, which the device
reaches over the bus. So nothing is copied, and an event is all that a step's tokens cost the host;
a copy by a second stream, with an event before it and one behind, cost it 50 us more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine.device import mapped_memory

NUM_SLOTS = 16


class TokenRing:
    """Slots of one token a row, int32 [num_rows], written by the device and read by the host.

    Every `write` or `write_rows` is followed by exactly one `send`; the slot is counted on the
    device by the first and on the host by the second. At most `NUM_SLOTS - 1` sends may await
    their `receive`, or a slot would be overwritten before it was read.

    A kernel that writes tokens itself does what `write` does: it fills slot `next_slot` of `slots`
    and leaves `next_slot`, int64 [1], one further, modulo `num_slots`.
    """

    num_slots = NUM_SLOTS

    def __init__(self, num_rows: int, device: torch.device) -> None:
        on_host, self.slots = mapped_memory((NUM_SLOTS, num_rows), torch.int32, device)
        self._on_host = on_host.numpy()
        self.next_slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._num_sent = 0
        self._written: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._written = [torch.cuda.Event() for _ in range(NUM_SLOTS)]

    def write(self, tokens: torch.Tensor) -> None:
        """Put `tokens` int32 [N] into the next slot, for rows 0 to N - 1. Can be captured."""
        slots = self.slots[:, : len(tokens)]
        slots.index_copy_(0, self.next_slot, tokens[None])
        self._advance()

    def write_rows(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Put `tokens` int32 [N] into the next slot at `rows` int64 [N]."""
        self.slots.index_put_((self.next_slot.expand(len(rows)), rows), tokens)
        self._advance()

    def send(self) -> int:
        """Mark the slot just written; returns the ticket that `receive` takes."""
        ticket = self._num_sent
        self._num_sent += 1
        if self._written:
            self._written[ticket % NUM_SLOTS].record()
        return ticket

    def has_arrived(self, ticket: int) -> bool:
        """Whether `receive` would return without a wait."""
        return not self._written or self._written[ticket % NUM_SLOTS].query()

    def receive(self, ticket: int) -> npt.NDArray[np.int32]:
        """The tokens sent under `ticket`, int32 [num_rows]; waits for them. Valid until reused."""
        if self._written:
            self._written[ticket % NUM_SLOTS].synchronize()
        array: npt.NDArray[np.int32] = self._on_host[ticket % NUM_SLOTS]
        return array

    def rewind(self) -> None:
        """Forget writes that were never sent: those of warm-up steps."""
        self.next_slot.fill_(self._num_sent % NUM_SLOTS)

    def _advance(self) -> None:
        self.next_slot.add_(1).remainder_(NUM_SLOTS)
