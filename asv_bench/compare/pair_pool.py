"""Measuring pairs on all devices of a source at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from asv_bench.measure.device_pool import DevicePool
from asv_bench.measure.samples import Absence, Pair, PairSource


@dataclass(frozen=True, slots=True)
class PairRequest:
    """A pair to measure: full hashes of its two commits, and the benchmarks."""

    base: str
    head: str
    benchmarks: tuple[str, ...]


NextPair = Callable[[Sequence[PairRequest]], PairRequest | None]
"""Given the pairs that are being measured, says which to begin now; None: none."""
TakePair = Callable[[PairRequest, "Future[Mapping[str, Pair]]"], None]
"""Called in the caller's thread with each pair that is measured, or has failed."""


class PairPool:
    """Hands out pairs to the devices of a source.

    Pairs alternate in order (base first, head first, head first, base first), on each device by
    itself, so that a drift of the machine favours neither commit.
    """

    def __init__(self, source: PairSource) -> None:
        self._source = source
        # Devices start in turn with either order, so that few pairs on many are balanced too.
        self._turns = {device: 2 * index for index, device in enumerate(source.devices)}

    def prepare(self, commits: Sequence[str]) -> dict[str, Mapping[str, Absence]]:
        """Prepare commits, as many at the same time as the source can; see `PairSource`."""
        left = deque(commits)
        done: dict[str, Future[Mapping[str, Absence]]] = {}
        at_once = len(commits) if self._source.prepares_together else 1
        pool = DevicePool(self._source, self._source.prepare, at_once)
        # A commit that cannot be measured is raised behind the pool, which would stop the source.
        pool.run(lambda *_: left.popleft() if left else None, done.__setitem__, left.appendleft)
        return {commit: done[commit].result() for commit in commits}

    def measure(self, next_pair: NextPair, take: TakePair) -> None:
        """Measure until `next_pair` wants nothing more and every pair is taken.

        The pair of a device that is lost is not taken: `next_pair` is asked for it again.
        """
        pool = DevicePool(self._source, self._pair)
        pool.run(lambda device, running: next_pair(running), take)

    def _pair(self, request: PairRequest, device: str) -> Mapping[str, Pair]:
        # A device measures one pair at a time, so only one thread is at its turns.
        head_first = self._turns[device] % 4 in (1, 2)
        self._turns[device] += 1
        return self._source.pair(
            request.base,
            request.head,
            head_first=head_first,
            benchmarks=request.benchmarks,
            device=device,
        )
