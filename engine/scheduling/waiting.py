"""The requests that wait for a row and for blocks, and which of them found no room."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from engine.kv.blocks import KVBlockManager
from engine.kv.prefix_cache import PrefixCache
from engine.requests.request import Request


class WaitingQueue(OrderedDict[int, Request]):
    """A queue, by request id, that any request can leave at once, however many wait.

    It is a dictionary itself, so that a step with nobody waiting calls no Python function.
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


class BlockedRequests:
    """Remembers which requests found no room, so that nobody looks again before there can be more.

    Looking takes longer the longer the prompt, and until a request ends the others only take more
    blocks.

    Parameters
    ----------
    blocks, cache
        Where room is looked for; no cache is None.
    """

    def __init__(self, blocks: KVBlockManager, cache: PrefixCache | None) -> None:
        self._blocks = blocks
        self._cache = cache
        # The blocks that had been promised to others when each found no room.
        self._promised: dict[Request, int] = {}
        self._noted_at = self._changes()

    def note(self, request: Request, num_promised: int) -> None:
        """Note that there was no room while so many blocks were promised to others."""
        changes = self._changes()
        if changes != self._noted_at:
            self._promised.clear()
            self._noted_at = changes
        self._promised[request] = num_promised

    def includes(self, request: Request, num_promised: int) -> bool:
        """Whether `request` would find no more room now than it did before."""
        promised = self._promised.get(request)
        if promised is None or num_promised < promised:
            return False
        return self._noted_at == self._changes()

    def _changes(self) -> tuple[int, int]:
        """Counts of what makes room: blocks lose holders, the cache has more to match."""
        num_insertions = 0 if self._cache is None else self._cache.num_insertions
        return self._blocks.num_releases, num_insertions
