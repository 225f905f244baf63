"""Compiling kernel variants for sm_90 without a GPU, and the figures that come out."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asv_bench.errors import MeasurementFailed
from asv_bench.lab.codegen import sass

if TYPE_CHECKING:
    from asv_bench.lab.codegen.launched_kernels import LaunchedKernel


FLOAT_ATOMIC = re.compile(r"\b(?:atom|red|cp\.reduce)(?:\.\w+(?:::\w+)*)*\.b?f(?:16|32|64)")
"""In PTX: in machine code, that of a single half is a loop that compares and swaps whole words."""

_SUM = re.compile(r"add\.s32\s+(%r\d+), %r\d+, (\d+);")
_PLACE = r"\[\s*(%r\d+)(?:\s*\+\s*(\d+))?\s*\]"
_BARRIER = re.compile(r"mbarrier\.init\.shared::cta\.b64 " + _PLACE)
_SHARED_STORE = re.compile(r"\bst\.shared[.\w]*\s+" + _PLACE)


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """Facts about one compiled variant. All but `compile_s` depend on the Triton version only.

    The `loop_` figures count instructions inside loops. Widths are bytes per thread, 0 without such
    an access. An `is_dependent` kernel starts before its producers have ended: it waits for them
    `dependency_waits` times, after `accesses_before_wait` global loads and stores, and lets the
    next kernel start `consumer_releases` times. `rows` are the batch buckets whose fused step
    launches it. `compile_s` is CPU seconds.
    """

    name: str
    dtype: str
    family: str
    is_dependent: bool
    rows: tuple[int, ...]
    registers: int
    stack_bytes: int
    spill_instructions: int
    shared_bytes: int
    instructions: int
    tensor_core: int
    async_copies: int
    loop_tensor_core: int
    loop_async_copies: int
    loop_narrowest_load: int
    widest_load: int
    narrowest_store: int
    dependency_waits: int
    accesses_before_wait: int
    consumer_releases: int
    float_atomics: int
    stores_on_barriers: int
    cubin_sha256: str
    compile_s: float


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel, what Triton made of it, and the CPU seconds that it took."""

    kernel: LaunchedKernel
    made: Any
    seconds: float


def compile_launched(kernel: LaunchedKernel) -> Compiled:
    """Compile a kernel for sm_90. Raises MeasurementFailed if it does not compile."""
    import triton
    from triton.errors import TritonError

    started = _cpu_seconds()
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
    return Compiled(kernel, made, _cpu_seconds() - started)


def figures_of(kernels: Sequence[Compiled]) -> list[KernelFigures]:
    """What came out; quickest for many kernels at once, see `sass.disassemble`."""
    codes = sass.disassemble([one.made.asm["cubin"] for one in kernels])
    return [_figures(one, code) for one, code in zip(kernels, codes, strict=True)]


def _figures(compiled: Compiled, code: sass.Disassembly) -> KernelFigures:
    kernel, made = compiled.kernel, compiled.made
    loops = code.in_loops()
    early = code.before(sass.DEPENDENCY_WAIT)
    return KernelFigures(
        name=kernel.name,
        dtype=kernel.dtype,
        family=kernel.family,
        is_dependent=kernel.is_dependent,
        rows=tuple(kernel.rows),
        registers=code.registers,
        stack_bytes=code.local_bytes,
        spill_instructions=code.count(sass.LOCAL_MEMORY),
        shared_bytes=made.metadata.shared,
        instructions=len(code.instructions),
        tensor_core=code.count(sass.TENSOR_CORE),
        async_copies=code.count(sass.ASYNC_COPY),
        loop_tensor_core=loops.count(sass.TENSOR_CORE),
        loop_async_copies=loops.count(sass.ASYNC_COPY),
        loop_narrowest_load=min(loops.widths(sass.GLOBAL_LOAD), default=0),
        widest_load=max(code.widths(sass.GLOBAL_LOAD), default=0),
        narrowest_store=min(code.widths(sass.GLOBAL_STORE), default=0),
        dependency_waits=code.count(sass.DEPENDENCY_WAIT),
        accesses_before_wait=early.count(sass.GLOBAL_LOAD) + early.count(sass.GLOBAL_STORE),
        consumer_releases=code.count(sass.CONSUMER_RELEASE),
        float_atomics=len(FLOAT_ATOMIC.findall(made.asm["ptx"])),
        stores_on_barriers=stores_on_barriers(made.asm["ptx"]),
        cubin_sha256=hashlib.sha256(made.asm["cubin"]).hexdigest(),
        compile_s=round(compiled.seconds, 3),
    )


def stores_on_barriers(ptx: str) -> int:
    """Stores to shared memory that begin where a barrier of the kernel lies.

    The compiler gives memory to something else after its last use that it knows of. A barrier's
    may be changed later: values that were exchanged there have come back wrong.
    """
    sums = {register: int(constant) for register, constant in _SUM.findall(ptx)}

    def begin(pattern: re.Pattern[str]) -> list[int]:
        return [sums.get(base, 0) + int(offset or 0) for base, offset in pattern.findall(ptx)]

    barriers = set(begin(_BARRIER))
    return sum(place in barriers for place in begin(_SHARED_STORE))


def target() -> Any:
    """Triton's description of a Hopper GPU."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", 90, 32)


def _cpu_seconds() -> float:
    """CPU time of this process and its finished children, ptxas among them."""
    return sum(os.times()[:4])
