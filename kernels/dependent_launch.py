# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Programmatic dependent launch: a kernel starts before the one it depends on has ended.

On sm_90 and later a kernel launched with `launch_pdl` may start as soon as every program of the
kernel before it has called `release_consumers`. Until its own `await_producers` it must touch only
what no kernel in flight writes: weights, and what the step before this one left. After it,
everything that earlier kernels of the stream wrote is visible.

That holds through a chain only if in every kernel one program at least awaits its producers, as all
must that touch what others write, and only back to the last kernel launched *without* `launch_pdl`:
each step begins with one.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.backend import capability, interpreting


@triton.jit
def await_producers(PDL: tl.constexpr):
    """Wait until all that earlier kernels wrote is visible."""
    if PDL:
        gdc_wait()


@triton.jit
def release_consumers(PDL: tl.constexpr):
    """Let the next kernel start: it fetches its weights while this one works."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def prefetch_rows(first, num_rows, row_bytes, stride_bytes):
    """Ask L2 for `num_rows` pieces of `row_bytes` (a multiple of 16), `stride_bytes` apart.

    Thread t asks for row t, so there must be at least as many threads as rows.
    """
    tl.inline_asm_elementwise(
        """{
        .reg .pred p; .reg .u32 t; .reg .u64 a;
        mov.u32 t, %tid.x;
        setp.lt.u32 p, t, $2;
        mad.wide.u32 a, t, $4, $1;
        @p cp.async.bulk.prefetch.L2.global [a], $3;
        mov.u32 $0, 0;
        }""",
        "=r,l,r,r,r",
        [first.to(tl.int64), num_rows, row_bytes, stride_bytes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def launches_early(tensor: torch.Tensor) -> bool:
    """Whether kernels on the tensor's device may be launched dependently."""
    return tensor.is_cuda and not interpreting() and capability(tensor.device) >= (9, 0)


def is_hopper(tensor: torch.Tensor) -> bool:
    """Whether the tensor's device has Hopper's own instructions, which no later one has."""
    return tensor.is_cuda and not interpreting() and capability(tensor.device) == (9, 0)


def launch_options(pdl: bool) -> dict[str, Any]:
    """What a launch passes beside its arguments: the constant `PDL`, and the launch attribute."""
    return {"PDL": True, "launch_pdl": True} if pdl else {"PDL": False}
