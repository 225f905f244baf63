"""What all benchmarks have: whose engine they measure, and runs that yield several figures.

A process makes a run once and takes all its figures from it, so TTFT and TPOT are of the same run.
Where it is asked for the same figure again it makes a new run: samples of a figure are independent.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.process.environment import COMMIT_MARKER, MEASURED_PACKAGES

Samples: TypeAlias = dict[str, Any]
Figures: TypeAlias = Mapping[str, float | Samples]

_runs: dict[str, tuple[Figures, set[str]]] = {}
"""By name: the figures of the last run in this process, and the names of those that were taken."""


class WrongEngineError(RuntimeError):
    """The engine to be measured is not of the commit that the figure would be filed under."""


def check_identity() -> None:
    """See that every measured package comes from the tree of the commit under test.

    With a stray `PYTHONPATH` or an installed copy of the project the same code would be measured
    for many commits. Packages that are imported already are judged by their file, the others by
    where they would be imported from.

    Raises WrongEngineError if one comes from elsewhere, or the tree is of another commit;
    SkipNotImplemented, which asv's runner takes for a skipped benchmark, if the commit has no
    engine yet.
    """
    tree, commit = os.environ.get("KVTRAIL_TREE"), os.environ.get("KVTRAIL_LABEL")
    if not tree or not commit:
        raise WrongEngineError(
            "nothing says which commit's engine is imported. Measure it with `kvtrail bench` or "
            "`kvtrail history`."
        )
    checkout = Path(tree).resolve()
    marker = checkout / COMMIT_MARKER
    held = marker.read_text().strip() if marker.is_file() else "no commit"
    if held != commit:
        raise WrongEngineError(
            f"commit {commit[:8]} is to be measured, but {checkout} holds {held[:9]}; remove that "
            f"folder and run again."
        )
    for package in MEASURED_PACKAGES:
        expected, module = checkout / package, sys.modules.get(package)
        spec = importlib.util.find_spec(package) if module is None else None
        file = spec.origin if spec is not None else getattr(module, "__file__", None)
        if not file or (module is None and not expected.is_dir()):
            raise SkipNotImplemented(f"commit {commit[:8]} has no {package!r} package")
        origin = Path(file).resolve().parent
        if origin != expected:
            raise WrongEngineError(
                f"{package!r} comes from {origin}, not from the checkout of commit "
                f"{commit[:8]}; uninstall that copy or take it off the search path."
            )


def tracked(
    *, unit: str = "seconds", version: str = "1"
) -> Callable[[Callable[..., float | Samples]], Callable[..., Samples]]:
    """Make a benchmark of a method that returns its figure, or samples of it.

    `unit` is "seconds", or a name for what the figure counts: bigger is worse, always. `version` is
    raised when the meaning of the figure changes, which leaves older results out.
    """

    def mark(measure: Callable[..., float | Samples]) -> Callable[..., Samples]:
        @functools.wraps(measure)
        def track(*arguments: Any) -> Samples:
            figure = measure(*arguments)
            # Imported by now, so this judges the very modules that were measured.
            check_identity()
            return samples_of(figure)

        track.__dict__.update(unit=unit, version=version)
        return track

    return mark


def shared(figure: str, what: str, *, unit: str = "seconds") -> Callable[..., Samples]:
    """A benchmark that takes one figure of the run of its class, see `SharesRuns.run`.

    Its samples say as "run" which run that was.
    """

    def track(self: SharesRuns, *values: Any) -> Samples:
        run, name = self.run_name(*values), self.named(figure, *values)
        figures, taken = _runs.get(run, ({}, {name}))
        if name in taken:
            figures, taken = _runs[run] = self.run(*values), set()
        taken.add(name)
        if name not in figures:
            raise SkipNotImplemented(f"{run} has no {name} on this machine")
        return {**samples_of(figures[name]), "run": run}

    track.__doc__ = what
    track.__qualname__ = track.__name__
    # asv's pages show the source.
    track.__dict__["pretty_source"] = f"# {what}\nshared({figure!r})"
    return tracked(unit=unit)(track)


def median_s(
    call: Callable[[], object],
    readings: int,
    *,
    warmups: int = 1,
    before: Callable[[], object] = lambda: None,
) -> float:
    """The median seconds of some calls after warm-up calls; `before` each, something untimed."""
    seconds = []
    for _ in range(warmups + readings):
        before()
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[warmups:])


def samples_of(figure: float | Samples, windows: Sequence[float] = ()) -> Samples:
    """The figure of this process, in the form in which asv's runner knows a sample.

    `windows` are those of several runs, of which it was made: they are not independent of each
    other, as samples are. What has this form already is kept.

    Raises ValueError if the figure is negative or not finite.
    """
    if isinstance(figure, dict):
        return figure
    value = float(figure)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"the measurement gave {value!r}, which is no time or ratio.")
    return {"samples": [value], "number": 1, **({"windows": list(windows)} if windows else {})}


class CommitBenchmark:
    """Base of all benchmarks: measures the commit under test, or skips.

    Parameters are named where a class is defined, `class Decode(CommitBenchmark, batch=[1, 8])`.
    """

    params: ClassVar[tuple[list[Any], ...]] = ()
    param_names: ClassVar[list[str]] = []

    def __init_subclass__(cls, **params: list[Any]) -> None:
        super().__init_subclass__()
        if params:
            cls.params, cls.param_names = tuple(params.values()), list(params)

    def setup(self, *values: Any) -> None:
        """Check what would be measured, and prepare it."""
        check_identity()
        self.prepare(*values)

    def prepare(self, *values: Any, **_: Any) -> None:
        """Skip parameters that are not measured here; build what the others need."""


class SharesRuns(CommitBenchmark):
    """Base of benchmarks whose figures come from a shared run."""

    run: Callable[..., Figures]
    """Makes the run for the values of the parameters."""

    def run_name(self, *values: Any) -> str:
        """The name of that run, which other classes may share."""
        return "-".join([type(self).__name__, *map(str, values)])

    def named(self, figure: str, *values: Any, **_: Any) -> str:
        """The name that the figure has in the run."""
        return figure
