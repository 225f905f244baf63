"""Compiling kernel variants for sm_90 without a GPU, and the figures that come out."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asv_bench.errors import MeasurementFailed
from asv_bench.lab.codegen.sass import (
    ASYNC_COPY,
    CONSUMER_RELEASE,
    DEPENDENCY_WAIT,
    GLOBAL_LOAD,
    GLOBAL_STORE,
    LOCAL_MEMORY,
    TENSOR_CORE,
    disassemble,
)
from asv_bench.lab.codegen.target import target

if TYPE_CHECKING:
    from asv_bench.lab.codegen.launched_kernels import LaunchedKernel
    from kernels.tiles.variants import KernelVariant


FLOAT_ATOMIC = re.compile(r"\b(?:atom|red|cp\.reduce)(?:\.\w+(?:::\w+)*)*\.b?f(?:16|32|64)")
"""In PTX: in machine code, that of a single half is a loop that compares and swaps whole words."""


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """Facts about one compiled variant; identical for one Triton version on any machine.

    `compile_s`, CPU seconds, is the exception. The `loop_` figures count instructions inside
    loops only. Widths are in bytes per thread; 0 where there is no such access. `is_dependent`
    kernels start before their producers have ended, `dependency_waits` is how often they wait for
    those, `accesses_before_wait` how many global loads and stores stand before the first wait, if
    there is one, and `consumer_releases` how often they let the next kernel start. `rows` are the
    batch buckets of the engine's fused step that launch it.
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
    cubin_sha256: str
    compile_s: float


def compile_variant(variant: KernelVariant) -> KernelFigures:
    """Compile a variant described by hand for sm_90 and read the result."""
    from triton.compiler import ASTSource

    names = variant.kernel.arg_names
    source = ASTSource(
        fn=variant.kernel,
        signature={name: variant.signature.get(name, "constexpr") for name in names},
        constexprs=variant.constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.divisible},
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    return _figures(
        source,
        options,
        name=variant.name,
        dtype=variant.dtype,
        family=variant.family,
        is_dependent=bool(variant.constants.get("PDL")),
    )


def compile_launched(kernel: LaunchedKernel) -> KernelFigures:
    """Compile a kernel as the engine launches it for sm_90 and read the result."""
    return _figures(
        kernel.source,
        kernel.options,
        name=kernel.name,
        dtype=kernel.dtype,
        family=kernel.family,
        is_dependent=kernel.is_dependent,
        rows=tuple(kernel.rows),
    )


def _figures(
    source: Any,
    options: Mapping[str, Any],
    *,
    name: str,
    dtype: str,
    family: str,
    is_dependent: bool,
    rows: tuple[int, ...] = (),
) -> KernelFigures:
    import triton
    from triton.errors import TritonError

    started = _cpu_seconds()
    try:
        compiled = triton.compile(source, target=target(), options=dict(options))
    except TritonError as error:
        causes = [str(cause).splitlines()[0] for cause in _chain(error) if str(cause)]
        raise MeasurementFailed(
            f"{name} does not compile on Triton {triton.__version__}: {causes[-1]}"
        ) from error
    seconds = _cpu_seconds() - started
    cubin: bytes = compiled.asm["cubin"]
    code = disassemble(cubin)
    loops = code.in_loops()
    early = code.before(DEPENDENCY_WAIT)
    loads = [one.access_bytes for one in code.matching(GLOBAL_LOAD)]
    stores = [one.access_bytes for one in code.matching(GLOBAL_STORE)]
    return KernelFigures(
        name=name,
        dtype=dtype,
        family=family,
        is_dependent=is_dependent,
        rows=rows,
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
        dependency_waits=len(code.matching(DEPENDENCY_WAIT)),
        accesses_before_wait=len(early.matching(GLOBAL_LOAD)) + len(early.matching(GLOBAL_STORE)),
        consumer_releases=len(code.matching(CONSUMER_RELEASE)),
        float_atomics=len(FLOAT_ATOMIC.findall(compiled.asm["ptx"])),
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        compile_s=round(seconds, 3),
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it, the first cause last."""
    yield error
    cause = error.__cause__ or error.__context__
    if cause is not None:
        yield from _chain(cause)


def _cpu_seconds() -> float:
    """CPU time of this process and its finished children, ptxas among them.

    Wall time would measure whatever else the machine is doing.
    """
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
