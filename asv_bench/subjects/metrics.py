"""Metrics of a subject: those that its file declares, that clients leave, and that all have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from asv_bench.measure.samples import TOLERATED, Metric
from asv_bench.subjects.toml_values import Printed, Take, Text, compiled

BUILT_IN = (
    Metric("wall_s", "seconds"),
    Metric("peak_rss_bytes", "bytes"),
    Metric("peak_gpu_bytes", "bytes"),
    Metric("cpu_s", "seconds"),
)
"""Metrics that every subject has."""
OF_WINDOWS = ("wall_s", "cpu_s")
"""Those of each run of a client; the first is compared where nothing is declared."""
READY, RSS_GROWTH = Metric("ready_s", "seconds"), Metric("rss_growth_bytes", "bytes")
"""Those of a server."""
COLD, WARM = Metric("ready_s@cold", "seconds"), Metric("ready_s@warm", "seconds")
POINT = "KVTRAIL_POINT"
"""Of a client's line, what each point of load is put in place of."""
ASKED_FOR = (Metric("instructions", ""), Metric("cycles", ""), COLD, WARM)
"""Those that are measured only where `--metric` gives the whole name."""


def undeclared(points: Sequence[str], devices: int, *, is_started: bool) -> Iterator[Metric]:
    """Those that no file declares, where names end with points of load, and a server is started."""
    for one in BUILT_IN:
        for end in points if one.name in OF_WINDOWS else [""]:
            yield replace(one, name=f"{one.name}{end}")
    for what in ("peak_gpu_bytes@", "peak_rss_bytes@rank") if devices > 1 else ():
        yield from (Metric(f"{what}{number}", "bytes") for number in range(devices))
    yield from (READY, RSS_GROWTH) if is_started else ()
    yield from ASKED_FOR


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str = ""
    """Keys from the outermost in, with dots between, into the JSON of $KVTRAIL_RESULT."""
    regex: str = ""
    """With one group, searched for in what the life printed. Either this or `path` is given."""

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.regex):
            what = "a check" if isinstance(self, CheckTable) else "a metric"
            raise ValueError(f"{what} needs either path or regex")
        if self.regex and (groups := compiled(self.regex).groups) != 1:
            raise ValueError(f"{self.regex!r} has {groups} groups; it needs one")


class MetricTable(_Place, frozen=True):
    """`[metrics.NAME]`: where a life leaves a figure, as a number or as one for each window."""

    unit: Printed = ""
    """A word to print behind values."""
    better: Literal["lower", "higher"] = "lower"
    """Which of two values is better."""
    margin: Annotated[float, Meta(ge=0.1, le=50)] | None = None
    """The difference that matters, in per cent; without the key the command's."""
    take: Take = "median"
    """What of several windows is the life's figure: median, min, mean, or a percentile as p95."""
    control: bool = False
    """Whether no change can move it: where it moves, every verdict of the session is void."""

    def metric(self, name: str) -> Metric:
        """The metric that it declares."""
        margin = self.margin and self.margin / 100
        return Metric(name, self.unit, self.better, margin, self.take, self.control)


class CheckTable(_Place, frozen=True):
    """`[check.NAME]`: where a life leaves a result, which the head must have as the base has it."""

    must: Literal["equal", "not-worse"] = "equal"
    """What the head's result must be: any JSON value, equal to the base's, or a number that is not
    worse."""
    better: Literal["lower", "higher"] = "higher"
    """Which of two numbers is better."""
    tolerance: Annotated[float, Meta(gt=0)] | None = None
    """By how much a number may be worse, as a difference; "not-worse" needs it."""
    score: Text = ""
    """A line for the shell that leaves a number in the place of the result at $KVTRAIL_RESULT, or
    numbers by names of checks; it is asked once for each result."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.must == "not-worse") != (self.tolerance is not None):
            raise ValueError('must = "not-worse" needs a tolerance, and nothing else takes one')
        if self.score and self.must == "equal":
            raise ValueError('score gives results their numbers, which needs must = "not-worse"')

    def metric(self, name: str) -> Metric:
        """What is read of each life: of results that must be equal the figure is always 1."""
        how = self.must, self.tolerance, self.score.strip()
        return Metric(name, "", self.better, TOLERATED, "median", False, *how)


class Requests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a client's JSON says what became of its requests; of several paths the first counts.

    `completed`, `failed` and `asked` are paths of numbers of requests.
    """

    completed: tuple[str, ...]
    failed: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    errors: str = ""  # the path of a list with a text, or an object, for each failure
    printed: str = ""  # a regular expression for the number of requests that the client prints
