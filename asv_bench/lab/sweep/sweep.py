"""Decode attention and KV append at every batch size: time, bytes, and where more takes less."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.table import Table

from asv_bench.output.console import add_figure_columns
from asv_bench.output.tables import MISSING

Kind = Literal["attention", "attention, append", "append"]

SHOWN = (1, 8, 32, 64, 128, 256)
"""Batch sizes that the table shows."""


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel call of a decode step: what it does, for which heads, at which context.

    Attributes
    ----------
    kind
        "attention" reads `context` cached tokens of each sequence; "attention, append", the fused
        call, launched dependently as in a step, reads one less and writes the new one; "append"
        writes the new one alone.
    context
        Tokens of each sequence, its new one included.
    """

    kind: Kind
    query_heads: int
    kv_heads: int
    head_dim: int
    context: int

    def __str__(self) -> str:
        heads = f"{self.query_heads}/{self.kv_heads} heads of {self.head_dim}"
        return f"{self.kind}, {heads}, context {self.context}"

    @property
    def row_bytes(self) -> int:
        """Bytes of K and V of one token, of 2-byte elements."""
        return 2 * 2 * self.kv_heads * self.head_dim

    def bytes_moved(self, batch: int) -> int:
        """Bytes that a call must move: K and V as cached, and for an append its input too."""
        if self.kind == "append":
            return 2 * batch * self.row_bytes
        return batch * self.context * self.row_bytes


CALLS = (
    Call("attention", 12, 12, 64, 512),
    Call("attention, append", 12, 12, 64, 512),
    Call("attention", 32, 8, 128, 1024),
    Call("attention, append", 32, 8, 128, 1024),
    Call("attention", 32, 8, 128, 4096),
    Call("attention, append", 32, 8, 128, 4096),
    Call("append", 12, 12, 64, 256),
)
"""GPT-2's heads and those of an 8B Llama, at the contexts that the project's targets name."""


@dataclass(frozen=True, slots=True)
class Fall:
    """A drop of a time below that of a smaller batch, as a fraction of the latter."""

    fraction: float
    before: int
    batch: int


@dataclass(frozen=True, slots=True)
class Swept:
    """What one call took.

    Attributes
    ----------
    readings
        Seconds of every round, by batch size, ascending.
    bytes_per_second
        The bandwidth that the call is held against.
    """

    call: Call
    readings: Mapping[int, Sequence[float]]
    bytes_per_second: float

    @property
    def seconds(self) -> dict[int, float]:
        """The median of the rounds by batch size."""
        return {batch: statistics.median(each) for batch, each in self.readings.items()}

    @property
    def fall(self) -> Fall | None:
        """The largest fall of the medians; None where none is below that of any smaller batch."""
        return _largest_fall(self.seconds, self.seconds)

    @property
    def sure_fall(self) -> Fall | None:
        """The largest fall between batches whose readings do not overlap, by the gap between them.

        Of thousands of pairs of noisy medians some always fall; None where that may be all.
        """
        fastest = {batch: min(each) for batch, each in self.readings.items()}
        slowest = {batch: max(each) for batch, each in self.readings.items()}
        return _largest_fall(fastest, slowest)

    def to_json(self) -> dict[str, Any]:
        """The sweep as JSON-ready values."""
        falls = {"largest_fall": self.fall, "largest_sure_fall": self.sure_fall}
        return {
            "call": asdict(self.call),
            "seconds": self.seconds,
            "readings": {batch: list(each) for batch, each in self.readings.items()},
            **{name: None if fall is None else asdict(fall) for name, fall in falls.items()},
        }


def sweep(
    call: Call,
    batches: Sequence[int],
    timer_of: Callable[[int], Callable[[], float]],
    *,
    rounds: int,
    bytes_per_second: float,
    on_batch: Callable[[], None] = lambda: None,
    on_round: Callable[[], None] = lambda: None,
) -> Swept:
    """Time a call at every batch size, `rounds` times over.

    Every round goes over all batches, so that drift falls on all alike, every other one downwards.
    `on_round` is called before each, to place what is read elsewhere: what a batch takes depends on
    where its sequences lie, and that is no property of its size.

    Parameters
    ----------
    batches
        Ascending.
    timer_of
        For a batch size, what returns the seconds of a call, measured anew each time.
    bytes_per_second
        The machine's read bandwidth.
    """
    timers = {batch: timer_of(batch) for batch in batches}
    times: dict[int, list[float]] = {batch: [] for batch in batches}
    for number in range(rounds):
        on_round()
        for batch in batches if number % 2 == 0 else reversed(batches):
            times[batch].append(timers[batch]())
            on_batch()
    return Swept(call, times, bytes_per_second)


def sweep_table(results: Sequence[Swept], title: str) -> Table:
    """Time and rate at a few batch sizes, and the largest falls of medians and beyond readings."""
    table = Table(title=title, title_justify="left")
    table.add_column("call")
    shown = [batch for batch in SHOWN if any(batch in one.readings for one in results)]
    at_batches = (f"B={batch}, µs (TB/s)" for batch in shown)
    add_figure_columns(table, *at_batches, "falls by at most", "beyond its readings")
    for one in results:
        seconds = one.seconds
        cells = (
            f"{1e6 * seconds[batch]:.1f} "
            f"({one.call.bytes_moved(batch) / seconds[batch] / 1e12:.2f})"
            if batch in seconds
            else MISSING
            for batch in shown
        )
        table.add_row(str(one.call), *cells, _fall_words(one.fall), _fall_words(one.sure_fall))
    return table


def _largest_fall(before: Mapping[int, float], after: Mapping[int, float]) -> Fall | None:
    """The largest drop of a batch's time `after` below the time `before` of any smaller batch."""
    worst: Fall | None = None
    smaller, most = 0, 0.0
    for batch, seconds in after.items():
        fraction = 1 - seconds / most if most else 0.0
        if fraction > (worst.fraction if worst else 0.0):
            worst = Fall(fraction, smaller, batch)
        if before[batch] > most:
            smaller, most = batch, before[batch]
    return worst


def _fall_words(fall: Fall | None) -> str:
    if fall is None:
        return "never"
    return f"{100 * fall.fraction:.1f} %, B={fall.before} to {fall.batch}"
