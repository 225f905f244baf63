"""Who is given which tokens: each open run those of its own requests, and `step` all others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.requests.token_batch import TokenBatch


@dataclass(slots=True, eq=False)
class Inbox:
    """What one run has submitted and not yet been told.

    Attributes
    ----------
    unfinished
        Ids of its requests whose ends have not been delivered.
    batches
        Tokens delivered and not yet taken, in order of arrival.
    """

    unfinished: set[int] = field(default_factory=set)
    batches: deque[TokenBatch] = field(default_factory=deque)

    @property
    def is_open(self) -> bool:
        """Whether there is or will be something to take."""
        return bool(self.unfinished or self.batches)


class Delivery:
    """Deals out what arrives, whoever drives the engine: several runs may be open at once.

    Attributes
    ----------
    unclaimed
        Tokens of requests that no open run has submitted.
    """

    def __init__(self) -> None:
        self.unclaimed: list[TokenBatch] = []
        self._inboxes: list[Inbox] = []

    def open(self) -> Inbox:
        """An inbox for a new run, which adds its requests to `unfinished` as it submits them."""
        inbox = Inbox()
        self._inboxes.append(inbox)
        return inbox

    def close(self, inbox: Inbox) -> None:
        """End a run; what it has not taken is dropped."""
        self._inboxes.remove(inbox)

    def deal(self, arrived: Iterable[TokenBatch]) -> None:
        """Give every token to the run that waits for it."""
        for batch in arrived:
            rest = batch
            for inbox in self._inboxes:
                own, rest = rest.split(inbox.unfinished)
                if len(own):
                    inbox.unfinished.difference_update(own.ended_ids)
                    inbox.batches.append(own)
                if not len(rest):
                    break
            else:
                self.unclaimed.append(rest)

    def take_unclaimed(self) -> list[TokenBatch]:
        """What came for no run since the last call, in order."""
        unclaimed, self.unclaimed = self.unclaimed, []
        return unclaimed
