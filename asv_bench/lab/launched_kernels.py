"""The kernels that the engine launches for GPT-2 on a GPU, and what they compile to for sm_90.

An engine runs on a pretended GPU, and Triton's own binder specialises every launch by its
arguments. So the kernels compiled from here are those that run. No GPU is needed.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.lab.pretend_cuda import Launch, Traffic, pretended_cuda

MODEL = "gpt2"
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)", re.M)
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


@dataclass(slots=True)
class LaunchedKernel:
    """One compilation that some launch of the engine asks for."""

    name: str
    # What `triton.compile` takes.
    source: Any
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Its name and a hash of all that decides what it compiles to."""
        content = repr((self.source.hash(), sorted(self.options.items())))
        return f"{self.name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


@contextmanager
def pretended(gpu: tuple[int, int]) -> Iterator[Traffic]:
    """A pretended GPU of that capability, whatever the process knew of one before it."""
    from kernels.backend import capability

    require_compiler()
    capability.cache_clear()
    with pretended_cuda(gpu) as traffic:
        yield traffic
    capability.cache_clear()


def engine_launches(batch_size: int, gpu: tuple[int, int]) -> list[Launch]:
    """Launches of an engine's captures, fused and not, and of a prefill, in their order.

    It has every bucket of batches up to a size. Raises Refused under Triton's interpreter.
    """
    from engine import Engine, EngineConfig, SamplingParams
    from engine.models.registry import RANDOM_CONFIGS

    # A layer behind another launches what all behind it do.
    few_layers = replace(RANDOM_CONFIGS[MODEL], num_layers=2)
    with pretended(gpu) as traffic, patch.dict(RANDOM_CONFIGS, {MODEL: few_layers}):
        for fuse in (True, False):
            engine = Engine(
                EngineConfig(
                    model=f"random:{MODEL}",
                    device="cuda",
                    dtype="float16",
                    max_batch_size=batch_size,
                    num_kv_blocks=4 * batch_size + 16,
                    # One bucket of prefills: all launch the same kernels.
                    prefill_max_tokens=64,
                    fuse=fuse,
                )
            )
            params = SamplingParams(max_new_tokens=2, temperature=1.0, ignore_eos=True)
            # Too long for decode steps to feed it: it is prefilled.
            engine.generate([list(range(1, 20))], params)
        return list(traffic.launches)


def specialised(launch: Launch) -> LaunchedKernel:
    """What a launch has Triton compile at first sight."""
    kernel = launch.kernel
    backend, bind, make_source = _compiler_of(kernel)
    options = {**launch.options, "debug": False, "instrumentation_mode": ""}
    bound, specialization, extra = bind(*launch.arguments, **options)
    parsed, signature, constants, attributes = kernel._pack_args(
        backend, options, bound, specialization, extra
    )
    source = make_source(kernel, signature, constants, attributes)
    return LaunchedKernel(launch.name, source, parsed.__dict__)


@cache
def _compiler_of(kernel: Any) -> tuple[Any, Any, Any]:
    """The backend, what binds and specialises arguments for it, and the kind of source."""
    from triton.compiler import ASTSource, make_backend
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(target())
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    return backend, bind, GluonASTSource if kernel.is_gluon() else ASTSource


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
