"""Kernels compiled for sm_90 without a GPU: their code, and the figures that counters keep."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from asv_bench.errors import MeasurementFailed, Refused

if TYPE_CHECKING:
    from asv_bench.lab.launched_kernels import LaunchedKernel

_INSTRUCTION = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);", re.M
)
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction: its address, its name with modifiers, and its operands."""

    address: int
    name: str
    operands: str


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What Triton made of a kernel. All but `seconds`, of CPU time, depends on its version only."""

    name: str
    ptx: str
    cubin: bytes
    shared_bytes: int
    seconds: float
    code: tuple[Instruction, ...]
    registers: int
    local_bytes: int  # of stack and local memory

    def figures(self) -> dict[str, Any]:
        """What is counted of it, as JSON-ready values."""
        spills = sum(one.name.partition(".")[0] in ("LDL", "STL") for one in self.code)
        return {
            "registers": self.registers,
            "spill_instructions": spills,
            "stack_bytes": self.local_bytes,
            "shared_bytes": self.shared_bytes,
            "instructions": len(self.code),
            "cubin": hashlib.sha256(self.cubin).hexdigest()[:16],
        }


def compile_kernels(
    kernels: Sequence[LaunchedKernel], failures: list[str] | None = None
) -> list[CompiledKernel]:
    """Compile kernels, quickest many at once.

    Where one does not compile, its sentence is added to `failures`; without them MeasurementFailed
    is raised. Raises Refused under Triton's interpreter.
    """
    made = []
    with _fresh_compiler():
        for kernel in kernels:
            try:
                made.append(_compile(kernel))
            except MeasurementFailed as error:
                if failures is None:
                    raise
                failures.append(str(error))
    read = _disassembled([one.asm["cubin"] for _, one, _ in made])
    return [
        CompiledKernel(name, one.asm["ptx"], one.asm["cubin"], one.metadata.shared, seconds, *own)
        for (name, one, seconds), own in zip(made, read, strict=True)
    ]


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


def target() -> Any:
    """Triton's description of a Hopper GPU."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", 90, 32)


def _disassembled(cubins: Sequence[bytes]) -> list[tuple[tuple[Instruction, ...], int, int]]:
    """Instructions, registers and bytes of local memory, by the tools that Triton brings.

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
            registers, stack, local = map(int, resources.groups())
            found.append((own, registers, stack + local))
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
