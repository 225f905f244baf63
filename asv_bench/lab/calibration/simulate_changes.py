"""How often `changes` sees a change that is none, and misses one that is, beside asv's own steps.

`python -m asv_bench.lab.calibration.simulate_changes` judges simulated histories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from asv_bench.cli.grouped import grouped
from asv_bench.cli.options import Outputs
from asv_bench.history.change_points import Change, changes_in
from asv_bench.lab.calibration.simulated_histories import (
    HistoryKind,
    Modes,
    SimulatedHistory,
    simulated_history,
)
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.output.table import Column, Table, digits, percent

QUIET = 0.003
TWO_MODES = Modes(share=0.3, more=0.05)
KINDS = (
    HistoryKind("flat"),
    HistoryKind("flat, two modes", noise=QUIET, modes=TWO_MODES),
    HistoryKind("flat, one process", processes=1),
    HistoryKind("flat, 2 commits", commits=2),
    HistoryKind("flat, two modes, one process", noise=QUIET, modes=TWO_MODES, processes=1),
    HistoryKind("flat, two modes, five processes", noise=QUIET, modes=TWO_MODES, processes=5),
    HistoryKind("flat, two modes, 20 commits", noise=QUIET, modes=TWO_MODES, commits=20),
    HistoryKind("flat, a rare mode", noise=QUIET, modes=Modes(share=0.1, more=0.05)),
    HistoryKind("flat, sessions of 10", noise=QUIET, session_commits=10, sessions_apart=0.01),
    HistoryKind("flat, sessions of 50", noise=QUIET, session_commits=50, sessions_apart=0.01),
    HistoryKind("flat, each commit by itself", noise=QUIET, session_commits=1, sessions_apart=0.01),
    HistoryKind(
        "flat, sessions of 10 with a reference",
        session_commits=10,
        sessions_apart=0.01,
        has_reference=True,
    ),
    HistoryKind("a step", step=0.03),
    HistoryKind("a step", step=0.05),
    HistoryKind("a step, 20 commits", step=0.03, commits=20),
    HistoryKind("a step, one process", step=0.03, processes=1),
    HistoryKind("a step, one process, 20 commits", step=0.03, commits=20, processes=1),
    HistoryKind("a step at the newest commit", step=0.05, is_newest=True),
    HistoryKind("a step, two modes", step=0.05, noise=QUIET, modes=TWO_MODES),
    HistoryKind(
        "a step, sessions of 10", step=0.03, noise=QUIET, session_commits=10, sessions_apart=0.01
    ),
    HistoryKind(
        "a step, sessions of 50", step=0.03, noise=QUIET, session_commits=50, sessions_apart=0.01
    ),
)
COLUMNS = (
    Column("name", "history", kind="text"),
    Column("commits", "commits"),
    Column("processes", "processes"),
    Column("step", "step", show=percent(0, signed=True)),
    Column("false", "false changes a series", show=digits(3)),
    Column("asv_false", "of asv", show=digits(3)),
    Column("found", "step found", show=percent(1)),
    Column("asv_found", "by asv", show=percent(1)),
)


@dataclass(frozen=True, slots=True)
class Rates:
    """What judging many histories of one kind came to.

    Attributes
    ----------
    false, asv_false
        Changes a series where nothing changed, by `changes` and by asv's step detection.
    found, asv_found
        The share of series whose step was found; None where they are flat.
    """

    kind: HistoryKind
    false: float
    asv_false: float
    found: float | None
    asv_found: float | None

    def row(self) -> tuple[Any, ...]:
        """The cells of `COLUMNS`."""
        kind = self.kind
        step = kind.step or None
        rates = (self.false, self.asv_false, self.found, self.asv_found)
        return kind.name, kind.commits, kind.processes, step, *rates


def judge(
    kind: HistoryKind, runs: int, seed: int = 0, on_run: Callable[[], None] = lambda: None
) -> Rates:
    """Judge so many histories of a kind; each of `changes` and asv sees the same ones."""
    ours, of_asv = [0, 0], [0, 0]
    for run in range(runs):
        history = simulated_history(kind, seed + run)
        places = ([_range(change) for change in changes_in(history.points)], _asv_ranges(history))
        for tally, ranges in zip((ours, of_asv), places, strict=True):
            hits = [since < history.place <= until for since, until in ranges if history.place]
            tally[0] += len(ranges) - any(hits)
            tally[1] += any(hits)
        on_run()
    is_flat = not kind.step
    return Rates(
        kind,
        ours[0] / runs,
        of_asv[0] / runs,
        None if is_flat else ours[1] / runs,
        None if is_flat else of_asv[1] / runs,
    )


def _range(change: Change) -> tuple[int, int]:
    """Numbers of the commits after which, and up to which, a change lies."""
    return int(change.since.hash, 16), int(change.until.hash, 16)


def _asv_ranges(history: SimulatedHistory) -> list[tuple[int, int]]:
    """The steps that asv's own pages show, each granted a commit on both sides."""
    from asv.step_detect import detect_steps  # an extra's, and tests of the rest go without

    steps = detect_steps([point.figure.median for point in history.points])
    return [(begin - 2, begin + 1) for begin, *_ in steps[1:]]


@grouped
def run(
    runs: Annotated[int, typer.Option(min=1, help="Histories of each kind.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the first history of each kind.")] = 0,
    *,
    outputs: Outputs,
) -> None:
    """Judge simulated histories, flat ones and ones with a step."""
    files = outputs.files()
    record = Record("simulate_changes", {"runs": runs, "seed": seed})
    rates: list[Rates] = []
    with Progress(
        files.console, "judging", runs * len(KINDS), "histories", is_apart=False
    ) as progress:
        for kind in KINDS:
            progress.name(kind.name)
            rates.append(judge(kind, runs, seed, progress.advance))
    record.results = {"rates": [asdict(one) for one in rates]}
    files.show(rates_table(rates, runs))
    files.console.print(f"record: {record.write(files.record)}", highlight=False, soft_wrap=True)


def rates_table(rates: Sequence[Rates], runs: int) -> Table:
    """A row for each kind of history."""
    caption = (
        "Noise of a process: 1 %; with two modes or sessions, 0.3 %. Two modes: 30 % of the "
        "processes take 5 % longer; a rare one: 10 %. Sessions are 1 % up or down. A step is found "
        "where the range of a change holds it; for asv, within a commit of its step, and it sees "
        "figures in place of ratios."
    )
    rows = [one.row() for one in rates]
    return Table(COLUMNS, rows, f"changes in {runs} simulated histories each", caption)


if __name__ == "__main__":
    typer.run(run)
