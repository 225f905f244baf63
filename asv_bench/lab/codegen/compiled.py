"""Kernels compiled for sm_90 without a GPU: their code, and the figures that counters keep."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from rich.console import Console
from rich.progress import track

from asv_bench.errors import MeasurementFailed, Refused

if TYPE_CHECKING:
    from asv_bench.lab.codegen.launched_kernels import LaunchedKernel

_INSTRUCTION = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);", re.M
)
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction: its address, its name with modifiers, and its operands."""

    address: int
    name: str
    operands: str


@dataclass(frozen=True, slots=True)
class Disassembly:
    """The instructions and resources of one kernel."""

    instructions: tuple[Instruction, ...]
    registers: int = 0
    local_bytes: int = 0  # of stack and local memory

    def count(self, *mnemonics: str) -> int:
        """How many instructions have one of these names, whatever their modifiers."""
        return sum(one.name.partition(".")[0] in mnemonics for one in self.instructions)


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


def disassemble(cubins: Sequence[bytes]) -> list[Disassembly]:
    """Read cubins with the tools that Triton brings.

    The disassembler, which starts for longer than it reads a kernel, reads the code of all in one
    run. So addresses go on from one kernel to the next.
    """
    codes = [_code_of(cubin) for cubin in cubins]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels")
        path.write_bytes(b"".join(codes))
        listed = parse_sass(_run("nvdisasm", "--binary", "SM90", path)) if codes else ()
        found, end = [], 0
        for cubin, code in zip(cubins, codes, strict=True):
            start, end = end, end + len(code)
            own = tuple(one for one in listed if start <= one.address < end)
            path.write_bytes(cubin)
            resources = _RESOURCES.search(_run("cuobjdump", "--dump-resource-usage", path))
            if resources is None or not own:
                raise MeasurementFailed(
                    "Triton's tools must print a kernel's instructions and resource usage, in a "
                    "form known here"
                )
            registers, stack, _, local = map(int, resources.groups())
            found.append(Disassembly(own, registers, stack + local))
    return found


def _code_of(cubin: bytes) -> bytes:
    """The machine code of the one kernel in a cubin, which is an ELF file of 64 bits."""
    table = struct.unpack_from("<Q", cubin, 0x28)[0]
    count, names = struct.unpack_from("<HH", cubin, 0x3C)
    sections = [struct.unpack_from("<I20xQQ", cubin, table + 64 * place) for place in range(count)]
    base = sections[names][1]
    [code] = [
        cubin[offset : offset + size]
        for name, offset, size in sections
        if cubin.startswith(b".text.", base + name)
    ]
    return code


def parse_sass(text: str) -> tuple[Instruction, ...]:
    """The instructions in a listing of nvdisasm."""
    return tuple(
        Instruction(int(address, 16), name, operands.strip())
        for address, name, operands in _INSTRUCTION.findall(text)
    )


def _run(tool: str, *words: str | Path) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    if not path.exists():
        raise Refused(
            f"the installed Triton must bring {tool}, as its Linux wheels do, but has none at "
            f"backends/nvidia/bin ({triton.__version__})"
        )
    command = [str(path), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MeasurementFailed(f"{tool} {words[0]} failed: {done.stderr.strip()}")
    return done.stdout
