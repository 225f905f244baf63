"""Sampled tokens on their way back to the host, one or more steps late.

A step writes its tokens into the host's own memory, which the device reaches over the bus. So
nothing is copied, and an event is all that a step's tokens cost the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.transport.mapped_memory import mapped_memory

NUM_SLOTS = 16


class TokenSlots:
    """Slots of one token a row, int32 [NUM_SLOTS, num_rows], written by the device.

    A token that stands at position p of its sequence goes into slot p modulo `NUM_SLOTS`. A row
    takes one token a launch, so that it is read in time while fewer than `NUM_SLOTS` launches await
    their `receive`. Where no other launch awaits its own, a row may take `NUM_SLOTS`.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        on_host, self.slots = mapped_memory((NUM_SLOTS, num_rows), torch.int32, device)
        self._on_host = on_host.numpy()
        self._num_sent = 0
        self._written: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._written = [torch.cuda.Event() for _ in range(NUM_SLOTS)]

    def write(self, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        """Put `tokens` int32 [N] at `positions` int32 [N] of rows 0 to N - 1. Can be captured."""
        slots = positions.remainder(NUM_SLOTS).to(torch.int64)
        self.slots[:, : len(tokens)].scatter_(0, slots[None], tokens[None])

    def read(self, positions: torch.Tensor) -> torch.Tensor:
        """What stands at `positions` int32 [N] of rows 0 to N - 1, int32 [N], for the device."""
        slots = positions.remainder(NUM_SLOTS).to(torch.int64)
        return self.slots[:, : len(positions)].gather(0, slots[None]).squeeze(0)

    def write_rows(self, rows: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        """Put `tokens` int32 [N] at `positions` int32 [N] of `rows` int64 [N]."""
        self.slots.index_put_((positions.remainder(NUM_SLOTS).to(torch.int64), rows), tokens)

    def read_rows(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """What stands at `positions` int32 [N] of `rows` int64 [N], int32 [N], for the device."""
        return self.slots[positions.remainder(NUM_SLOTS).to(torch.int64), rows]

    def send(self) -> int:
        """Mark what has been launched so far; returns the ticket that `receive` takes."""
        ticket = self._num_sent
        self._num_sent += 1
        if self._written:
            self._written[ticket % NUM_SLOTS].record()
        return ticket

    def has_arrived(self, ticket: int) -> bool:
        """Whether `receive` would return without a wait."""
        return not self._written or self._written[ticket % NUM_SLOTS].query()

    def receive(
        self, ticket: int, rows: npt.NDArray[np.intp], positions: npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.int32]:
        """The tokens at `positions` [N] of `rows` [N], int32 [N]; waits for what `send` marked."""
        if self._written:
            self._written[ticket % NUM_SLOTS].synchronize()
        tokens: npt.NDArray[np.int32] = self._on_host[positions % NUM_SLOTS, rows]
        return tokens
