"""``python -m asv_bench.lab.codegen``: compile every kernel for sm_90 and check the result.

Two sets: what the engine launches for GPT-2 at every batch bucket, as it launches it, and the plain
kernels for the head shapes and dtypes of other models. Needs no GPU. Exits 1 with one sentence for
each broken rule.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.progress import track
from rich.table import Table

from asv_bench.errors import BenchError, MeasurementFailed, Refused
from asv_bench.lab.codegen import launched_kernels as launched
from asv_bench.lab.codegen.compiled import KernelFigures, compile_launched, compile_variant
from asv_bench.lab.codegen.rules import KNOWN_EXCEPTIONS, violations
from asv_bench.output.console import add_figure_columns, make_console, print_table
from asv_bench.output.progress import Progress

COLUMNS = (
    ("regs", "registers"),
    ("spills", "spill_instructions"),
    ("stack\nB", "stack_bytes"),
    ("shared\nB", "shared_bytes"),
    ("SASS", "instructions"),
    ("tensor\ncore", "tensor_core"),
    ("async\ncopy", "async_copies"),
    ("CPU\ns", "compile_s"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; 0 when every rule holds, 1 when one is broken, 2 when it cannot run."""
    options = _parser().parse_args(arguments)
    console = make_console()
    complaints = make_console(stderr=True)
    try:
        figures, failures = compile_all(options.only, console)
    except BenchError as error:
        complaints.print(f"codegen: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    broken = [sentence for one in figures for sentence in violations(one, triton_version())]
    broken += failures
    print_table(console, figure_table(figures))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report(figures, broken), indent=1) + "\n", "utf-8")
        console.print(f"figures written to {options.json}", highlight=False, soft_wrap=True)
    for sentence in broken:
        complaints.print(f"codegen: {sentence}", markup=False, highlight=False, soft_wrap=True)
    if not broken:
        console.print(f"{len(figures)} variants compiled for sm_90; every rule holds")
    for line in _exceptions_met(figures):
        console.print(line, highlight=False, soft_wrap=True)
    return 1 if broken else 0


def compile_all(only: Sequence[str], console: Console) -> tuple[list[KernelFigures], list[str]]:
    """Compile every kernel whose name contains one of `only`, all if there is none, afresh.

    Returns
    -------
    tuple
        The figures of those that compile, and a sentence about each that does not.

    Raises
    ------
    Refused
        Under Triton's interpreter, which defines kernels that cannot be compiled, and where no
        variant has such a name.
    """
    with fresh_compiler():
        every = _pending(console)
        for text in only:
            if not any(text in name for name, _ in every):
                raise Refused(f"no kernel variant has {text!r} in its name")
        pending = [
            compile_one
            for name, compile_one in every
            if not only or any(text in name for text in only)
        ]
        # Workers know the kernels, which cannot be sent to them, because they are forked.
        with ProcessPoolExecutor(
            len(os.sched_getaffinity(0)), get_context("fork"), _know, (pending,)
        ) as workers:
            # They start here, before the thread that shows progress, which a fork would cut off.
            results = workers.map(_compile, range(len(pending)))
            compiled = list(
                track(results, "compiling", len(pending), console=console, transient=True)
            )
        figures = [one for one in compiled if isinstance(one, KernelFigures)]
        return figures, [one for one in compiled if isinstance(one, str)]


_known: list[Callable[[], KernelFigures]] = []
"""In a worker: what compiles each kernel."""


def _know(pending: Sequence[Callable[[], KernelFigures]]) -> None:
    _known[:] = pending


def _compile(place: int) -> KernelFigures | str:
    """The figures of a kernel, or a sentence where it does not compile."""
    try:
        return _known[place]()
    except MeasurementFailed as error:
        return str(error)


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Compile anew, and so that the result depends on the kernel alone.

    Raises
    ------
    Refused
        Under Triton's interpreter.
    """
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise Refused("TRITON_INTERPRET must not be set: an interpreted kernel cannot be compiled")
    with (
        tempfile.TemporaryDirectory() as cache,
        # Without line information a cubin does not depend on where its source lies.
        patch.dict(os.environ, {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_CACHE_DIR": cache}),
    ):
        yield


def _pending(console: Console) -> list[tuple[str, Callable[[], KernelFigures]]]:
    """Names of all kernels, and what compiles each."""
    from kernels.tiles.variants import kernel_variants

    if not launched.has_gluon():
        console.print(
            f"Triton {triton_version()} has no Gluon for Hopper: the ring of attention, the "
            "streams of linear maps and of the LM head are not compiled",
            soft_wrap=True,
        )
    with Progress(console, "finding what the engine launches", unit="kernels", is_apart=False):
        engine = [
            *launched.launched_kernels(),
            *launched.plain_kernels(),
            *launched.wide_head_kernels(),
        ]
    return [
        *((one.name, partial(compile_launched, one)) for one in engine),
        *((one.name, partial(compile_variant, one)) for one in kernel_variants()),
    ]


def triton_version() -> str:
    """Of the Triton that compiles."""
    import triton

    version: str = triton.__version__
    return version


def _exceptions_met(figures: Iterable[KernelFigures]) -> list[str]:
    """A line for each known exception among these kernels on this Triton."""
    names = {one.name for one in figures}
    return [
        f"known exception on Triton {one.triton}: {one.kernel} uses {one.stack_bytes} bytes of "
        f"stack, because {one.reason}"
        for one in KNOWN_EXCEPTIONS
        if one.kernel in names and triton_version().startswith(f"{one.triton}.")
    ]


def figure_table(figures: Iterable[KernelFigures]) -> Table:
    """The figures as people read them."""
    table = Table(title="kernels compiled for sm_90", title_justify="left")
    table.add_column("variant", no_wrap=True)
    add_figure_columns(table, *(title for title, _ in COLUMNS), "cubin", "batch")
    for one in figures:
        values = asdict(one)
        cells = [str(values[field]) for _, field in COLUMNS]
        table.add_row(one.name, *cells, one.cubin_sha256[:8], _span(one.rows))
    return table


def _span(rows: Sequence[int]) -> str:
    """The least and the greatest bucket; empty for kernels that no fused step launches."""
    return "" if not rows else str(rows[0]) if len(rows) == 1 else f"{rows[0]}-{rows[-1]}"


def report(figures: Iterable[KernelFigures], broken: Sequence[str]) -> dict[str, object]:
    """The figures as JSON keeps them."""
    return {
        "target": "sm_90",
        "triton": triton_version(),
        "python": platform.python_version(),
        "kernels": [asdict(one) for one in figures],
        "violations": list(broken),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asv_bench.lab.codegen",
        description="Compile every kernel variant for sm_90, GPU or not, and check what came out.",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="only variants with TEXT in their name; may be given several times",
    )
    return parser
