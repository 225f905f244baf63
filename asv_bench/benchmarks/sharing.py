"""What all benchmarks have: whose engine they measure, and runs that yield several figures.

asv wants one process per figure. The first process that needs a run makes it and leaves all its
figures in the benchmark's working directory; other processes read them. So TTFT and TPOT come from
the same run. When asv asks for the same figure again, in its next round, a new process makes a new
run: samples of a figure are independent.

asv gives benchmarks with a `setup_cache` a common working directory; that is its only purpose here.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.process.environment import COMMIT_MARKER, ENVIRONMENT_TYPE, MEASURED_PACKAGES

Samples: TypeAlias = dict[str, Any]
Figures: TypeAlias = Mapping[str, float | Samples]

ROUNDS = 12
"""Processes per figure, unless a command asks for fewer: below 12, asv's test has no power."""


class WrongEngineError(RuntimeError):
    """The engine to be measured is not of the commit that asv would file the figure under."""


def check_identity() -> str:
    """The commit that asv is about to file a figure under, if every package comes from it.

    With `-E existing`, a stray `PYTHONPATH` or an installed copy of the project asv can be wrong,
    and measure the same code for many commits. Packages that are imported already are judged by
    their file, the others by where they would be imported from.

    Raises WrongEngineError if one comes from elsewhere, or the environment holds another commit;
    SkipNotImplemented, which asv shows as a skipped benchmark, if the commit has no engine yet.
    """
    commit, kind = os.environ.get("ASV_COMMIT"), os.environ.get("ASV_ENV_TYPE")
    if kind != ENVIRONMENT_TYPE or not commit:
        raise WrongEngineError(
            f"asv's {kind or 'existing'!r} environment cannot tell which commit's engine it "
            f"imports. Measure it with `kvtrail bench` or `kvtrail history`."
        )
    checkout = Path(os.environ["ASV_ENV_DIR"]).resolve() / "commits" / commit
    marker = checkout / COMMIT_MARKER
    held = marker.read_text().strip() if marker.is_file() else "no commit"
    if held != commit:
        raise WrongEngineError(
            f"asv is measuring commit {commit[:8]}, but its environment holds {held[:9]}; "
            f"remove .asv/env and run again."
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
    return commit


def tracked(
    *, unit: str = "seconds", version: str = "1", rounds: int = ROUNDS
) -> Callable[[Callable[..., float | Samples]], Callable[..., Samples]]:
    """Make a benchmark of a method that returns its figure, or samples of it.

    `unit` is "seconds", or a name for what the figure counts: bigger is worse, always. `version` is
    raised when the meaning of the figure changes, which leaves older results out. `rounds` are the
    processes that measure it, one sample each.
    """

    def mark(measure: Callable[..., float | Samples]) -> Callable[..., Samples]:
        @functools.wraps(measure)
        def track(*arguments: Any) -> Samples:
            figure = measure(*arguments)
            # Imported by now, so this judges the very modules that were measured.
            check_identity()
            return samples_of(figure)

        # As attributes of the function: asv reads `rounds` of a track benchmark nowhere else.
        track.__dict__.update(unit=unit, version=version, rounds=rounds)
        return track

    return mark


def shared(
    figure: str, what: str, *, unit: str = "seconds", rounds: int = ROUNDS
) -> Callable[..., Samples]:
    """A benchmark that takes one figure of the run of its class, see `SharesRuns.run`."""

    def track(self: SharesRuns, *values: Any) -> Samples:
        run = functools.partial(self.run, *values)
        return shared_figure(self.run_name(*values), self.named(figure, *values), run)

    track.__doc__ = what
    track.__qualname__ = track.__name__
    # asv's pages show the source.
    track.__dict__["pretty_source"] = f"# {what}\nshared({figure!r})"
    return tracked(unit=unit, rounds=rounds)(track)


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
    """The figure of this process, in the form that makes asv keep it as a sample.

    `windows` are those of several runs, of which it was made. asv leaves them out: they are not
    independent of each other, as samples are. What has this form already is kept.

    Raises ValueError if the figure is negative or not finite, which asv would store without a word.
    """
    if isinstance(figure, dict):
        return figure
    value = float(figure)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"the measurement gave {value!r}, which is no time or ratio.")
    return {"samples": [value], "number": 1, **({"windows": list(windows)} if windows else {})}


def shared_figure(run: str, figure: str, measure: Callable[[], Figures]) -> Samples:
    """One figure of a run that other benchmarks of this round share.

    `run` names the run and its parameters, and a file; `measure` makes it in this process.
    """
    commit = check_identity()
    path = Path(f"{run}.run.json")
    kept: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    if kept is None or figure in kept["taken"]:
        figures = {name: samples_of(value) for name, value in measure().items()}
        check_identity()
        kept = {"commit": commit, "figures": figures, "taken": []}
    elif kept["commit"] != commit:
        raise WrongEngineError(
            f"the shared run {path} is of commit {kept['commit'][:8]}, not of {commit[:8]}; "
            f"remove .asv/env and run again."
        )
    kept["taken"].append(figure)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(kept))
    unfinished.replace(path)
    if figure not in kept["figures"]:
        raise SkipNotImplemented(f"{run} has no {figure} on this machine")
    samples: Samples = kept["figures"][figure]
    return samples


def runs_taken() -> dict[str, int]:
    """The runs kept in this directory by name, and how many figures were taken of each."""
    return {
        path.name.removesuffix(".run.json"): len(json.loads(path.read_text())["taken"])
        for path in Path().glob("*.run.json")
    }


class CommitBenchmark:
    """Base of all benchmarks: measures the commit under test, or skips.

    Parameters are named where a class is defined, `class Decode(CommitBenchmark, batch=[1, 8])`.
    """

    timeout = 120.0
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

    timeout = 600.0
    run: Callable[..., Figures]
    """Makes the run for the values of the parameters."""

    def setup_cache(self) -> None:
        """Nothing to prepare: having this makes asv give the benchmarks one directory."""

    def run_name(self, *values: Any) -> str:
        """The name of that run, which other classes may share."""
        return "-".join([type(self).__name__, *map(str, values)])

    def named(self, figure: str, *values: Any, **_: Any) -> str:
        """The name that the figure has in the run."""
        return figure
