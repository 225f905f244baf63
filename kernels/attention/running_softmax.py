# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Pieces of split decode attention: a softmax that runs over ranges of keys and can be combined.

A context is cut into splits of a fixed number of tokens. Each split keeps, for every query head
of its group, a running maximum, a sum and weighted values. Splits are combined from the first to
the last by `combine`, whatever program computed them, so one program that walks all splits and
one program a split give the same bits.

`tl.fma` is spelled out where a product meets a sum, because the compiler may otherwise contract
the two differently in two kernels or variants.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.backend import interpreting
from kernels.errors import KernelArgumentError

LOG2_E = 1.4426950408889634

# A part in the workspace holds its weighted values, the maximum, the sum, and padding that keeps
# the next part 64-byte aligned.
PART_HEADER = tl.constexpr(16)


@triton.jit
def empty_part(G_PAD: tl.constexpr, D_PAD: tl.constexpr):
    """Maximum, sum and weighted values of no keys."""
    return (
        tl.full((G_PAD,), float("-inf"), tl.float32),
        tl.zeros((G_PAD,), tl.float32),
        tl.zeros((G_PAD, D_PAD), tl.float32),
    )


@triton.jit
def attend_tile(q, k, v, in_context, scale_log2, run_max, run_sum, run_acc):
    """Take one tile of keys and values, zero where not `in_context`, into a running softmax.

    At least one key must be in the context, or the maximum have been finite before.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    scores = tl.where(in_context[None, :], scores, float("-inf"))
    new_max = tl.maximum(run_max, tl.max(scores, axis=1))
    fade = tl.exp2(run_max - new_max)
    weights = tl.exp2(scores - new_max[:, None])
    new_sum = tl.fma(run_sum, fade, tl.sum(weights, axis=1))
    new_acc = tl.dot(weights.to(v.dtype), v, run_acc * fade[:, None], input_precision="ieee")
    return new_max, new_sum, new_acc


@triton.jit
def combine(max_a, sum_a, acc_a, max_b, sum_b, acc_b):
    """The running softmax of two consecutive ranges of keys. Either may be empty."""
    new_max = tl.maximum(max_a, max_b)
    base = tl.where(new_max == float("-inf"), 0.0, new_max)
    weight_a = tl.exp2(max_a - base)
    weight_b = tl.exp2(max_b - base)
    new_sum = tl.fma(sum_a, weight_a, sum_b * weight_b)
    new_acc = tl.fma(
        acc_a, tl.broadcast_to(weight_a[:, None], acc_a.shape), acc_b * weight_b[:, None]
    )
    return new_max, new_sum, new_acc


@triton.jit
def parts_of(partials, pair, splits, group, G: tl.constexpr, D_PAD: tl.constexpr):
    """Where a pair's first part of each query head stands in the workspace."""
    return partials + (pair * splits * G + group) * (D_PAD + PART_HEADER)


@triton.jit
def store_part(
    first_parts, split, run_max, run_sum, run_acc, in_group, dim, mask,
    G: tl.constexpr, D_PAD: tl.constexpr,
):  # fmt: skip
    """Leave one split's part in the workspace, for the last to arrive."""
    part = first_parts + split * (G * (D_PAD + PART_HEADER))
    tl.store(part[:, None] + dim[None, :], run_acc, mask=mask)
    tl.store(part + D_PAD, run_max, mask=in_group)
    tl.store(part + D_PAD + 1, run_sum, mask=in_group)


@triton.jit
def arrive_last(counter, splits):
    """Whether this program is the last of `splits` to arrive, and so sees what all have stored."""
    # Every thread's part must be written before thread 0 says so, and the atomic makes what
    # others wrote visible to the one that arrives last.
    tl.debug_barrier()
    is_last = tl.atomic_add(counter, 1, sem="acq_rel") == splits - 1
    tl.debug_barrier()
    return is_last


@triton.jit
def combined_parts(
    first_parts, splits, in_group, dim, mask,
    G: tl.constexpr, G_PAD: tl.constexpr, D_PAD: tl.constexpr,
):  # fmt: skip
    """All splits' parts, from the first to the last, as one."""
    total_max, total_sum, total_acc = empty_part(G_PAD, D_PAD)
    for split in range(0, splits):
        part = first_parts + split * (G * (D_PAD + PART_HEADER))
        part_acc = tl.load(part[:, None] + dim[None, :], mask=mask, other=0.0, cache_modifier=".cg")
        part_max = tl.load(part + D_PAD, mask=in_group, other=0.0, cache_modifier=".cg")
        part_sum = tl.load(part + D_PAD + 1, mask=in_group, other=0.0, cache_modifier=".cg")
        total_max, total_sum, total_acc = combine(
            total_max, total_sum, total_acc, part_max, part_sum, part_acc
        )
    return total_max, total_sum, total_acc


@triton.jit
def store_output(
    out, total_sum, total_acc, value_scale, head, dim, mask, stride_head, EIGHT_BITS: tl.constexpr
):  # fmt: skip
    """Normalise and write one group's rows; an empty context, whose sum is zero, gives zeros.

    The values' scale is that of a cache of EIGHT_BITS.
    """
    is_empty = (total_sum == 0.0)[:, None]
    result = tl.where(is_empty, 0.0, total_acc / tl.where(is_empty, 1.0, total_sum[:, None]))
    if EIGHT_BITS:
        result *= value_scale
    tl.store(
        out + head[:, None] * stride_head + dim[None, :],
        result.to(out.dtype.element_ty),
        mask=mask,
    )


def part_elements(padded_head_dim: int) -> int:
    """float32 elements of one query head's part in the workspace."""
    return padded_head_dim + int(PART_HEADER.value)


def refuse_interpreted_bfloat16(tensor: torch.Tensor, name: str = "query") -> None:
    """Triton's interpreter computes bfloat16 on its raw bits, so its results are wrong."""
    if tensor.dtype == torch.bfloat16 and interpreting():
        raise KernelArgumentError(
            f"{name} must be float32 or float16 under TRITON_INTERPRET=1, whose bfloat16 "
            "arithmetic is wrong, but is torch.bfloat16"
        )


@cache
def multiprocessors(device: torch.device) -> int:
    """The device's number of multiprocessors; 1 under the interpreter."""
    if device.type != "cuda":
        return 1
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
