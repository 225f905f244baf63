"""Kernels compiled for sm_90 without a GPU: their code, and the figures that counters keep."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from asv_bench.errors import MeasurementFailed, Refused

if TYPE_CHECKING:
    from asv_bench.lab.launched_kernels import LaunchedKernel

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)", re.M)
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What Triton made of a kernel. All but `seconds`, of CPU time, depends on its version only."""

    name: str
    ptx: str
    listing: str  # of its machine code
    seconds: float
    figures: Mapping[str, Any]  # what is counted of it, as JSON-ready values


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
        listing = _dumped(path)
    code, resources = _INSTRUCTION.findall(listing), _RESOURCES.search(listing)
    if resources is None or not code:
        raise MeasurementFailed(
            "cuobjdump must print a kernel's instructions and resource usage, in a form known here"
        )
    registers, stack, local = map(int, resources.groups())
    figures = {
        "registers": registers,
        "spill_instructions": sum(one in ("LDL", "STL") for one in code),
        "stack_bytes": stack + local,
        "shared_bytes": made.metadata.shared,
        "instructions": len(code),
        "cubin": hashlib.sha256(made.asm["cubin"]).hexdigest()[:16],
    }
    return CompiledKernel(kernel.name, made.asm["ptx"], listing, seconds, figures)


def require_compiler() -> None:
    """Raise Refused under Triton's interpreter."""
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise Refused("TRITON_INTERPRET must not be set: an interpreted kernel cannot be compiled")


def target() -> Any:
    """Triton's description of a Hopper GPU."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", 90, 32)


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
