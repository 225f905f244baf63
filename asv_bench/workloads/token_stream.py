"""A reader of token streams that takes a few tokens of a request at a time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from asv_bench.stats.percentiles import Summary, summarize

if TYPE_CHECKING:
    from engine import TokenEvent


class TokenStream:
    """Collects tokens of each request and delivers them `interval` at a time, or when it ends.

    `to_text` turns the ids of a delivery into text, as a server would; None: ids are delivered.
    """

    def __init__(
        self, interval: int = 1, to_text: Callable[[list[int]], str] | None = None
    ) -> None:
        self._interval = interval
        self._to_text = to_text
        self._pending: dict[int, list[int]] = {}
        self._delivered_s: dict[int, list[float]] = {}

    def receive(self, events: Sequence[TokenEvent]) -> None:
        """Take the events of one step and deliver what is due."""
        for event in events:
            pending = self._pending.setdefault(event.request_id, [])
            if event.token_id is not None:
                pending.append(event.token_id)
            finished = event.finish_reason is not None
            if pending and (finished or len(pending) >= self._interval):
                self._deliver(event.request_id, pending)
            if finished:
                del self._pending[event.request_id]

    def _deliver(self, request_id: int, token_ids: list[int]) -> None:
        if self._to_text is not None:
            self._to_text(token_ids)
        self._delivered_s.setdefault(request_id, []).append(time.perf_counter())
        token_ids.clear()

    @property
    def deliveries(self) -> int:
        """Deliveries made so far, all requests."""
        return sum(len(moments) for moments in self._delivered_s.values())

    def gaps_ms(self) -> Summary:
        """Gaps between consecutive deliveries of a request: not ITL, which is per token."""
        return summarize(
            [
                1e3 * (later - earlier)
                for moments in self._delivered_s.values()
                for earlier, later in itertools.pairwise(moments)
            ]
        )
