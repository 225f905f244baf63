"""Kernels compiled for sm_90 without a GPU: their code, and the figures that counters keep."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from rich.console import Console
from rich.progress import track

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.lab.codegen.sass import Disassembly, disassemble

if TYPE_CHECKING:
    from asv_bench.lab.codegen.launched_kernels import LaunchedKernel


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What Triton made of a kernel. All but `seconds`, of CPU time, depends on its version only."""

    name: str
    ptx: str
    cubin: bytes
    shared_bytes: int
    seconds: float
    code: Disassembly

    def figures(self) -> dict[str, Any]:
        """What is counted of it, as JSON-ready values."""
        return {
            "registers": self.code.registers,
            "spill_instructions": self.code.count("LDL", "STL"),
            "stack_bytes": self.code.local_bytes,
            "shared_bytes": self.shared_bytes,
            "instructions": len(self.code.instructions),
            "cubin": hashlib.sha256(self.cubin).hexdigest()[:16],
        }


def compile_kernels(kernels: Sequence[LaunchedKernel]) -> list[CompiledKernel]:
    """Compile kernels; quickest for many at once, see `disassemble`.

    Raises MeasurementFailed if one does not compile, and Refused under Triton's interpreter.
    """
    with _fresh_compiler():
        return _read([_compile(kernel) for kernel in kernels])


_PART = 8
"""Kernels whose machine code is read at once."""
_known: list[LaunchedKernel] = []
"""In a worker: every kernel."""


def compile_all(
    kernels: Sequence[LaunchedKernel], console: Console
) -> tuple[list[CompiledKernel], list[str]]:
    """Compile kernels on all cores; returns those that compile, and a sentence of each other.

    Raises Refused under Triton's interpreter.
    """
    require_compiler()
    # Workers know the kernels, which cannot be sent to them, because they are forked.
    with ProcessPoolExecutor(
        len(os.sched_getaffinity(0)), get_context("fork"), _known.extend, (kernels,)
    ) as workers:
        # They start here, before the thread that shows progress, which a fork would cut off.
        parts = [range(len(kernels))[at : at + _PART] for at in range(0, len(kernels), _PART)]
        results = workers.map(_compile_part, parts)
        done = list(track(results, "compiling", len(parts), console=console, transient=True))
    compiled, failures = ([*chain.from_iterable(one)] for one in zip(*done, strict=True))
    return compiled, failures


def _compile_part(places: range) -> tuple[list[CompiledKernel], list[str]]:
    made, failures = [], []
    with _fresh_compiler():
        for place in places:
            try:
                made.append(_compile(_known[place]))
            except MeasurementFailed as error:
                failures.append(str(error))
        return _read(made), failures


def require_compiler() -> None:
    """Raise Refused under Triton's interpreter."""
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise Refused("TRITON_INTERPRET must not be set: an interpreted kernel cannot be compiled")


@contextmanager
def _fresh_compiler() -> Iterator[None]:
    """Compile without a cache, so that the result depends on the kernel only."""
    require_compiler()
    with (
        tempfile.TemporaryDirectory() as cache,
        # Without line information a cubin does not depend on where its source lies.
        patch.dict(os.environ, {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_CACHE_DIR": cache}),
    ):
        yield


def _compile(kernel: LaunchedKernel) -> tuple[str, Any, float]:
    """A kernel's name, what Triton makes of it, and the CPU seconds of this process and ptxas."""
    import triton
    from triton.errors import TritonError

    started = sum(os.times()[:4])
    try:
        made = triton.compile(kernel.source, target=target(), options=dict(kernel.options))
    except TritonError as error:
        sentence, cause = "", error
        while cause is not None:  # the first cause comes last
            sentence = (str(cause).splitlines() or [sentence])[0]
            cause = cause.__cause__ or cause.__context__
        raise MeasurementFailed(
            f"{kernel.name} does not compile on Triton {triton.__version__}: {sentence}"
        ) from error
    return kernel.name, made, sum(os.times()[:4]) - started


def _read(kernels: Sequence[tuple[str, Any, float]]) -> list[CompiledKernel]:
    codes = disassemble([made.asm["cubin"] for _, made, _ in kernels])
    return [
        CompiledKernel(
            name, made.asm["ptx"], made.asm["cubin"], made.metadata.shared, seconds, code
        )
        for (name, made, seconds), code in zip(kernels, codes, strict=True)
    ]


def target() -> Any:
    """Triton's description of a Hopper GPU."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", 90, 32)
