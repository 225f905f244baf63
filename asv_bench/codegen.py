"""``python -m asv_bench.codegen``: compile every kernel variant for sm_90 and check the result.

Needs no GPU. Exits 1 with one sentence for each broken rule.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from asv_bench.codegen_compile import KernelFigures, compile_variant
from asv_bench.codegen_rules import violations
from asv_bench.console import add_figure_columns, make_console, print_table
from asv_bench.errors import BenchError, Refused

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
        figures = compile_all(options.only, console)
    except BenchError as error:
        complaints.print(f"codegen: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    broken = [sentence for one in figures for sentence in violations(one)]
    print_table(console, figure_table(figures))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report(figures, broken), indent=1) + "\n", "utf-8")
        console.print(f"figures written to {options.json}", highlight=False, soft_wrap=True)
    for sentence in broken:
        complaints.print(f"codegen: {sentence}", markup=False, highlight=False, soft_wrap=True)
    if not broken:
        console.print(f"{len(figures)} variants compiled for sm_90; every rule holds")
    return 1 if broken else 0


def compile_all(only: str, console: Console) -> list[KernelFigures]:
    """Compile every variant whose name contains `only`, afresh.

    Raises
    ------
    Refused
        Under Triton's interpreter, which defines kernels that cannot be compiled, and where no
        variant has such a name.
    """
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise Refused("TRITON_INTERPRET must not be set: an interpreted kernel cannot be compiled")
    # Without line information a cubin depends on the kernel alone, not on where its source lies.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        from kernels.variants import kernel_variants

        variants = [one for one in kernel_variants() if only in one.name]
        if not variants:
            raise Refused(f"no kernel variant has {only!r} in its name")
        progress = track(variants, "compiling", console=console, transient=True)
        return [compile_variant(variant) for variant in progress]


def figure_table(figures: Iterable[KernelFigures]) -> Table:
    """The figures as people read them."""
    table = Table(title="kernels compiled for sm_90", title_justify="left")
    table.add_column("variant", overflow="fold")
    add_figure_columns(table, *(title for title, _ in COLUMNS), "cubin")
    for one in figures:
        values = asdict(one)
        cells = [str(values[field]) for _, field in COLUMNS]
        table.add_row(one.name, *cells, one.cubin_sha256[:12])
    return table


def report(figures: Iterable[KernelFigures], broken: Sequence[str]) -> dict[str, object]:
    """The figures as JSON keeps them."""
    import triton

    return {
        "target": "sm_90",
        "triton": triton.__version__,
        "python": platform.python_version(),
        "kernels": [asdict(one) for one in figures],
        "violations": list(broken),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asv_bench.codegen",
        description="Compile every kernel variant for sm_90, GPU or not, and check what came out.",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only variants with TEXT in their name"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
