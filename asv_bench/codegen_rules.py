"""What must hold of every compiled kernel, as sentences about those for which it does not."""

from __future__ import annotations

from collections.abc import Iterator

from asv_bench.codegen_compile import KernelFigures

MAX_COMPILE_S = 20.0
HALF_PRECISION = frozenset({"fp16", "bf16"})
VECTOR_BYTES = 16
SCALAR_BYTES = 4


def violations(figures: KernelFigures) -> list[str]:
    """One sentence for each rule that a compiled variant breaks."""
    rules = _attention_violations if figures.attends else _append_violations
    return [
        f"{figures.name} {broken}" for broken in (*_common_violations(figures), *rules(figures))
    ]


def _common_violations(figures: KernelFigures) -> Iterator[str]:
    if figures.spill_instructions:
        yield f"spills registers ({figures.spill_instructions} local-memory instructions)"
    if figures.stack_bytes:
        yield f"uses a stack frame of {figures.stack_bytes} bytes"
    if figures.compile_s > MAX_COMPILE_S:
        yield f"took {figures.compile_s:.1f} CPU seconds to compile, above {MAX_COMPILE_S:.0f}"


def _attention_violations(figures: KernelFigures) -> Iterator[str]:
    if figures.dtype in HALF_PRECISION and not figures.loop_tensor_core:
        yield "multiplies without tensor cores in its loop over keys (no HMMA or HGMMA)"
    if figures.dtype not in HALF_PRECISION and figures.tensor_core:
        yield "multiplies float32 on tensor cores, which would round it"
    if not figures.loop_async_copies:
        yield "loads keys without asynchronous copies in its loop (no LDGSTS or UTMALDG)"
    if 0 < figures.loop_narrowest_load < SCALAR_BYTES:
        yield f"loads {figures.loop_narrowest_load} bytes at a time inside a loop"


def _append_violations(figures: KernelFigures) -> Iterator[str]:
    if figures.widest_load < VECTOR_BYTES:
        yield f"reads new keys without {VECTOR_BYTES}-byte loads"
    if figures.narrowest_store < VECTOR_BYTES:
        width = figures.narrowest_store
        yield f"writes the cache {width} bytes at a time instead of {VECTOR_BYTES}"
