"""`tune`: choose the configurations of a fused decode step by timing the whole step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asv_bench.errors import Refused
from asv_bench.output.console import make_console, print_table
from asv_bench.output.destinations import write_text
from asv_bench.output.record import REPOSITORY, Record, require_places
from asv_bench.output.table import Column, Table, digits, percent
from asv_bench.process.machine import chosen_device, machine_facts
from asv_bench.session.options import place_of_figures

if TYPE_CHECKING:
    from asv_bench.lab.tune.candidates import TableSlot, Workbench
    from asv_bench.lab.tune.search import Decision
    from engine.models.spec import DecoderSpec
    from kernels.tiles.table import ConfigTable

RECORD = REPOSITORY / "reports" / "tune.json"
MODEL = "gpt2"
RING = "ring"
COLUMNS = (
    Column("slot", "slot", kind="name"),
    Column("tried", "tried"),
    Column("rejected", "rejected"),
    Column("before_us", "step before", "µs", digits(1)),
    Column("after_us", "after", "µs", digits(1)),
    Column("gain", "gain", show=percent(1)),
    Column("adopted", "adopted", kind="text"),
)


def run(
    minutes: Annotated[float, typer.Option(min=0.1, help="When to stop.")] = 10.0,
    rows: Annotated[
        str | None,
        typer.Option(help="Buckets to tune, by the rows they are measured at (default: all)."),
    ] = None,
    roles: Annotated[
        str | None, typer.Option(help="What to tune, separated by commas (default: all).")
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="A built-in model. All but the first get buckets for just their maps."),
    ] = MODEL,
    device: Annotated[str, typer.Option(help="auto, cuda or cuda:N.")] = "auto",
    output: Annotated[
        Path | None, typer.Option(help="Where the table goes (default: the kernels' own).")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Where the record goes (default: reports/tune.json).")
    ] = None,
) -> None:
    """Choose tiles and rings by timing the whole captured step, and write the table."""
    from asv_bench.lab.tune.candidates import candidates
    from asv_bench.lab.tune.search import tune
    from asv_bench.lab.tune.table_text import table_text
    from engine.fused.weights import step_shapes
    from kernels.tiles.table import TABLE_FILE, committed_table

    config, dtype = known_model(model), "float16" if model == MODEL else "bfloat16"
    shapes, table = step_shapes(config), committed_table()
    if model != MODEL:
        table = table.with_own_buckets(shapes)
    slots = chosen_slots(table, roles, rows, model)
    place = chosen_device(device)
    if not place.startswith("cuda"):
        raise Refused("tune needs a GPU: it times the captured step on the device.")
    facts = machine_facts()
    target = place_of_figures(TABLE_FILE, output, facts)
    destination = json or (RECORD if facts.is_reference else None)
    require_places(destination, target)
    console = make_console()
    settings = {"minutes": minutes, "slots": list(map(str, slots)), "model": model, "dtype": dtype}
    record = Record("tune", settings, machine=facts)
    # Before the engine is built: it would pass for another user of the GPU.
    record.look_around(console, [place])
    workbench = _workbench(place, model, dtype)
    commit = (record.tree.label or "no commit")[:9]
    origin = f"{facts.gpu}, torch {facts.torch}, Triton {facts.triton}, {dtype}, commit {commit}"
    table = replace(table, origin=origin)
    decisions: list[Decision] = []
    started = time.monotonic()
    for decision, changed in tune(
        table,
        slots,
        lambda slot, present: candidates(slot, present, shapes),
        workbench,
        out_of_time=lambda: time.monotonic() - started > 60 * minutes,
    ):
        decisions.append(decision)
        table = changed
        passed = (time.monotonic() - started) / 60
        console.print(f"{passed:.1f} min: {decision.slot} decided")
    if not decisions:
        raise Refused(f"{minutes:g} minutes are too few to decide anything; give more.")
    text = table_text(table)
    record.samples = [decision_json(decision) for decision in decisions]
    record.results = {"adopted": sum(one.is_adopted for one in decisions), "table": text}
    print_table(console, decision_table(decisions))
    path = record.write(destination)
    # Beside the record too: what comes back from another machine is its reports.
    copy = write_text(record.default_path().with_suffix(".toml"), text)
    write_text(target, text, suffix=".toml")
    console.print(f"table: {target}, copy: {copy}")
    console.print(f"record: {path}")


def known_model(name: str) -> DecoderSpec:
    """The sizes of a built-in model. Raises Refused if there is none of that name."""
    from engine.models.registry import RANDOM_CONFIGS

    if name not in RANDOM_CONFIGS:
        known = ", ".join(RANDOM_CONFIGS)
        raise Refused(f"there is no built-in model {name!r}; there are {known}.")
    return RANDOM_CONFIGS[name]


def chosen_slots(
    table: ConfigTable, roles: str | None, rows: str | None, model: str = MODEL
) -> list[TableSlot]:
    """The slots that were asked for. Raises Refused if a role or a bucket does not exist."""
    from asv_bench.lab.tune.candidates import slots_of
    from engine.fused.weights import step_shapes
    from kernels.tiles.tile import ROLES

    known = (*ROLES, RING)
    named = known if roles is None else [name.strip() for name in roles.split(",")]
    for name in named:
        if name not in known:
            raise Refused(f"there is no role {name!r}; there are {', '.join(known)}.")
    config = known_model(model)
    shapes = step_shapes(config)
    sizes = [str(table.buckets[place].rows) for place in table.places(shapes)]
    wanted = sizes if rows is None else [size.strip() for size in rows.split(",")]
    for size in wanted:
        if size not in sizes:
            raise Refused(f"--rows has {size!r}; buckets are measured at {', '.join(sizes)} rows.")
    return [
        slot
        for slot in slots_of(table, config.head_dim, shapes, config.group)
        if (slot.role or RING) in named
        and (slot.role is None or str(slot.points[0].rows) in wanted)
    ]


def decision_json(decision: Decision) -> dict[str, Any]:
    """A decision with every candidate as JSON-ready values."""
    return asdict(decision) | {"slot": str(decision.slot), "adopted": decision.is_adopted}


def decision_table(decisions: Sequence[Decision]) -> Table:
    """A row for each decision, and below the table why candidates were rejected."""
    rows = []
    reasons: Counter[str] = Counter()
    for decision in decisions:
        before, after = sum(decision.present_us.values()), sum(decision.chosen_us.values())
        rejected = [trial.rejected for trial in decision.trials if trial.rejected]
        reasons.update(rejected)
        gain = 1 - after / before if decision.is_adopted else None
        changes = _changes(decision) or None
        tried = len(decision.trials)
        rows.append((str(decision.slot), tried, len(rejected), before, after, gain, changes))
    most = "; ".join(f"{count}x {reason}" for reason, count in reasons.most_common(5))
    return Table(COLUMNS, rows, "Decisions", f"Rejected: {most}" if most else "")


def _changes(decision: Decision) -> str:
    before, after = asdict(decision.present), asdict(decision.chosen)
    return ", ".join(
        f"{name} {before[name]} to {after[name]}" for name in after if after[name] != before[name]
    )


def _workbench(device: str, model: str, dtype: str) -> Workbench:
    from asv_bench.lab.tune.step_bench import hopper_bench

    return hopper_bench(device, model, dtype)
