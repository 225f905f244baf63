"""`tune`: choose the configurations of a fused decode step by timing the whole step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from asv_bench.errors import Refused
from asv_bench.output.console import add_figure_columns, make_console, print_table
from asv_bench.output.destinations import write_text
from asv_bench.output.record import REPOSITORY, Record, require_places
from asv_bench.output.table import MISSING
from asv_bench.output.tables import figure, percent
from asv_bench.process.machine import REFERENCE_MACHINES, MachineFacts, chosen_device, machine_facts
from asv_bench.workloads.named import default_model

if TYPE_CHECKING:
    from asv_bench.lab.tune.candidates import Slot
    from asv_bench.lab.tune.search import Decision
    from asv_bench.lab.tune.workbench import Workbench
    from asv_bench.memory.floor import ModelConfig
    from kernels.tiles.table import ConfigTable

RECORD = REPOSITORY / "reports" / "tune.json"
MINUTES = 10.0
RING = "ring"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "tune",
        help="Choose tiles and rings by timing the whole captured step; write the table.",
    )(run)


def run(
    minutes: Annotated[float, typer.Option(min=0.1, help="When to stop.")] = MINUTES,
    rows: Annotated[
        str | None,
        typer.Option(help="Buckets to tune, by the rows they are measured at (default: all)."),
    ] = None,
    roles: Annotated[
        str | None, typer.Option(help="What to tune, separated by commas (default: all).")
    ] = None,
    hf_model_id: Annotated[
        str | None, typer.Option(help="A built-in model (default: random:gpt2).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float16 or bfloat16.")] = "float16",
    output: Annotated[
        Path | None, typer.Option(help="Where the table goes (default: the kernels' own).")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Where the record goes (default: reports/tune.json).")
    ] = None,
) -> None:
    """Tune, print what was decided, write the table and the record.

    Raises
    ------
    Refused
        Without a Hopper GPU, or where the table is not this machine's to write.
    """
    if dtype not in ("float16", "bfloat16"):
        raise Refused(f"--dtype is {dtype!r}; fused steps run in float16 or bfloat16.")
    from kernels.tiles.table import committed_table

    slots = chosen_slots(committed_table(), roles, rows)
    place = chosen_device(device)
    if not place.startswith("cuda"):
        raise Refused("tune needs a GPU: it times the captured step on the device.")
    facts = machine_facts()
    target = output or _committed_target(facts)
    destination = json or (RECORD if facts.is_reference else None)
    require_places(destination, target)
    console = make_console()
    record = Record(
        "tune",
        {
            "minutes": minutes,
            "slots": [str(slot) for slot in slots],
            "model": hf_model_id or default_model("cuda"),
            "dtype": dtype,
        },
        machine=facts,
    )
    # Before the engine is built: it would pass for another user of the GPU.
    record.look_around(console, [place])
    workbench, config = _workbench(place, hf_model_id or default_model("cuda"), dtype)
    commit = (record.tree.label or "no commit")[:9]
    origin = f"{facts.gpu}, torch {facts.torch}, Triton {facts.triton}, {dtype}, commit {commit}"
    decisions: list[Decision] = []
    started = time.monotonic()

    from asv_bench.lab.tune.candidates import candidates
    from asv_bench.lab.tune.search import tune
    from asv_bench.lab.tune.table_text import table_text

    def on_slot(slot: Slot) -> None:
        console.print(f"{(time.monotonic() - started) / 60:.1f} min: {slot}", highlight=False)

    tuned = tune(
        replace(committed_table(), origin=origin),
        slots,
        lambda slot, table: candidates(slot, table, config),
        workbench,
        out_of_time=lambda: time.monotonic() - started > 60 * minutes,
        on_slot=on_slot,
        on_decision=decisions.append,
    )
    if not decisions:
        raise Refused(f"{minutes:g} minutes are too few to decide anything; give more.")
    text = table_text(tuned)
    record.samples = [decision_json(decision) for decision in decisions]
    record.results = {"adopted": sum(one.is_adopted for one in decisions), "table": text}
    print_table(console, decision_table(decisions))
    path = record.write(destination)
    # Beside the record too: what comes back from another machine is its reports.
    copy = write_text(record.default_path().with_suffix(".toml"), text)
    write_text(target, text, suffix=".toml")
    console.print(f"table: {target}, copy: {copy}", soft_wrap=True)
    console.print(f"record: {path}", soft_wrap=True)


def chosen_slots(table: ConfigTable, roles: str | None, rows: str | None) -> list[Slot]:
    """The slots that were asked for.

    Raises
    ------
    Refused
        If a role or a bucket does not exist.
    """
    from asv_bench.lab.tune.candidates import slots_of
    from engine.models.registry import RANDOM_CONFIGS
    from kernels.tiles.table import ROLES

    known = (*ROLES, RING)
    named = known if roles is None else [name.strip() for name in roles.split(",")]
    for name in named:
        if name not in known:
            raise Refused(f"there is no role {name!r}; there are {', '.join(known)}.")
    sizes = [bucket.rows for bucket in table.buckets]
    wanted = sizes if rows is None else [_row_count(one, sizes) for one in rows.split(",")]
    slots = slots_of(table, RANDOM_CONFIGS["gpt2"].head_dim)
    return [
        slot
        for slot in slots
        if (slot.role or RING) in named and (slot.role is None or slot.points[0].rows in wanted)
    ]


def decision_json(decision: Decision) -> dict[str, Any]:
    """A decision with every candidate as JSON-ready values."""
    return {
        "slot": str(decision.slot),
        "adopted": decision.is_adopted,
        "present": asdict(decision.present),
        "chosen": asdict(decision.chosen),
        "present_us": dict(decision.present_us),
        "chosen_us": dict(decision.chosen_us),
        "p_value": decision.p_value,
        "trials": [
            {
                "choice": asdict(trial.choice),
                "ratio": trial.ratio,
                "step_us": dict(trial.step_us),
                "rejected": trial.rejected,
                "is_finalist": trial.is_finalist,
            }
            for trial in decision.trials
        ],
    }


def decision_table(decisions: Sequence[Decision]) -> Table:
    """What was decided, a line a slot, and why candidates were left out."""
    table = Table(title="Decisions", title_justify="left")
    table.add_column("slot", no_wrap=True)
    add_figure_columns(table, "tried", "rejected", "step before\nµs", "after\nµs", "gain")
    table.add_column("adopted", overflow="fold")
    reasons: Counter[str] = Counter()
    for decision in decisions:
        points = list(decision.present_us)
        before = sum(decision.present_us[point] for point in points)
        after = sum(decision.chosen_us[point] for point in points)
        rejected = [trial.rejected for trial in decision.trials if trial.rejected]
        reasons.update(rejected)
        table.add_row(
            str(decision.slot),
            str(len(decision.trials)),
            str(len(rejected)),
            figure(before, 1),
            figure(after, 1),
            percent(1 - after / before) if decision.is_adopted else MISSING,
            _changes(decision) if decision.is_adopted else MISSING,
        )
    if reasons:
        most = "; ".join(f"{count}x {reason}" for reason, count in reasons.most_common(5))
        table.caption = f"Rejected: {most}"
        table.caption_justify = "left"
    return table


def _changes(decision: Decision) -> str:
    before, after = asdict(decision.present), asdict(decision.chosen)
    return ", ".join(
        f"{name} {before[name]} to {after[name]}" for name in after if after[name] != before[name]
    )


def _row_count(text: str, sizes: Sequence[int]) -> int:
    if not text.strip().isdigit() or int(text) not in sizes:
        known = ", ".join(map(str, sizes))
        raise Refused(f"--rows has {text.strip()!r}; buckets are measured at {known} rows.")
    return int(text)


def _committed_target(facts: MachineFacts) -> Path:
    if not facts.is_reference:
        raise Refused(
            f"the kernels' own table is written on a reference machine "
            f"({', '.join(REFERENCE_MACHINES)}) and this one is {facts.name!r}; say where another "
            f"goes with --output."
        )
    from kernels.tiles.table import TABLE_FILE

    return TABLE_FILE


def _workbench(device: str, model: str, dtype: str) -> tuple[Workbench, ModelConfig]:
    from asv_bench.lab.tune.step_bench import hopper_bench

    return hopper_bench(device, model, dtype)
