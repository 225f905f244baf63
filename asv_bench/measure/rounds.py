"""What a round of lives consists of, what it tells, and which device measures it.

A cell is what `RoundSource` can measure by name: a commit, a label, or a commit under a label. A
round tells a set of contrasts, each between some cells taken as its base and some as its head.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TypeVar

from asv_bench.errors import MeasurementFailed
from asv_bench.measure.samples import Absence, DeviceLost, Metric, Pair, Reading, Round, RoundSource
from asv_bench.process.gpu import why_discarded

Request = TypeVar("Request")
Result = TypeVar("Result")
Contrast = tuple[tuple[int, ...], tuple[int, ...]]
"""Places of the cells that are its base, and of those that are its head."""


@dataclass(frozen=True, slots=True)
class Design:
    """The cells of a round, by their places, and the contrasts between them.

    All contrasts of a metric come from the same lives. A drift of the machine favours no cell: each
    round is followed by one in the opposite order.
    """

    cells: tuple[str, ...]
    contrasts: Mapping[str, Contrast]  # by name; "" where there is one alone
    orders: tuple[tuple[int, ...], ...]
    """Two rounds follow the first, one of them backwards, two the next."""
    ends: tuple[str, str]  # what a mean over several cells is called, as a base and as a head
    turns: tuple[int, ...] = (0,)
    """When each of the `tested` is tested (`stats.families.rejected_in_turns`). Where all of the
    turn before differ, at most one of a turn can be without any difference."""
    gate: Contrast | None = None
    """What the first contrasts add up to: tested before them, and no answer itself."""
    noise: str | None = None
    """The contrast between single lives of two cells, whose seams tell the noise of the machine;
    None where all contrasts are means over cells, which are less noisy."""
    is_row: bool = False
    """Whether each contrast is worth measuring without the others; all have the first cell."""

    @property
    def tested(self) -> dict[str, Contrast]:
        """The contrasts, behind the gate."""
        return {**({} if self.gate is None else {GATE: self.gate}), **self.contrasts}

    def named(self, metrics: Iterable[Metric], *, with_gate: bool = False) -> dict[str, Metric]:
        """By the names of all contrasts of metrics, in their order, the metrics."""
        contrasts = self.tested if with_gate else self.contrasts
        return {named(metric.name, one): metric for metric in metrics for one in contrasts}

    def order(self, number: int) -> tuple[int, ...]:
        """The places in a device's round of this number, counted from 0."""
        order = self.orders[number // 2 % len(self.orders)]
        return order[::-1] if number % 4 in (1, 2) else order

    def base_and_head(self, contrast: str) -> tuple[str, str]:
        """What a contrast is between, by names of cells or of the ends."""
        base, head = (
            self.cells[places[0]] if len(places) == 1 else end
            for places, end in zip(self.tested[contrast], self.ends, strict=True)
        )
        return base, head

    def pairs(self, metrics: Iterable[Metric], measured: Round) -> dict[str, Pair]:
        """What a round tells, by the names of contrasts of the metrics that all its lives gave."""
        return {
            named(metric.name, contrast): self._pair(metric, contrast, measured)
            for metric in metrics
            if all(metric.name in readings for readings in measured.readings)
            for contrast in self.tested
        }

    def _pair(self, metric: Metric, contrast: str, measured: Round) -> Pair:
        readings = [of_cell[metric.name] for of_cell in measured.readings]
        before, after = self.tested[contrast]
        reasons = (why_discarded(readings[a].gpu, readings[b].gpu) for a in before for b in after)
        base, head = (
            _together([readings[place] for place in places], name, named(metric.name, contrast))
            for places, name in zip((before, after), self.base_and_head(contrast), strict=True)
        )
        return Pair(
            base,
            head,
            head_first=measured.order.index(after[0]) < measured.order.index(before[0]),
            discarded=next((reason for reason in reasons if reason), None),
            higher_is_better=metric.better == "higher",
        )


def named(metric: str, contrast: str) -> str:
    """The name under which a contrast of a metric is judged."""
    return f"{metric} {contrast}" if contrast else metric


def _together(readings: Sequence[Reading], commit: str, name: str) -> Reading:
    """The geometric mean of the readings of some cells, of a benchmark of this name."""
    if len(readings) == 1:
        return replace(readings[0], benchmark=name)
    for reading in readings:
        reading.require_ratio()
    mean = math.exp(sum(math.log(one.value) for one in readings) / len(readings))
    samples = tuple(sample for one in readings for sample in one.samples)
    return replace(readings[0], commit=commit, benchmark=name, value=mean, samples=samples)


def two_cells(base: str, head: str) -> Design:
    """Pairs of a base and a head."""
    return Design((base, head), {"": ((0,), (1,))}, ((0, 1),), (base, head), noise="")


def in_a_row(base: str, heads: Mapping[str, str]) -> Design:
    """Rounds of a base and of others, by the names of their contrasts with it.

    Every cell meets every place equally often, and follows every other one (Williams 1949).
    """
    cells = (base, *heads.values())
    zigzag = [(place + 1) // 2 * (-1) ** (place + 1) for place in range(len(cells))]
    orders = tuple(
        tuple((place + turn) % len(cells) for place in zigzag) for turn in range(len(cells))
    )
    contrasts = {name: ((0,), (place,)) for place, name in enumerate(heads, 1)}
    return Design(
        cells, contrasts, orders, (base, base), noise=next(iter(heads), None), is_row=True
    )


def three_cells(cells: tuple[str, str, str], names: tuple[str, str, str]) -> Design:
    """Rounds of three commits that are called so, all of which are compared at the same moments.

    Contrasts are the first step, the whole way and the second step, named by two, the head first.
    """
    base, between, head = names
    contrasts: dict[str, Contrast] = {
        f"{between}/{base}": ((0,), (1,)),
        f"{head}/{base}": ((0,), (2,)),
        f"{head}/{between}": ((1,), (2,)),
    }
    # Each with its opposite: all six orders, so that every cell has every place.
    orders = (0, 1, 2), (1, 0, 2), (0, 2, 1)
    ends = cells[0], cells[2]
    # A head cannot be like two commits that differ.
    return Design(cells, contrasts, orders, ends, turns=(0, 1, 1), noise=f"{head}/{base}")


GATE = "end to end"
BY_COMMITS, BY_LABELS, BY_BOTH = "by commits", "by labels", "by both together"


def four_cells(commits: tuple[str, str], cells: Sequence[str]) -> Design:
    """Rounds of two commits under two labels; cells are the base's, old first, then the head's.

    What the commits do is the mean over both labels, what the labels do the mean over both commits;
    what both do together is how far the one depends on the other. From end to end the commits and
    the labels add up.
    """
    contrasts: dict[str, Contrast] = {
        BY_COMMITS: ((0, 1), (2, 3)),
        BY_LABELS: ((0, 2), (1, 3)),
        BY_BOTH: ((1, 2), (0, 3)),
    }
    order, gate = (0, 1, 3, 2), ((0,), (3,))
    return Design(tuple(cells), contrasts, (order,), commits, turns=(0, 1, 1, 2), gate=gate)


def hand_out(
    source: RoundSource,
    work: Callable[[Request, str], Result],
    next_request: Callable[[str, Sequence[Request]], Request | None],
    take: Callable[[Request, Future[Result]], None],
    put_back: Callable[[Request], None] = lambda request: None,
) -> None:
    """Give each device of a source its next piece of work as soon as it is idle.

    It ends when no device is given anything more, and everything is taken. `work` does one piece
    on a device, in a thread of its own. `next_request` is given an idle device and what is being
    done, and says what the device begins; None: nothing. `take` gets each piece that is done, or
    has failed, in the caller's thread; `put_back` one whose device was lost. Raises
    MeasurementFailed if all are lost.
    """
    running: dict[Future[Result], tuple[str, Request]] = {}
    idle = list(source.devices)
    if not idle:
        raise MeasurementFailed("there is nothing left to measure on.")
    with ThreadPoolExecutor(len(idle)) as pool:
        try:
            while True:
                for device in list(idle):
                    request = next_request(device, [one for _, one in running.values()])
                    if request is not None:
                        idle.remove(device)
                        running[pool.submit(work, request, device)] = device, request
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    device, request = running.pop(future)
                    error = future.exception()
                    if isinstance(error, DeviceLost):
                        put_back(request)
                        if not (running or idle):
                            raise error
                    else:
                        idle.append(device)
                        take(request, future)
        except BaseException:
            # The threads wait for processes, and leaving the pool waits for the threads.
            source.stop()
            raise


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """A round to measure, and the metrics of it."""

    design: Design
    metrics: tuple[str, ...]


class Schedule:
    """Hands out rounds to the devices of a source, on each in orders of its own (`Design`)."""

    def __init__(self, source: RoundSource) -> None:
        self._source = source
        # Devices start in turn with either order, so that few rounds on many are balanced too.
        self._numbers = {device: 2 * index for index, device in enumerate(source.devices)}

    def prepare(self, cells: Sequence[str]) -> dict[str, Future[Mapping[str, Absence]]]:
        """Prepare cells, on each device one at a time; what came of each, see `RoundSource`."""
        left = deque(dict.fromkeys(cells))
        done: dict[str, Future[Mapping[str, Absence]]] = {}
        # A cell that cannot be measured is raised by its result: in there it would stop the source.
        hand_out(
            self._source,
            self._source.prepare,
            lambda *_: left.popleft() if left else None,
            done.__setitem__,
            left.appendleft,
        )
        return {cell: done[cell] for cell in dict.fromkeys(cells)}

    def measure(
        self,
        next_round: Callable[[Sequence[RoundRequest]], RoundRequest | None],
        take: Callable[[RoundRequest, Future[Round]], None],
    ) -> None:
        """Measure until `next_round`, given what is being measured, wants nothing more.

        `take` gets each round that is measured, or has failed, in the caller's thread. That of a
        device that is lost is not taken: `next_round` is asked for it again.
        """
        hand_out(self._source, self._round, lambda device, running: next_round(running), take)

    def _round(self, request: RoundRequest, device: str) -> Round:
        # A device measures one round at a time, so only one thread counts its rounds.
        number = self._numbers[device]
        self._numbers[device] += 1
        order = request.design.order(number)
        return self._source.round(request.design.cells, order, request.metrics, device)
