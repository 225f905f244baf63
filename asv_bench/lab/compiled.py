"""Kernels compiled for sm_90 without a GPU: their code, and the figures that counters keep."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
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


def compile_kernel(kernel: LaunchedKernel) -> CompiledKernel:
    """Compile a kernel without a cache, so that the result depends on the kernel only.

    Raises MeasurementFailed with a sentence where it does not compile, and Refused under Triton's
    interpreter.
    """
    import triton
    from triton.errors import TritonError

    require_compiler()
    started = sum(os.times()[:4])
    with tempfile.TemporaryDirectory() as folder:
        # Without line information a cubin does not depend on where its source lies.
        variables = {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_CACHE_DIR": folder}
        try:
            with patch.dict(os.environ, variables):
                made = triton.compile(kernel.source, target=target(), options=dict(kernel.options))
        except TritonError as error:
            sentence, cause = "", error
            while cause is not None:  # the first cause comes last
                sentence = (str(cause).splitlines() or [sentence])[0]
                cause = cause.__cause__ or cause.__context__
            raise MeasurementFailed(
                f"{kernel.name} does not compile on Triton {triton.__version__}: {sentence}"
            ) from error
        seconds = sum(os.times()[:4]) - started
        path = Path(folder, "kernel.cubin")
        path.write_bytes(made.asm["cubin"])
        listed = _dumped(path)
    code, resources = parse_sass(listed), _RESOURCES.search(listed)
    if resources is None or not code:
        raise MeasurementFailed(
            "cuobjdump must print a kernel's instructions and resource usage, in a form known here"
        )
    registers, stack, local = map(int, resources.groups())
    asm, shared = made.asm, made.metadata.shared
    return CompiledKernel(
        *(kernel.name, asm["ptx"], asm["cubin"], shared, seconds, code, registers, stack + local)
    )


def require_compiler() -> None:
    """Raise Refused under Triton's interpreter."""
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise Refused("TRITON_INTERPRET must not be set: an interpreted kernel cannot be compiled")


def target() -> Any:
    """Triton's description of a Hopper GPU."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", 90, 32)


def parse_sass(text: str) -> tuple[Instruction, ...]:
    """The instructions in a listing."""
    return tuple(
        Instruction(int(address, 16), name, operands.strip())
        for address, name, operands in _INSTRUCTION.findall(text)
    )


def _dumped(cubin: Path) -> str:
    """The resource usage and the machine code of a kernel, by the tool that Triton brings."""
    import triton

    tool = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        raise Refused(
            f"the installed Triton must bring cuobjdump, as its Linux wheels do, but has none at "
            f"backends/nvidia/bin ({triton.__version__})"
        )
    command = [str(tool), "--dump-resource-usage", "--dump-sass", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MeasurementFailed(f"cuobjdump failed: {done.stderr.strip()}")
    return done.stdout
