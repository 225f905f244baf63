"""One run of a workload yields several figures; asv wants one process per figure.

The first process that needs a run makes it and leaves all its figures in the benchmark's working
directory; other processes read them. So TTFT and TPOT come from the same run. When asv asks for the
same figure again, in its next round, a new process makes a new run: samples of a figure are
independent.

asv gives benchmarks with a `setup_cache` a common working directory; that is its only purpose here.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from asv_runner.benchmarks.mark import SkipNotImplemented

from .guard import WrongEngineError, check_identity

Samples: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Windowed:
    """A figure of a workload that ran several times in one process, and that of each run."""

    value: float
    windows: tuple[float, ...]


Figures: TypeAlias = Mapping[str, float | Windowed]
Run: TypeAlias = tuple[str, Callable[[], Figures]]

ROUNDS = 12
"""Processes per figure, unless a command asks for fewer: below 12, asv's test has no power."""


def tracked(
    *, unit: str = "seconds", version: str = "1", rounds: int = ROUNDS
) -> Callable[[Callable[..., float | Windowed | Samples]], Callable[..., Samples]]:
    """Make a benchmark of a method that returns its figure or a `shared_figure`.

    Parameters
    ----------
    unit
        "seconds", or a name for what the figure counts. Bigger is worse, always.
    version
        Raise it when the meaning of the figure changes: older results are then left out.
    rounds
        Processes that measure it, one sample each.
    """

    def mark(measure: Callable[..., float | Windowed | Samples]) -> Callable[..., Samples]:
        @functools.wraps(measure)
        def track(*arguments: Any) -> Samples:
            figure = measure(*arguments)
            # Imported by now, so this judges the very modules that were measured.
            check_identity()
            return figure if isinstance(figure, dict) else one_sample(figure)

        # As attributes of the function: asv reads `rounds` of a track benchmark nowhere else.
        track.__dict__.update(unit=unit, version=version, rounds=rounds)
        return track

    return mark


def shared(
    figure: str, what: str, *, unit: str = "seconds", rounds: int = ROUNDS
) -> Callable[..., Samples]:
    """A benchmark that takes one figure of the run of its class, see `SharesRuns.run`."""

    def track(self: SharesRuns, *values: Any) -> Samples:
        name, measure = self.run(*values)
        return shared_figure(name, self.named(figure, *values), measure)

    track.__doc__ = what
    track.__qualname__ = track.__name__
    # asv's pages show the source.
    source = f"# {what}\nshared({figure!r})"
    track.__dict__.update(unit=unit, version="1", rounds=rounds, pretty_source=source)
    return track


def one_sample(figure: float | Windowed) -> Samples:
    """The figure of this process, in the form that makes asv keep it as a sample.

    asv leaves the windows out: they are not independent of each other, as samples are.

    Raises
    ------
    ValueError
        If the figure is negative or not finite, which asv would store without a word.
    """
    value = figure.value if isinstance(figure, Windowed) else float(figure)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"the measurement gave {value!r}, which is no time or ratio.")
    windows = {"windows": list(figure.windows)} if isinstance(figure, Windowed) else {}
    return {"samples": [value], "number": 1, **windows}


def shared_figure(run: str, figure: str, measure: Callable[[], Figures]) -> Samples:
    """One figure of a run that other benchmarks of this round share.

    Parameters
    ----------
    run
        Names the run and its parameters; part of a file name.
    figure
        Which of its figures this process is asked for.
    measure
        Makes the run in this process and returns all its figures.
    """
    commit = check_identity()
    path = Path(f"{run}.run.json")
    kept = _read(path)
    if kept is None or figure in kept["taken"]:
        figures = {name: one_sample(value) for name, value in measure().items()}
        check_identity()
        kept = {"commit": commit, "process": os.getpid(), "figures": figures, "taken": []}
    elif kept["commit"] != commit:
        raise WrongEngineError(
            f"the shared run {path} is of commit {kept['commit'][:8]}, not of {commit[:8]}; "
            f"remove .asv/env and run again."
        )
    kept["taken"].append(figure)
    _write(path, kept)
    if figure not in kept["figures"]:
        raise SkipNotImplemented(f"{run} has no {figure} on this machine")
    samples: Samples = kept["figures"][figure]
    return samples


def runs_taken() -> dict[str, int]:
    """The runs kept in this directory by name, and how many figures were taken of each."""
    kept = {path: _read(path) for path in Path().glob("*.run.json")}
    return {
        path.name.removesuffix(".run.json"): len(run["taken"])
        for path, run in kept.items()
        if run is not None
    }


def _read(path: Path) -> dict[str, Any] | None:
    try:
        kept: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return kept


def _write(path: Path, kept: dict[str, Any]) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(kept))
    unfinished.replace(path)


class Benchmark:
    """Base of all benchmarks: measures the commit under test, or skips."""

    timeout = 120.0

    def setup(self, *values: Any) -> None:
        """Check what would be measured, and prepare it."""
        check_identity()
        self.prepare(*values)

    def prepare(self, *values: Any, **_: Any) -> None:
        """Skip parameters that are not measured here; build what the others need."""


class SharesRuns(Benchmark):
    """Base of benchmarks whose figures come from a shared run."""

    timeout = 600.0

    def setup_cache(self) -> None:
        """Nothing to prepare: having this makes asv give the benchmarks one directory."""

    def run(self, *values: Any, **_: Any) -> Run:
        """The name of the run for these values of the parameters, and what makes it."""
        raise TypeError(f"{type(self).__name__} does not say what it runs.")

    def named(self, figure: str, *values: Any, **_: Any) -> str:
        """The name that the figure has in the run."""
        return figure
