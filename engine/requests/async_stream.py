"""The events of requests, for asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from engine.requests.request import TokenEvent


class AsyncStream(AsyncIterator[TokenEvent]):
    """The events of what was submitted at once; `AsyncEngine.submit` makes it.

    Parameters
    ----------
    abort
        Aborts requests by their ids, soon, and from any thread.

    Attributes
    ----------
    request_ids
        Of its requests, in order.
    num_open
        Requests of which more will come.
    """

    def __init__(self, abort: Callable[[Sequence[int]], None]) -> None:
        self._abort = abort
        self._events: deque[TokenEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self.request_ids = range(0)
        self.num_open = 0

    async def __aenter__(self) -> AsyncStream:
        """Itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    async def __anext__(self) -> TokenEvent:
        """The next event.

        Raises
        ------
        EngineStoppedError
            The engine was closed.
        BaseException
            What a step failed with.
        """
        if not await self._have_come():
            raise StopAsyncIteration
        return self._events.popleft()

    async def take(self) -> list[TokenEvent]:
        """All events that have come since the last call, at least one; none at the end.

        Raises
        ------
        EngineStoppedError, BaseException
            As the next event.
        """
        await self._have_come()
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        """Abort what has not finished; what has not been taken is dropped."""
        self._events.clear()
        if self.num_open and self._error is None:
            self.num_open = 0
            self._abort(self.request_ids)
            self._wake()

    def __del__(self) -> None:
        """Close what is dropped."""
        self.close()

    def put(self, event: TokenEvent) -> None:
        """Add an event; after the stream was closed there is nobody to take it."""
        if not self.num_open:
            return
        self._events.append(event)
        if event.finish_reason is not None:
            self.num_open -= 1
        self._wake()

    def fail(self, error: BaseException) -> None:
        """End with an error, once what has come is taken."""
        self.num_open = 0
        self._error = error
        self._wake()

    async def _have_come(self) -> bool:
        """Wait for an event; False where none comes any more."""
        while not self._events:
            if self._error is not None:
                raise self._error
            if not self.num_open:
                return False
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
