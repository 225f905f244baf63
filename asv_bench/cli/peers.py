"""`peers`: other engines beside kvtrail's, on the same checkpoint, prompts and GPU."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from asv_bench.errors import NothingMeasured
from asv_bench.output.console import print_sentences
from asv_bench.output.record import require_writable
from asv_bench.peers.contest import Contesting, contests_of, find_peers
from asv_bench.process.machine import chosen_device
from asv_bench.run.settings import WorkloadFlags
from asv_bench.session.options import MOST, Outputs, RunningOptions
from asv_bench.workloads.named import HEADLINE_WORKLOADS, workloads_named


def peers(
    workloads: Annotated[
        str, typer.Option(help="Workloads to measure, separated by commas (`run --list`).")
    ] = ",".join(HEADLINE_WORKLOADS),
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="An engine to measure beside kvtrail's, or NAME=PYTHON for one that another "
            "interpreter has, such as vllm=/opt/vllm/bin/python; may be given several times "
            "(default: every engine that this interpreter can import).",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, max=MOST, help="Lives of each engine that count.")
    ] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Scaled-down workloads.")] = False,
    *,
    asked: WorkloadFlags,
    how: RunningOptions,
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
    process runs all workloads of one model. On several GPUs, or in eight bits, vLLM alone runs
    beside kvtrail's. Exit codes: 0 peers were measured; 1 no peer gave a figure; 2 refused; 5
    there is none here; 130 interrupted, and the same command goes on.
    """
    require_writable(svg)
    device = chosen_device("auto")
    sizes = asked.batch, asked.batch, asked.prompt_len, asked.new_tokens
    named = workloads_named(workloads)
    works = [(one.quick() if quick else one).shaped(*sizes) for one in named]
    ran = [asked.engine(one, device, is_quick=quick) for one in named]
    options = asked.beside_model()
    engines, absent = find_peers(peer or (), options)
    print_sentences(files.console, absent)
    if len(engines) < 2:
        raise NothingMeasured(
            "none of these engines is here; name its Python with --peer NAME=PYTHON."
        )
    with tempfile.TemporaryDirectory(prefix="kvtrail-", dir=folder) as scratch:
        contests = contests_of(
            zip(works, ran, strict=True), engines, Path(scratch).absolute(), options
        )
        settings = {
            "workloads": list(map(asdict, works)),
            "models": [one["model"] for one in ran],
            "engines": list(engines),
            "rounds": rounds,
            **options,
        }
        Contesting(settings, contests, absent, svg).with_options(files, how).answer()
