"""The rules for compiled kernels, and a sentence for each broken one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tests.kernels.codegen.figures import KernelFigures

MAX_COMPILE_S = 20.0
HALF_PRECISION = frozenset({"fp16", "bf16"})
VECTOR_BYTES = 16
SCALAR_BYTES = 4


KNOWN_SPILLS: dict[tuple[str, str], tuple[int, int]] = {
    # ptxas gives these 80 registers and keeps the rest outside the loop; they are for GPUs without
    # Hopper's kernels.
    ("linear_tiles-N768-K768-M32-n64-k64-stats0-even", "3.6"): (8, 2),
    ("linear_tiles-N768-K768-M32-n64-k64-stats0-even", "3.7"): (8, 2),
    ("linear_tiles-N2304-K768-M32-n64-k64-stats12-even", "3.9"): (16, 6),
    ("linear_tiles-N768-K3072-M32-n64-k64-split4-stats0-even", "3.9"): (16, 4),
    # One number that the program puts aside before its loop and takes back behind it: ptxas gives a
    # program of these 128 registers.
    ("ring_attention-D64-G1-parallel-append-stages6-cluster8-fp8-cache", "3.9"): (8, 2),
    # Only Triton 3.8 does so, and GPT-2 on Hopper runs none of these.
    ("decode-append-serial-gpt2-bf16", "3.8"): (8, 4),
    ("decode-append-serial-llama-1b-bf16", "3.8"): (8, 4),
    ("decode-append-serial-llama-8b-fp32", "3.8"): (8, 2),
}
"""Kernels that may keep something in local memory, by name and Triton's major and minor version:
bytes of stack and local-memory instructions."""


def violations(
    figures: KernelFigures,
    triton: str = "",  # the version that compiled it
    # See `KNOWN_SPILLS`. A kernel listed there must use exactly that much local memory.
    known: Mapping[tuple[str, str], tuple[int, int]] = KNOWN_SPILLS,
) -> list[str]:
    """One sentence for each rule that a compiled kernel breaks."""
    version = ".".join(triton.split(".")[:2])
    broken = (
        *_local_memory(figures, version, known.get((figures.name, version))),
        *_common_violations(figures),
        *_FAMILY_RULES[figures.family](figures),
    )
    return [f"{figures.name} {sentence}" for sentence in broken]


def _local_memory(
    figures: KernelFigures, version: str, known: tuple[int, int] | None
) -> Iterator[str]:
    found = stack, spills = figures.stack_bytes, figures.spill_instructions
    if found == (known or (0, 0)):
        return
    if known is None:
        if spills:
            yield f"spills registers ({spills} local-memory instructions)"
        if stack:
            yield f"uses a stack frame of {stack} bytes"
    elif found == (0, 0):
        yield f"no longer spills on Triton {version}: take it out of KNOWN_SPILLS in {__name__}"
    else:
        yield (
            f"uses {stack} bytes of stack and {spills} local-memory instructions on Triton "
            f"{version}, where the known exception is {known[0]} and {known[1]}"
        )


def _common_violations(figures: KernelFigures) -> Iterator[str]:
    if figures.compile_s > MAX_COMPILE_S:
        yield f"took {figures.compile_s:.1f} CPU seconds to compile, above {MAX_COMPILE_S:.0f}"
    if figures.is_dependent and not figures.dependency_waits:
        yield "is launched before its producers have ended and never waits for them (no ACQBULK)"
    if figures.is_dependent and not figures.consumer_releases:
        yield "never lets the kernel after it start before its own end (no PREEXIT)"
    if figures.float_atomics:
        yield (
            f"adds floating-point numbers atomically ({figures.float_atomics} instructions), so "
            "that results do not repeat"
        )
    if figures.stores_on_barriers:
        yield (
            f"stores values where its barriers lie ({figures.stores_on_barriers} instructions): "
            "keep the barriers alive until the end"
        )


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
    # To a cache of eight bits half as much is written as was read.
    least = VECTOR_BYTES // 2 if figures.dtype == "fp8" else VECTOR_BYTES
    if figures.narrowest_store < least:
        width = figures.narrowest_store
        yield f"writes the cache {width} bytes at a time instead of {least}"
    # The kernel ahead may write the rows, where they go, and the slots that they go to.
    if figures.is_dependent and figures.accesses_before_wait:
        count = figures.accesses_before_wait
        yield f"reads or writes before it waits for its producers ({count} LDG or STG)"


def _product_violations(figures: KernelFigures) -> Iterator[str]:
    """Linear maps and the LM head; their loops may be unrolled to the end."""
    if not figures.tensor_core:
        yield "multiplies without tensor cores (no HMMA or HGMMA)"
    if not figures.async_copies:
        yield "loads weights without asynchronous copies (no LDGSTS or UTMALDG)"
    if 0 < figures.loop_narrowest_load < SCALAR_BYTES:
        yield f"loads {figures.loop_narrowest_load} bytes at a time inside a loop"


def _vector_violations(figures: KernelFigures) -> Iterator[str]:
    if figures.widest_load < VECTOR_BYTES:
        yield f"reads weights without {VECTOR_BYTES}-byte loads"


def _rows_violations(figures: KernelFigures) -> Iterator[str]:
    if figures.tensor_core:
        yield "multiplies matrices, where it should only move rows"


_FAMILY_RULES: Mapping[str, Callable[[KernelFigures], Iterator[str]]] = {
    "attention": _attention_violations,
    "append": _append_violations,
    "linear": _product_violations,
    "head": _product_violations,
    "vector": _vector_violations,
    "rows": _rows_violations,
}
