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
    *,
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
    process runs all workloads of one model. Exit codes: 0 peers were measured; 1 no peer gave a
    figure; 2 refused; 5 there is none here; 130 interrupted, and the same command goes on.
    """
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
    with tempfile.TemporaryDirectory(prefix="kvtrail-", dir=folder) as scratch:
        contests = contests_of(works, engines, Path(scratch).absolute())
        settings = {
            "workloads": [asdict(one) for one, *_ in works],
            "models": [of_one for _, of_one, _ in works],
            "engines": list(engines),
            "rounds": rounds,
        }
        session = Contesting(settings, contests, absent, svg)
        session.with_options(files, how).answer()
