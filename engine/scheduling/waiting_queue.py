"""The requests that wait for a row and for blocks, in their order."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from engine.requests.request import Request


class WaitingQueue:
    """A queue that any request can leave at once, however many wait."""

    def __init__(self) -> None:
        self._requests: OrderedDict[int, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def append(self, request: Request) -> None:
        """Let a request wait behind all others."""
        self._requests[request.request_id] = request

    def prepend(self, request: Request) -> None:
        """Let a request wait before all others."""
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def first(self, count: int) -> list[Request]:
        """The first `count` of them, or all where there are fewer."""
        return list(islice(self._requests.values(), count))

    def remove(self, request: Request) -> None:
        """Take out a request that waits."""
        del self._requests[request.request_id]
