"""`changes`: where the stored histories moved, and which of it stands when it is compared."""

from __future__ import annotations

from typing import Annotated

import typer

from asv_bench.cli.report import branch_to_show
from asv_bench.errors import require_packages
from asv_bench.history.asv_selection import require_patterns
from asv_bench.history.histories import Histories
from asv_bench.history.standing import ANSWERS, Confirming
from asv_bench.output.record import require_places
from asv_bench.session.options import (
    MeasuringOptions,
    Metrics,
    Outputs,
    ResultsFolder,
    SubjectOptions,
)


def changes(
    benchmark: Metrics = None,
    *,
    asked: SubjectOptions,
    results: ResultsFolder = None,
    confirm_them: Annotated[
        bool,
        typer.Option("--confirm/--no-confirm", help="Compare the commits around each change."),
    ] = True,
    how: MeasuringOptions,
    files: Outputs,
) -> None:
    """Find where the stored histories moved, and compare the commits around each change.

    A series is of one machine in one environment, along one line of first parents. Without
    --confirm, or where results are of another machine, Python, torch or Triton than those here, a
    change is not confirmed yet. What acknowledged.toml beside the results names is not compared.
    Exit code 3: a regression was confirmed; 4: a control moved; 0: neither. The same command goes
    on after Ctrl-C.
    """
    require_patterns("--benchmark", benchmark or ())
    choice = asked.choice(how=how)
    declared = choice.declared("changes")
    histories = Histories.of_subject(declared, results)
    kept = histories.folder / ANSWERS / "answers.json"
    require_places(files.json, histories.pages / "index.html", kept)
    require_packages("jinja2", "scipy")
    tip = "" if histories.labels else branch_to_show(histories.repository)
    confirming = Confirming(
        histories, benchmark or (), tip, choice, declared, compares=confirm_them
    )
    confirming.with_options(files, how).answer()
