"""Delivering tokens: each open run gets those of its own requests, `step` all others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from engine.requests.run import Run
from engine.requests.token_batch import TokenBatch


class Delivery:
    """Deals out tokens as they arrive; several runs may be open at once.

    Attributes
    ----------
    unclaimed
        Tokens of requests that no open run has submitted.
    """

    def __init__(self) -> None:
        self.unclaimed: list[TokenBatch] = []
        self._runs: dict[int, Run] = {}

    def expect(self, request_id: int, run: Run) -> None:
        """Give the request's tokens to the run from now on."""
        run.unfinished.add(request_id)
        self._runs[request_id] = run

    def close(self, run: Run) -> None:
        """End a run; events that it has not taken are dropped."""
        run.is_closed = True
        run.waiting.clear()
        for request_id in run.unfinished:
            del self._runs[request_id]
        run.unfinished.clear()
        run.events.clear()

    def deal(self, arrived: Iterable[TokenBatch]) -> None:
        """Give every token to the run that waits for it."""
        for batch in arrived:
            if not self._runs:
                self.unclaimed.append(batch)
                continue
            runs = [*map(self._runs.get, batch.ids)]
            # Most often all tokens are for one run, and no Python function is called for each.
            if runs.count(runs[0]) < len(runs):
                self._share_out(batch, runs)
            elif runs[0] is None:
                self.unclaimed.append(batch)
            elif runs[0].keeps_events:
                runs[0].events.extend(batch.events())
            for request_id in batch.ended_ids:
                run = self._runs.pop(request_id, None)
                if run is not None:
                    run.unfinished.remove(request_id)

    def take_unclaimed(self) -> list[TokenBatch]:
        """Tokens that came for no run since the last call, in order."""
        unclaimed, self.unclaimed = self.unclaimed, []
        return unclaimed

    def _share_out(self, batch: TokenBatch, runs: list[Run | None]) -> None:
        """Give each token of a batch to its run; None stands for `unclaimed`."""
        for event, run in zip(batch.events(), runs, strict=True):
            if run is not None and run.keeps_events:
                run.events.append(event)
        if None in runs:
            self.unclaimed.append(batch.only(np.array([run is None for run in runs])))
