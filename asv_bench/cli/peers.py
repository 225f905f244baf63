"""`peers`: other engines beside kvtrail's, on the same checkpoint, prompts and GPU."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from asv_bench.errors import Interrupted, MeasurementFailed, NothingMeasured, Refused, TimeIsUp
from asv_bench.fleet.fleet import FleetOptions, hosts_json, opened_fleet, record_of
from asv_bench.history.life_rounds import Due, LifeRounds, Lived
from asv_bench.measure.log import conditions
from asv_bench.output.console import print_sentences
from asv_bench.output.destinations import require_writable, write_text
from asv_bench.output.progress import Progress
from asv_bench.output.record import command_line
from asv_bench.peers.contest import (
    KeptRounds,
    contests_of,
    drawn,
    find_peers,
    peers_subject,
    prepare,
    rest_table,
    speed_table,
)
from asv_bench.peers.lives.life import KVTRAIL
from asv_bench.process.machine import chosen_device, machine_facts
from asv_bench.process.run_apart import ending_in_time, termination_as_interrupt
from asv_bench.session.options import MOST, Minutes, Outputs, RequireQuiet, Resume
from asv_bench.session.time_limit import TimeLimit
from asv_bench.workloads.named import HEADLINE_WORKLOADS, workloads_named


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
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences that run at once.")] = None,
    prompt_len: Annotated[int | None, typer.Option(min=1, help="Tokens of a prompt.")] = None,
    new_tokens: Annotated[int | None, typer.Option(min=1, help="New tokens of each.")] = None,
    rounds: Annotated[
        int, typer.Option(min=1, max=MOST, help="Lives of each engine that count.")
    ] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Scaled-down workloads.")] = False,
    require_quiet: RequireQuiet = False,
    minutes: Minutes = None,
    resume: Resume = None,
    *,
    hosts: FleetOptions,
    folder: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            exists=True,
            writable=True,
            help="A folder that all hosts see, for the models meanwhile (default: a temporary one, "
            "which only this machine sees).",
        ),
    ] = None,
    files: Outputs,
    svg: Annotated[
        Path | None, typer.Option(dir_okay=False, writable=True, help="Where the drawing goes.")
    ] = None,
) -> None:
    """Measure other engines beside kvtrail's: vLLM, SGLang, transformers and more.

    Every engine loads one checkpoint from disk and gets the same prompts as token ids; each
    generates greedily to fixed lengths, in processes of its own that take turns on one GPU. A
    process runs all workloads of one model. Exit codes: 0 peers were measured; 1 no peer gave a
    figure; 2 refused; 5 there is none here; 130 interrupted, and the same command goes on.
    """
    limit, is_so_far = TimeLimit.of(minutes), False
    require_writable(svg)
    device = chosen_device("auto")
    works = [
        (
            (one.quick() if quick else one).shaped(batch, batch, prompt_len, new_tokens),
            model or one.default_model(device, is_quick=quick),
            "auto" if model else one.default_dtype(device),
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
        "workloads": [asdict(one) for one, *_ in works],
        "models": [of_one for _, of_one, _ in works],
        "engines": list(engines),
        "rounds": rounds,
    }
    with (
        tempfile.TemporaryDirectory(prefix="kvtrail-", dir=folder) as scratch,
        termination_as_interrupt(),
    ):
        contests = contests_of(works, engines, Path(scratch).absolute())
        subject = peers_subject(contests)
        with (
            opened_fleet(
                hosts, subject, subject.labels, files.console, require_quiet=require_quiet
            ) as fleet,
            subject.pairs() as source,
        ):
            record = record_of("peers", settings, fleet)
            kind, here = record.machine.name, machine_facts().name
            # This one writes the models, and measures the bandwidth that floors follow from.
            if kind != here:
                raise Refused(f"the hosts are {kind}, not {here}: start it on one of the hosts.")
            if fleet is None:
                record.look_around(files.console, subject.devices, require_quiet=require_quiet)
            meaning = {"interpreters": engines, "fixed": subject.fixed, **conditions(record)}
            kept = KeptRounds.of_settings({**settings, **meaning}, "peers", resume, noun="rounds")
            print_sentences(files.console, kept.sentences())
            named, total = {one.folder.name: one for one in contests}, rounds * len(contests)

            def live(due: Due, device: str) -> Lived:
                return named[due.commit].live(source, subject, due.round, device)

            def take(due: Due, lived: Lived) -> None:
                named[due.commit].rounds[due.round] = lived

            notes: list[str] = []
            try:
                prepare(contests, device)
                with (
                    Progress(files.console, "a life of each engine", total, "rounds") as bar,
                    ending_in_time(limit.left()),
                ):
                    names, takers = list(named)[::-1], {kind: take}
                    session = LifeRounds(source, names, rounds, takers, lambda _: kind, kept, live)
                    session.measure(lambda done, _: bar.show(done))
                notes += [said for one in contests for said in one.compare_tokens()]
            except TimeIsUp:
                is_so_far = True
                notes.append(
                    f"Time was up ({limit.whose}) after {kept.count} of {total} rounds; the same "
                    f"command goes on with them."
                )
            except KeyboardInterrupt as error:
                notes.append("The run was interrupted before its end.")
                raise Interrupted(
                    f"{kept.count} of {total} rounds are kept. The same command goes on with "
                    f"them: {command_line()}"
                ) from error
            finally:
                notes += [
                    f"{engine} on {workload} is left out: {reason}"
                    for one in contests
                    for (workload, engine), reason in one.left_out().items()
                ]
                print_sentences(files.console, notes, "yellow")
                record.notes += [*absent, *notes, *subject.remarks]
                record.samples = [one.sample() for one in contests]
                rows = [row for one in contests for row in one.rows()]
                record.results = {"rows": rows, "so_far": is_so_far, **hosts_json(fleet)}
                if rows:
                    path = record.write(files.json)
    if not is_so_far:
        kept.finish()
    if rows:
        which = ", ".join(dict.fromkeys(f"{row['model']} {row['dtype']}" for row in rows))
        title = record.title(which)
        table = speed_table(rows, title)
        files.show(table, rest_table(rows))
        if svg is not None:
            write_text(svg, drawn(table))
        files.console.print(f"record: {path}")
    if not any(row["engine"] != KVTRAIL for row in rows):
        raise MeasurementFailed("no peer gave a figure: see the sentences above.")
