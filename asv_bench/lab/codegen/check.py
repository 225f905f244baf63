"""`python -m asv_bench.lab.codegen`: compile every kernel for sm_90 and check the result.

It compiles every kernel that the engine launches for GPT-2, at every batch bucket, those of fused
steps of other families at some, and the plain kernels for the head shapes and dtypes of other
models. It needs no GPU. It prints one sentence for
each broken rule, and then ends with exit code 1.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import typer
from rich.console import Console
from rich.progress import track

from asv_bench.cli.options import CsvPath, MarkdownPath
from asv_bench.errors import BenchError, MeasurementFailed, Refused
from asv_bench.lab.codegen import launched_kernels as launched
from asv_bench.lab.codegen.compiled import KernelFigures, compile_launched, figures_of
from asv_bench.lab.codegen.rules import violations
from asv_bench.output.console import make_console, print_sentences
from asv_bench.output.progress import Progress
from asv_bench.output.record import write_json
from asv_bench.output.table import Column, Table, digits
from asv_bench.output.table_files import TableFiles

COLUMNS = (
    Column("name", "variant", kind="name"),
    Column("registers", "regs"),
    Column("spill_instructions", "spills"),
    Column("stack_bytes", "stack", "B"),
    Column("shared_bytes", "shared", "B", str),
    Column("instructions", "SASS", show=str),
    Column("tensor_core", "tensor", "core"),
    Column("async_copies", "async", "copy"),
    Column("compile_s", "CPU", "s", digits(1)),
    Column("cubin_sha256", "cubin", show=lambda digest: digest[:8]),
    # The least and the greatest bucket; empty for kernels that no fused step launches.
    Column("rows", "batch", show=lambda rows: "-".join(map(str, sorted({*rows[:1], *rows[-1:]})))),
)


def run(
    only: Annotated[
        list[str] | None, typer.Option(help="Only variants with this in their name.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Where the table goes as JSON; - is standard output.")
    ] = None,
    markdown: MarkdownPath = None,
    csv: CsvPath = None,
) -> None:
    """Compile every kernel variant for sm_90, GPU or not, and check what came out.

    Raises typer.Exit with 1 when a rule is broken, 2 when the check cannot run.
    """
    complaints = make_console(stderr=True)
    try:
        files = TableFiles(markdown, csv, record=json)
        figures, failures = compile_all(only or (), files.console)
    except BenchError as error:
        print_sentences(complaints, [f"codegen: {error}"])
        raise typer.Exit(2) from error
    broken = [sentence for one in figures for sentence in violations(one, triton_version())]
    table = figure_table(figures)
    files.show(table)
    if json is not None:
        write_json(json, table.to_json(), indent=1)
    print_sentences(complaints, [f"codegen: {sentence}" for sentence in broken + failures])
    if broken or failures:
        raise typer.Exit(1)
    files.console.print(f"{len(figures)} variants compiled for sm_90; every rule holds")


def compile_all(only: Sequence[str], console: Console) -> tuple[list[KernelFigures], list[str]]:
    """Compile every kernel whose name contains one of `only`; all kernels if `only` is empty.

    It returns the figures of those that compile, and a sentence about each that does not. Raises
    Refused under Triton's interpreter, and where no variant has such a name.
    """
    with fresh_compiler():
        every = _kernels(console)
        for text in only:
            if not any(text in one.name for one in every):
                raise Refused(f"no kernel variant has {text!r} in its name")
        pending = [one for one in every if not only or any(text in one.name for text in only)]
        # Workers know the kernels, which cannot be sent to them, because they are forked.
        with ProcessPoolExecutor(
            len(os.sched_getaffinity(0)), get_context("fork"), _known.extend, (pending,)
        ) as workers:
            # They start here, before the thread that shows progress, which a fork would cut off.
            parts = [range(len(pending))[at : at + _PART] for at in range(0, len(pending), _PART)]
            results = workers.map(_compile, parts)
            done = list(track(results, "compiling", len(parts), console=console, transient=True))
        figures, failures = zip(*done, strict=True)
        return [*chain.from_iterable(figures)], [*chain.from_iterable(failures)]


_PART = 8
"""Kernels whose machine code is read at once."""
_known: list[launched.LaunchedKernel] = []
"""In a worker: every kernel."""


def _compile(places: range) -> tuple[list[KernelFigures], list[str]]:
    """The figures of kernels, and a sentence about each that does not compile."""
    compiled, failures = [], []
    for place in places:
        try:
            compiled.append(compile_launched(_known[place]))
        except MeasurementFailed as error:
            failures.append(str(error))
    return figures_of(compiled), failures


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Compile without a cache, so that the result depends on the kernel only.

    Raises Refused under Triton's interpreter.
    """
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise Refused("TRITON_INTERPRET must not be set: an interpreted kernel cannot be compiled")
    with (
        tempfile.TemporaryDirectory() as cache,
        # Without line information a cubin does not depend on where its source lies.
        patch.dict(os.environ, {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_CACHE_DIR": cache}),
    ):
        yield


def _kernels(console: Console) -> list[launched.LaunchedKernel]:
    if not launched.has_gluon():
        console.print(
            f"Triton {triton_version()} has no Gluon for Hopper: the ring of attention, the "
            "streams of linear maps and of the LM head are not compiled"
        )
    with Progress(console, "finding what the engine launches", unit="kernels", is_apart=False):
        return [
            *launched.launched_kernels(),
            *launched.plain_kernels(),
            *launched.wide_head_kernels(),
            *launched.family_kernels(),
            *launched.described_kernels(),
        ]


def triton_version() -> str:
    """Of the Triton that compiles."""
    import triton

    version: str = triton.__version__
    return version


def figure_table(figures: Iterable[KernelFigures]) -> Table:
    """The figures as people read them."""
    rows = [[getattr(one, column.key) for column in COLUMNS] for one in figures]
    return Table(COLUMNS, rows, "kernels compiled for sm_90")
