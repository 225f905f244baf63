"""`counters`: count what a decode step does and what kernels compile to; compare exactly."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.lab.counters.counter_baselines import (
    Acceptance,
    Baseline,
    Difference,
    differences,
    installed_versions,
    read_baseline,
    write_baseline,
)
from asv_bench.lab.counters.counters import Counters, broken_rules, kernel_counters, step_counters
from asv_bench.output.console import add_figure_columns, make_console, print_table
from asv_bench.output.destinations import require_writable
from asv_bench.output.record import REPOSITORY, WorkingTree, working_tree, write_json
from asv_bench.output.table import MISSING

NO_BASELINE = 3
"""The exit code where counters were made and there was nothing to compare them with."""

# Columns of the table of steps; the other counters are in the file.
SHOWN = (
    ("operators", "operators"),
    ("new\ntensors", "new_tensors"),
    ("new\nbytes", "new_bytes"),
    ("to\ndevice", "copies_to_device"),
    ("to\nhost", "copies_to_host"),
    ("replays", "graph_replays"),
    ("launches", "launches"),
    ("engine's\ncalls", "engine_python_calls"),
    ("all\ncalls", "python_calls"),
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "counters",
        help="Count what decode steps do and what kernels compile to, and compare with what was "
        "accepted; exits 3 where nothing was accepted for these versions.",
    )(counters)


def counters(
    accept: Annotated[
        str | None,
        typer.Option("--accept", metavar="WHY", help="Record the counters as right, and why."),
    ] = None,
    steps_only: Annotated[
        bool, typer.Option("--steps-only", help="Leave out the kernels, which take the longest.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write all counters there as JSON.")
    ] = None,
) -> None:
    """Count, and compare with the baseline of this Python, torch and Triton.

    Raises
    ------
    Refused
        When an acceptance gives no reason or leaves out the kernels.
    MeasurementFailed
        When a rule is broken, a kernel does not compile, or a counter differs from the baseline.
    typer.Exit
        With code 3 where there is no baseline.
    """
    if accept is not None and not accept.strip():
        raise Refused("--accept must say why the counters are right as they are now.")
    if accept is not None and steps_only:
        raise Refused("--accept records steps and kernels together; leave out --steps-only.")
    console = make_console()
    versions = installed_versions()
    require_writable(output, versions.path if accept is not None else None)
    # Before anything is counted, so that a file that cannot be read costs no time.
    known = read_baseline(versions.path)
    steps = step_counters(console)
    print_table(console, step_table(steps, versions.key))
    kernels = {} if steps_only else _compiled(console)
    if output is not None:
        content = {"versions": versions.key, "steps": steps, "kernels": kernels}
        write_json(output, content, indent=1)
    if broken := list(broken_rules(steps)):
        raise MeasurementFailed("; ".join(broken) + ".")
    if accept is not None:
        tree = working_tree()
        accepted = known.accepted if known else ()
        baseline = Baseline(versions, (*accepted, _acceptance(accept, tree)), steps, kernels)
        write_baseline(versions.path, baseline)
        console.print(f"accepted: {versions.path.relative_to(REPOSITORY)}", soft_wrap=True)
        return
    if known is None:
        _say_no_baseline(console, versions.key)
        raise typer.Exit(NO_BASELINE)
    found = [*differences(known.steps, steps)]
    found += [] if steps_only else differences(known.kernels, kernels)
    if found:
        print_table(console, difference_table(found))
        raise MeasurementFailed(
            f"{len(found)} counters differ from what {_when(known.accepted[-1])} accepted "
            f'("{known.accepted[-1].why}"); where that is meant, record it with '
            '-- --accept "why".'
        )
    total = sum(map(len, steps.values())) + sum(map(len, kernels.values()))
    console.print(f"all {total} counters are as {_when(known.accepted[-1])} accepted them")


def step_table(steps: Counters, key: str) -> Table:
    """The counters of steps as people read them."""
    table = Table(title=f"what a decode step does ({key})", title_justify="left")
    table.add_column("path, batch, span", no_wrap=True)
    add_figure_columns(table, *(title for title, _ in SHOWN))
    for name, values in steps.items():
        table.add_row(name, *(_cell(values[counter]) for _, counter in SHOWN))
    return table


def difference_table(found: Sequence[Difference]) -> Table:
    """What changed, before and after."""
    table = Table(title="counters that changed", title_justify="left")
    table.add_column("of", no_wrap=True)
    table.add_column("counter", no_wrap=True)
    add_figure_columns(table, "before", "after", "change")
    for one in found:
        table.add_row(one.what, one.counter, _cell(one.before), _cell(one.after), one.change)
    return table


def _compiled(console: Console) -> Counters:
    from asv_bench.lab.codegen.check import compile_all

    figures, failures = compile_all((), console)
    if failures:
        raise MeasurementFailed("; ".join(failures))
    return kernel_counters(figures)


def _acceptance(why: str, tree: WorkingTree) -> Acceptance:
    return Acceptance(why.strip(), tree.label, datetime.now(UTC).date().isoformat())


def _say_no_baseline(console: Console, key: str) -> None:
    console.print(
        f"nothing was accepted yet for {key}, so there is nothing to compare with; record these "
        'counters with -- --accept "why".',
        highlight=False,
        soft_wrap=True,
    )


def _when(acceptance: Acceptance) -> str:
    commit = (acceptance.commit or "an unknown commit")[:9]
    return f"{commit} ({acceptance.date})"


def _cell(value: Any) -> str:
    if value is None:
        return MISSING
    return f"{value:,}" if isinstance(value, int) else str(value)
