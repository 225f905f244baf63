"""What must hold of every compiled kernel, as sentences about those for which it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from asv_bench.lab.codegen.compiled import KernelFigures

MAX_COMPILE_S = 20.0
HALF_PRECISION = frozenset({"fp16", "bf16"})
VECTOR_BYTES = 16
SCALAR_BYTES = 4


@dataclass(frozen=True, slots=True)
class KnownException:
    """A kernel that keeps something in local memory on one Triton, exactly so much, and why.

    Attributes
    ----------
    triton
        Major and minor version.
    """

    kernel: str
    triton: str
    stack_bytes: int
    spill_instructions: int
    reason: str


_ONLY_3_8 = "only Triton 3.8 does so, neither 3.7 nor 3.9, and it is not what GPT-2 runs on Hopper"
_FEW_REGISTERS = (
    "ptxas gives it 80 registers and keeps what goes beyond them outside its loop; it is for GPUs "
    "without Hopper's kernels"
)
KNOWN_EXCEPTIONS = (
    *(
        KnownException(f"linear_tiles-{shape}-even", triton, stack, spills, _FEW_REGISTERS)
        for shape, triton, stack, spills in (
            ("N768-K768-M32-n64-k64-stats0", "3.6", 8, 2),
            ("N768-K768-M32-n64-k64-stats0", "3.7", 8, 2),
            ("N2304-K768-M32-n64-k64-stats12", "3.9", 16, 6),
            ("N768-K3072-M32-n64-k64-split4-stats0", "3.9", 16, 4),
        )
    ),
    KnownException("decode-append-serial-gpt2-bf16", "3.8", 8, 4, _ONLY_3_8),
    KnownException("decode-append-serial-llama-1b-bf16", "3.8", 8, 4, _ONLY_3_8),
    KnownException("decode-append-serial-llama-8b-fp32", "3.8", 8, 2, _ONLY_3_8),
)


def violations(
    figures: KernelFigures, triton: str = "", known: Iterable[KnownException] = KNOWN_EXCEPTIONS
) -> list[str]:
    """One sentence for each rule that a compiled kernel breaks.

    Parameters
    ----------
    triton
        The version that compiled it, by which a known exception is found. An exception is as exact
        as a rule: local memory that is other than it says breaks it, and none at all, too.
    """
    excepted = [
        one
        for one in known
        if one.kernel == figures.name and triton.split(".")[:2] == one.triton.split(".")
    ]
    memory = _excepted_memory(figures, excepted[0]) if excepted else _local_memory(figures)
    broken = (*memory, *_common_violations(figures), *_FAMILY_RULES[figures.family](figures))
    return [f"{figures.name} {sentence}" for sentence in broken]


def _local_memory(figures: KernelFigures) -> Iterator[str]:
    if figures.spill_instructions:
        yield f"spills registers ({figures.spill_instructions} local-memory instructions)"
    if figures.stack_bytes:
        yield f"uses a stack frame of {figures.stack_bytes} bytes"


def _excepted_memory(figures: KernelFigures, known: KnownException) -> Iterator[str]:
    found = (figures.stack_bytes, figures.spill_instructions)
    if found == (0, 0):
        yield (
            f"no longer spills on Triton {known.triton}: take its exception out of "
            "asv_bench.lab.codegen.rules"
        )
    elif found != (known.stack_bytes, known.spill_instructions):
        yield (
            f"uses {found[0]} bytes of stack and {found[1]} local-memory instructions on Triton "
            f"{known.triton}, where the known exception is {known.stack_bytes} and "
            f"{known.spill_instructions}"
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
