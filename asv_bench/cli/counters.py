"""`counters`: count what decode steps do and kernels compile to, and compare exactly."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.working_tree import working_tree
from asv_bench.lab.counters.counter_baselines import (
    Acceptance,
    Baseline,
    CounterDifference,
    Counters,
    differences,
    installed_versions,
    read_baseline,
    step_table,
    write_baseline,
)
from asv_bench.lab.counters.step_counters import broken_rules, count_all
from asv_bench.output.console import print_table
from asv_bench.output.destinations import require_writable
from asv_bench.output.progress import Progress
from asv_bench.output.record import REPOSITORY, write_json
from asv_bench.output.table import Column, Table
from asv_bench.output.table_files import TableFiles
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.options import CsvPath, MarkdownPath

NO_BASELINE = ExitCode.INCONCLUSIVE
"""The exit code where counters were made and there was nothing to compare them with."""

DIFFERENCE_COLUMNS = (
    Column("what", "of", kind="name"),
    Column("counter", "counter", kind="name"),
    *(Column(name, name) for name in ("before", "after", "change")),
)


def counters(
    accept: Annotated[
        str | None, typer.Option(metavar="WHY", help="Record the counters as right, and why.")
    ] = None,
    steps_only: Annotated[
        bool, typer.Option("--steps-only", help="Leave out the kernels, which take the longest.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where all counters go; - is standard output.")
    ] = None,
    markdown: MarkdownPath = None,
    csv: CsvPath = None,
) -> None:
    """Count what decode steps do and what kernels compile to, and compare with what was accepted.

    It exits with 4 where nothing was accepted for this Python, torch and Triton.
    """
    if accept is not None and not accept.strip():
        raise Refused("--accept must say why the counters are right as they are now.")
    if accept is not None and steps_only:
        raise Refused("--accept records steps and kernels together; leave out --steps-only.")
    versions = installed_versions()
    files = TableFiles(markdown=markdown, csv=csv, record=json)
    require_writable(versions.path if accept is not None else None)
    console = files.console
    # Before anything is counted, so that a file that cannot be read costs no time.
    known = read_baseline(versions.path)
    steps = count_all(console)
    files.show(step_table(steps, versions.key))
    kernels = {} if steps_only else _compiled(console)
    if json is not None:
        content = {"versions": versions.key, "steps": steps, "kernels": kernels}
        write_json(json, content, indent=1)
    if broken := list(broken_rules(steps)):
        raise MeasurementFailed("; ".join(broken) + ".")
    if accept is not None:
        today = datetime.now(UTC).date().isoformat()
        acceptance = Acceptance(accept.strip(), working_tree(REPOSITORY).label, today)
        accepted = known.accepted if known else ()
        baseline = Baseline(1, versions, (*accepted, acceptance), steps, kernels)
        write_baseline(versions.path, baseline)
        console.print(f"accepted: {versions.path}")
        return
    if known is None:
        console.print(
            f"nothing was accepted yet for {versions.key}, so there is nothing to compare with; "
            'record these counters with --accept "why".'
        )
        raise typer.Exit(NO_BASELINE)
    found = [*differences(known.steps, steps)]
    found += [] if steps_only else differences(known.kernels, kernels)
    if found:
        print_table(console, difference_table(found))
        raise MeasurementFailed(
            f"{len(found)} counters differ from what {_when(known.accepted[-1])} accepted "
            f'("{known.accepted[-1].why}"); where that is meant, record it with '
            '--accept "why".'
        )
    total = sum(map(len, steps.values())) + sum(map(len, kernels.values()))
    console.print(f"all {total} counters are as {_when(known.accepted[-1])} accepted them")


def difference_table(found: Sequence[CounterDifference]) -> Table:
    """A row for each changed counter."""
    rows = [[getattr(one, column.key) for column in DIFFERENCE_COLUMNS] for one in found]
    return Table(DIFFERENCE_COLUMNS, rows, "counters that changed")


def _compiled(console: Console) -> Counters:
    from asv_bench.lab.codegen.compiled import compile_all
    from asv_bench.lab.codegen.launched_kernels import every_kernel

    with Progress(console, "finding what the engine launches", unit="kernels", is_apart=False):
        kernels = every_kernel()
    compiled, failures = compile_all(kernels, console)
    if failures:
        raise MeasurementFailed("; ".join(failures))
    return {one.name: one.figures() for one in compiled}


def _when(acceptance: Acceptance) -> str:
    commit = (acceptance.commit or "an unknown commit")[:9]
    return f"{commit} ({acceptance.date})"
