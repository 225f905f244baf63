"""Which waiting request is admitted next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.config import EngineConfig
from engine.requests.request import Request


class AdmissionPolicy(Protocol):
    """Chooses among waiting requests; the scheduler checks rows and blocks.

    Attributes
    ----------
    lookahead
        How many of the waiting requests it looks at.
    """

    lookahead: int

    def start_round(self) -> None:
        """Note that a step begins to admit."""

    def choose(self, waiting: Sequence[Request], budget: int, *, is_first: bool) -> int | None:
        """Index of the request to admit next, or None to admit no more in this step.

        Parameters
        ----------
        waiting
            The first requests of the queue, at least one.
        budget
            Prompt tokens that this step can still compute, at least one.
        is_first
            Whether the step computes no other prompt: someone must be chosen then, or the step
            would stand still.
        """


class FifoAdmission:
    """Strictly in order. A prompt longer than the budget begins and is continued next step."""

    lookahead = 1

    def start_round(self) -> None:
        """Nothing to note."""

    def choose(self, waiting: Sequence[Request], budget: int, *, is_first: bool) -> int | None:
        """The head of the queue."""
        return 0


class PackedAdmission:
    """The longest prompt within the look-ahead that still fits the step's budget whole.

    Filling the budget with whole prompts makes fewer, fuller prefill launches; every
    `force_fifo_every` rounds the queue's order is kept, so that a long prompt is not passed over
    for ever. Only steps that can admit somebody count as rounds. A head that was chosen for its
    place in the queue stays chosen until it finds room.
    """

    def __init__(self, lookahead: int, force_fifo_every: int) -> None:
        self.lookahead = lookahead
        self._force_fifo_every = force_fifo_every
        self._round = 0
        self._is_counted = False
        self._forced: Request | None = None

    def start_round(self) -> None:
        """Count the next choice as that of a new round."""
        self._is_counted = False

    def choose(self, waiting: Sequence[Request], budget: int, *, is_first: bool) -> int | None:
        """The best fit, else the head where the step would stand still, else None."""
        if not self._is_counted:
            self._round += 1
            self._is_counted = True
        if self._round % self._force_fifo_every == 0:
            self._forced = waiting[0]
        if waiting[0] is self._forced:
            return 0
        best, best_length = None, 0
        for index in range(min(self.lookahead, len(waiting))):
            length = waiting[index].num_known_tokens
            if best_length < length <= budget:
                best, best_length = index, length
        if best is None and is_first:
            return 0
        return best


def make_admission(config: EngineConfig) -> AdmissionPolicy:
    """The policy that `config.admission` names."""
    if config.admission == "pack":
        return PackedAdmission(config.admission_lookahead, config.force_fifo_every)
    return FifoAdmission()
