"""Compiling kernel variants for sm_90 without a GPU, and the figures that come out."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asv_bench.codegen_sass import (
    ASYNC_COPY,
    GLOBAL_LOAD,
    GLOBAL_STORE,
    LOCAL_MEMORY,
    TENSOR_CORE,
    disassemble,
)

if TYPE_CHECKING:
    from kernels.variants import KernelVariant

CAPABILITY = 90
WARP_SIZE = 32


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """Facts about one compiled variant; identical for one Triton version on any machine.

    `compile_s`, CPU seconds, is the exception. The `loop_` figures count instructions inside
    loops only. Widths are in bytes per thread; 0 where there is no such access.
    """

    name: str
    dtype: str
    attends: bool
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
    cubin_sha256: str
    compile_s: float


def compile_variant(variant: KernelVariant) -> KernelFigures:
    """Compile one variant for sm_90 and read the result."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = variant.kernel.arg_names
    source = ASTSource(
        fn=variant.kernel,
        signature={name: variant.signature.get(name, "constexpr") for name in names},
        constexprs=variant.constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.divisible},
    )
    started = _cpu_seconds()
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", CAPABILITY, WARP_SIZE),
        options={"num_warps": variant.num_warps, "num_stages": variant.num_stages},
    )
    seconds = _cpu_seconds() - started
    cubin: bytes = compiled.asm["cubin"]
    code = disassemble(cubin)
    loops = code.in_loops()
    loads = [one.access_bytes for one in code.matching(GLOBAL_LOAD)]
    stores = [one.access_bytes for one in code.matching(GLOBAL_STORE)]
    return KernelFigures(
        name=variant.name,
        dtype=variant.dtype,
        attends=variant.attends,
        registers=code.registers,
        stack_bytes=code.stack_bytes + code.local_bytes,
        spill_instructions=len(code.matching(LOCAL_MEMORY)),
        shared_bytes=compiled.metadata.shared,
        instructions=len(code.instructions),
        tensor_core=len(code.matching(TENSOR_CORE)),
        async_copies=len(code.matching(ASYNC_COPY)),
        loop_tensor_core=len(loops.matching(TENSOR_CORE)),
        loop_async_copies=len(loops.matching(ASYNC_COPY)),
        loop_narrowest_load=min(
            (one.access_bytes for one in loops.matching(GLOBAL_LOAD)), default=0
        ),
        widest_load=max(loads, default=0),
        narrowest_store=min(stores, default=0),
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        compile_s=round(seconds, 3),
    )


def _cpu_seconds() -> float:
    """CPU time of this process and its finished children, ptxas among them.

    Wall time would measure whatever else the machine is doing.
    """
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
