"""`peers`: other engines beside kvtrail's, on the same checkpoint, prompts and GPU."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from asv_bench.cli.grouped import grouped
from asv_bench.cli.options import Outputs, RequireQuiet
from asv_bench.errors import Interrupted, MeasurementFailed, NothingMeasured, Refused
from asv_bench.fleet.fleet import Fleet
from asv_bench.fleet.fleet_records import hosts_json, look_around, record_of
from asv_bench.fleet.opening import FleetOptions, opened_fleet
from asv_bench.output.console import print_sentences
from asv_bench.output.destinations import require_writable, write_text
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.packages import require_packages
from asv_bench.peers.catalog import KVTRAIL, find_peers
from asv_bench.peers.checkpoint import Checkpoint, CheckpointTask
from asv_bench.peers.heats import Heat, heats_of
from asv_bench.peers.rounds import PeerRounds, peers_subject
from asv_bench.peers.tables import draw_peers, rest_table, speed_table
from asv_bench.process.machine import chosen_device, machine_facts
from asv_bench.process.run_apart import last_words, run_apart
from asv_bench.process.termination import termination_as_interrupt
from asv_bench.workloads.named import HEADLINE_WORKLOADS, Workload, workloads_named

ROUNDS = 3
WINDOWS = 3


@dataclass(frozen=True, slots=True)
class Task:
    """A workload, the model that it is measured with, and the type of its weights."""

    workload: Workload
    model: str
    dtype: str


@grouped
def peers(
    workloads: Annotated[
        str, typer.Option(help="Workloads to measure, separated by commas (`run --list`).")
    ] = ",".join(HEADLINE_WORKLOADS),
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            help="An engine to measure beside kvtrail's, or NAME=PYTHON for one that another "
            "interpreter has, such as vllm=/opt/vllm/bin/python; may be given several times "
            "(default: every engine that this interpreter can import).",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Hub id, folder or random:NAME (default: the workload's own)."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences that run at once.")] = None,
    prompt_len: Annotated[int | None, typer.Option(min=1, help="Tokens of a prompt.")] = None,
    new_tokens: Annotated[int | None, typer.Option(min=1, help="New tokens of each.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Lives of each engine that count.")] = ROUNDS,
    windows: Annotated[int, typer.Option(min=1, help="Measured runs of a life.")] = WINDOWS,
    quick: Annotated[bool, typer.Option("--quick", help="Scaled-down workloads.")] = False,
    require_quiet: RequireQuiet = False,
    *,
    hosts: FleetOptions,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            file_okay=False,
            exists=True,
            writable=True,
            help="A folder that all hosts see, for the models meanwhile (default: a temporary one, "
            "which only this machine sees).",
        ),
    ] = None,
    outputs: Outputs,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", dir_okay=False, writable=True, help="Where the drawing goes."),
    ] = None,
) -> None:
    """Measure other engines beside kvtrail's: vLLM, SGLang, transformers and more.

    Every engine loads one checkpoint from disk and gets the same prompts as token ids; each
    generates greedily to fixed lengths, in processes of its own that take turns on one GPU. A
    process runs all workloads of one model. Exit codes: 0 peers were measured; 1 no peer gave a
    figure; 2 refused; 5 there is none here; 130 interrupted, and rounds that were over are kept.

    Raises
    ------
    Refused
        If there is no such workload or engine.
    NothingMeasured
        If there is no engine to measure.
    MeasurementFailed
        If no peer gave a figure.
    """
    files = outputs.files()
    if svg is not None:
        require_packages("matplotlib")
        require_writable(svg)
    device = chosen_device("auto")
    tasks = [
        Task(
            _shaped(one.quick() if quick else one, batch, prompt_len, new_tokens),
            model or one.default_model(device, is_quick=quick),
            dtype if model or dtype != "auto" else one.default_dtype(device),
        )
        for one in workloads_named(workloads)
    ]
    engines, absent = find_peers(peer or ())
    print_sentences(files.console, absent)
    if len(engines) < 2:
        raise NothingMeasured(
            "none of these engines is here; name its Python with --peer NAME=PYTHON."
        )
    settings = {
        "workloads": [asdict(task) for task in tasks],
        "engines": list(engines),
        "rounds": rounds,
        "windows": windows,
    }
    with (
        tempfile.TemporaryDirectory(prefix="kvtrail-", dir=folder) as scratch,
        termination_as_interrupt(),
    ):
        place = Path(scratch).absolute()
        groups = heats_of([(task.workload, task.model, task.dtype) for task in tasks])
        lives = len(groups) * len(engines) * rounds
        labels = [f"heat-{number}/{name}" for number in range(len(groups)) for name in engines]
        subject = peers_subject(labels, place)
        with (
            opened_fleet(
                hosts, subject, subject.labels, files.console, require_quiet=require_quiet
            ) as opened,
            subject.pairs() as source,
        ):
            _require_this_kind(opened)
            record = record_of("peers", settings, opened)
            record.notes += absent
            look_around(record, files.console, subject, opened, require_quiet=require_quiet)
            path = files.record or record.default_path()
            rows: list[dict[str, Any]] = []

            heats: list[Heat] = []
            kept: list[Heat] = []

            def keep(heat: Heat) -> None:
                kept.append(heat)
                notes = heat.compare_tokens()
                for contest in heat.contests:
                    rows.extend(contest.rows(subject.others))
                    notes += contest.notes
                    record.samples.append(contest.to_json(subject.cells))
                record.notes += notes
                record.results = {"rows": rows, **hosts_json(opened)}
                if rows:
                    # Lives take minutes: what is over stays where the rest is interrupted.
                    record.write(path)
                print_sentences(files.console, notes, "yellow")

            try:
                heats += _heats(groups, engines, windows, place, device)
                with Progress(files.console, "peers", lives, "lives") as progress:
                    on_life = partial(_say, progress, count())
                    PeerRounds(source, on_life, keep).measure(heats, rounds)
            except KeyboardInterrupt as error:
                _keep_rest(record, [one for one in heats if one not in kept], keep)
                where = f"what was over is in {path}" if rows else "nothing was over"
                raise Interrupted(f"{where}.") from error
    record.notes += subject.remarks
    record.write(path)
    title = record.title(", ".join(dict.fromkeys(f"{row['model']} {row['dtype']}" for row in rows)))
    if rows:
        files.show(speed_table(rows, title), rest_table(rows))
    if rows and svg is not None:
        write_text(svg, draw_peers(rows, title), suffix=".svg")
    files.console.print(f"record: {path}")
    if not any(row["engine"] != KVTRAIL for row in rows):
        raise MeasurementFailed("no peer gave a figure: see the sentences above.")


def _say(progress: Progress, numbers: Iterator[int], what: str) -> None:
    progress.show(next(numbers), what)


def _keep_rest(record: Record, heats: Sequence[Heat], keep: Callable[[Heat], None]) -> None:
    """Keep the rounds that were over of heats that were not."""
    for heat in heats:
        if any(one.readings for one in heat.contests):
            keep(heat)
    record.notes.append("The run was interrupted before its end.")


def _shaped(
    workload: Workload, batch: int | None, prompt_len: int | None, new_tokens: int | None
) -> Workload:
    return replace(
        workload,
        num_requests=batch or workload.num_requests,
        batch_size=batch or workload.batch_size,
        prompt_lengths=(prompt_len,) if prompt_len else workload.prompt_lengths,
        new_tokens=new_tokens or workload.new_tokens,
        new_lengths=() if new_tokens else workload.new_lengths,
    )


def _heats(
    groups: Mapping[tuple[str, str, int], Sequence[Workload]],
    engines: Mapping[str, str],
    windows: int,
    place: Path,
    device: str,
) -> list[Heat]:
    """A heat for each group, in a folder of its own; each model is on disk once."""
    checkpoints: dict[tuple[str, str], Checkpoint] = {}
    heats = []
    for number, ((model, dtype, _), workloads) in enumerate(groups.items()):
        if (model, dtype) not in checkpoints:
            folder = place / f"model-{number}"
            checkpoints[model, dtype] = checkpoint_in(folder, model, dtype, device)
        checkpoint, folder = checkpoints[model, dtype], place / f"heat-{number}"
        heats.append(Heat.of(workloads, model, checkpoint, engines, folder))
        heats[-1].write_task(windows)
    return heats


def _require_this_kind(fleet: Fleet | None) -> None:
    """Refuse hosts unlike this machine, which writes the models and measures the bandwidth."""
    here = machine_facts().name
    if fleet is not None and (kind := fleet.hosts[0].machine.name) != here:
        raise Refused(
            f"peers measures the bandwidth of the hosts' memory on this machine, whose kind is "
            f"{here}, not {kind}: start it on one of the hosts."
        )


def checkpoint_in(folder: Path, model: str, dtype: str, device: str) -> Checkpoint:
    """The model in a folder that every engine can read: this one where it is written.

    Raises
    ------
    MeasurementFailed
        If there is no such model, or it cannot be written.
    """
    task = CheckpointTask(model=model, dtype=dtype, device=device, folder=str(folder))
    told = folder.with_suffix(".json")
    words = (sys.executable, "-m", "asv_bench.peers.checkpoint")
    done = run_apart([*words, json.dumps(asdict(task)), str(told)])
    if done.returncode:
        raise MeasurementFailed(f"{model} cannot be put on disk: {last_words(done.stderr)}")
    return Checkpoint(**json.loads(told.read_text()))
