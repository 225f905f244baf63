"""Measuring commits with asv while a progress bar runs, and reading back the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from asv_bench.errors import Interrupted, MeasurementFailed, NothingMeasured
from asv_bench.git.commit_tree import CommitTree
from asv_bench.git.repository import Repository, short
from asv_bench.git.working_tree import working_tree
from asv_bench.history.asv_results import Figure
from asv_bench.history.asv_runs import AsvProject
from asv_bench.history.asv_selection import Selection
from asv_bench.history.estimate import Estimate, estimate
from asv_bench.output.contradictions import processes_apart
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.process.machine import MachineFacts, has_cuda_gpu


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures that one run of asv gave, and the benchmarks that failed in it."""

    figures: tuple[Figure, ...]
    failed: tuple[str, ...]


def process_contradictions(figures: Sequence[Figure]) -> list[str]:
    """What to know where processes of one figure and commit gave values far apart."""
    unit = "s" if all(figure.unit == "seconds" for figure in figures) else ""
    samples: list[tuple[str, float]] = []
    for figure in figures:
        params = ", ".join(repr(value) for _, value in figure.series.params)
        name = figure.series.benchmark + (f"({params})" if params else "")
        samples += [(f"{name} of {short(figure.commit)}", sample) for sample in figure.samples]
    return processes_apart(samples, unit)


def record_of(
    command: str,
    project: AsvProject,
    commits: Sequence[str],
    selection: Selection,
    facts: MachineFacts,
) -> Record:
    """A record beside asv's results, which have no place for threads, surroundings and warnings."""
    settings = {
        "commits": list(commits),
        "benchmarks": list(selection.patterns),
        "rounds": selection.rounds,
        "results": project.results.relative_to(project.root).as_posix(),
    }
    return Record(command, settings, machine=facts, tree=working_tree(project.root))


def write_record(
    record: Record, project: AsvProject, measured: Measured, path: Path | None = None
) -> Path:
    """Write it with every sample of this run; returns where."""
    record.results["failed"] = list(measured.failed)
    record.samples = [asdict(figure) for figure in measured.figures]
    return record.write(path or project.root / "reports" / "runs" / record.default_path().name)


def expected_time(
    project: AsvProject, machine: str, commits: Sequence[str], selection: Selection
) -> Estimate:
    """How long it will take to measure these commits on this machine."""
    here = selection.on(has_gpu=has_cuda_gpu())
    return estimate(project.results, machine, len(commits), here)


def measure_with_progress(
    project: AsvProject, commits: Sequence[str], selection: Selection, console: Console
) -> Measured:
    """Measure `commits`, oldest first, and return the figures of this run.

    Raises
    ------
    MeasurementFailed
        If no benchmark gave a figure.
    """
    for commit in commits:
        for remark in CommitTree.read(commit, Repository(project.repository)).remarks():
            console.print(remark)
    here = selection.on(has_gpu=has_cuda_gpu())
    with Progress(console, "finding the benchmarks") as progress:

        def advance(benchmark: str, started: int, total: int) -> None:
            total *= len(commits)
            # What has started is not done yet.
            name = benchmark.rpartition("-")[0] or benchmark
            progress.show(started - 1, f"measuring {name}", total=max(total, started))

        try:
            measured = project.measure(commits, here.patterns, here.rounds, advance)
        except KeyboardInterrupt:
            raise Interrupted(
                f"what was measured is filed in {project.results}; the same command measures all "
                f"of it anew, beside that."
            ) from None
    figures = measured.figures
    good = tuple(figure for figure in figures if not figure.failed)
    failed = sorted({figure.series.benchmark for figure in figures if figure.failed})
    if not good:
        if failed:
            raise MeasurementFailed(
                f"nothing was measured: all of {', '.join(failed)} failed (see {project.log})."
            )
        patterns = ", ".join(repr(pattern) for pattern in selection.patterns)
        raise NothingMeasured(
            f"nothing was measured: none of the benchmarks that match {patterns} runs here."
        )
    return Measured(good, tuple(failed))
