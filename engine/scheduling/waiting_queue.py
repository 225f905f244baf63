"""The requests that wait for a row and for blocks, in their order."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from engine.requests.request import Request


class WaitingQueue(OrderedDict[int, Request]):
    """A queue, by request id, that any request can leave at once, however many wait.

    It is a dictionary itself, so that a step which finds nobody waiting calls nothing of Python's.
    """

    def append(self, request: Request) -> None:
        """Let a request wait behind all others."""
        self[request.request_id] = request

    def prepend(self, request: Request) -> None:
        """Let a request wait before all others."""
        self[request.request_id] = request
        self.move_to_end(request.request_id, last=False)

    def first(self, count: int) -> list[Request]:
        """The first `count` of them, or all where there are fewer."""
        return list(islice(self.values(), count))

    def remove(self, request: Request) -> None:
        """Take out a request that waits."""
        del self[request.request_id]
