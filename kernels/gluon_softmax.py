# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The running softmax of `kernels.running_softmax` for one warp of a Hopper GPU, in Gluon.

Everything is transposed: scores are keys times queries, [tokens, heads], and values come out as
[dimensions, heads], so that the side of the product which tensor cores take in pieces of 16 is
that of tokens and of dimensions, and the few query heads of a group stand on the other, which is
8 wide. A group of one is padded 8-fold, where the other way round it would be 16-fold: half the
products, exponentials and registers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from kernels.running_softmax import PART_HEADER

_PRODUCT = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8])
_LEFT = gl.DotOperandLayout(operand_index=0, parent=_PRODUCT, k_width=2)
_RIGHT = gl.DotOperandLayout(operand_index=1, parent=_PRODUCT, k_width=2)

# Of scores and weighted values; of what is multiplied by queries or weights; and of those.
PRODUCT = gl.constexpr(_PRODUCT)
LEFT = gl.constexpr(_LEFT)
RIGHT = gl.constexpr(_RIGHT)
# Of what there is once a row of a product, and once a head.
BY_ROW = gl.constexpr(gl.SliceLayout(1, _PRODUCT))
BY_HEAD = gl.constexpr(gl.SliceLayout(0, _PRODUCT))
# Of one row of LEFT's columns; of one head's queries, and of one dimension's.
BY_LEFT_COLUMN = gl.constexpr(gl.SliceLayout(0, _LEFT))
BY_QUERY_DIM = gl.constexpr(gl.SliceLayout(1, _RIGHT))
BY_QUERY_HEAD = gl.constexpr(gl.SliceLayout(0, _RIGHT))


@gluon.jit
def empty_part(HEADS: gl.constexpr, D: gl.constexpr):
    """Maximum, sum and weighted values [D, HEADS] of no keys."""
    return (
        gl.full([HEADS], float("-inf"), gl.float32, layout=BY_HEAD),
        gl.zeros([HEADS], gl.float32, layout=BY_HEAD),
        gl.zeros([D, HEADS], gl.float32, layout=PRODUCT),
    )


@gluon.jit
def attend_tile(
    q, k, v, tokens, scale_log2, run_max, run_sum, run_acc,
    BLOCK_N: gl.constexpr, HEADS: gl.constexpr, PARTIAL: gl.constexpr,
):  # fmt: skip
    """Take a tile of keys [BLOCK_N, D] and values [D, BLOCK_N] into a running softmax.

    All of it, or where PARTIAL its first `tokens`, one or more; what the others hold then does
    not matter.
    """
    scores = mma_v2(k, q, gl.zeros([BLOCK_N, HEADS], gl.float32, layout=PRODUCT)) * scale_log2
    if PARTIAL:
        token = gl.arange(0, BLOCK_N, layout=BY_ROW)
        scores = gl.where((token < tokens)[:, None], scores, float("-inf"))
        # A weight of zero times NaN is NaN.
        value_token = gl.arange(0, BLOCK_N, layout=BY_LEFT_COLUMN)
        v = gl.where((value_token < tokens)[None, :], v, gl.zeros_like(v))
    new_max = gl.maximum(run_max, gl.max(scores, 0))
    fade = gl.exp2(run_max - new_max)
    weights = gl.exp2(scores - new_max[None, :])
    new_sum = gl.fma(run_sum, fade, gl.sum(weights, 0))
    new_acc = mma_v2(v, gl.convert_layout(weights.to(v.dtype), RIGHT), run_acc * fade[None, :])
    return new_max, new_sum, new_acc


@gluon.jit
def combine(max_a, sum_a, acc_a, max_b, sum_b, acc_b):
    """The running softmax of two consecutive ranges of keys. Either may be empty."""
    new_max = gl.maximum(max_a, max_b)
    base = gl.where(new_max == float("-inf"), 0.0, new_max)
    weight_a = gl.exp2(max_a - base)
    weight_b = gl.exp2(max_b - base)
    new_sum = gl.fma(sum_a, weight_a, sum_b * weight_b)
    new_acc = gl.fma(acc_a, weight_a[None, :] + gl.zeros_like(acc_a), acc_b * weight_b[None, :])
    return new_max, new_sum, new_acc


@gluon.jit
def take_new_token(total_max, total_sum, total_acc, new_score, new_value):
    """The running softmax with one more key, of scores [HEADS] and value [D]."""
    one = gl.full(new_score.shape, 1.0, gl.float32, layout=new_score.type.layout)
    new_acc = new_value[:, None].to(gl.float32) + gl.zeros_like(total_acc)
    return combine(total_max, total_sum, total_acc, new_score, one, new_acc)


@gluon.jit
def store_output(total_sum, total_acc, runs, place, mask):
    """Normalise and write; zeros for a sequence that does not run, whatever its queries hold."""
    result = gl.where(runs, total_acc / total_sum[None, :], 0.0)
    gl.store(place, result.to(place.dtype.element_ty), mask=mask)


@gluon.jit
def _load_part(part, dim, in_group, D: gl.constexpr):
    """Maximum, sum and weighted values of one split; of no keys where masked."""
    acc = gl.load(
        part[None, :] + dim[:, None], mask=in_group[None, :] & (dim < D)[:, None], other=0.0,
        cache_modifier=".cg",
    )  # fmt: skip
    run_max = gl.load(part + D, mask=in_group, other=float("-inf"), cache_modifier=".cg")
    run_sum = gl.load(part + D + 1, mask=in_group, other=0.0, cache_modifier=".cg")
    return run_max, run_sum, acc


@gluon.jit
def store_combined(
    parts, splits, new_value, out, out_stride_head,
    G: gl.constexpr, G_PAD: gl.constexpr, D: gl.constexpr, APPEND: gl.constexpr,
):  # fmt: skip
    """Combine a pair's parts from the first to the last, and the new token, and write its heads.

    In a layout without the padding that tensor cores take, so that the parts of several splits fit
    into registers: they are requested together, and one way from memory is waited for, not one
    each.
    """
    RECORD: gl.constexpr = D + PART_HEADER
    AT_ONCE: gl.constexpr = 8 if G_PAD * D <= 128 else 4 if G_PAD * D <= 512 else 1
    FLAT: gl.constexpr = gl.BlockedLayout([D // 32, 1], [32, 1], [1, 1], [0, 1])
    group = gl.arange(0, G_PAD, layout=gl.SliceLayout(0, FLAT))
    dim = gl.arange(0, D, layout=gl.SliceLayout(1, FLAT))
    in_group = group < G
    first = parts + group * RECORD
    if APPEND:
        new_score = gl.load(first + D + 2, mask=in_group, other=0.0, cache_modifier=".cg")
        value = gl.load(new_value + dim)
    total_max = gl.full([G_PAD], float("-inf"), gl.float32, layout=gl.SliceLayout(0, FLAT))
    total_sum = gl.zeros([G_PAD], gl.float32, layout=gl.SliceLayout(0, FLAT))
    total_acc = gl.zeros([D, G_PAD], gl.float32, layout=FLAT)
    for s in range(0, splits, AT_ONCE):
        waiting = ()
        for i in gl.static_range(AT_ONCE):
            is_there = s + i < splits
            waiting += _load_part(first + (s + i) * (G * RECORD), dim, in_group & is_there, D)
        for i in gl.static_range(AT_ONCE):
            total_max, total_sum, total_acc = combine(
                total_max, total_sum, total_acc,
                waiting[3 * i], waiting[3 * i + 1], waiting[3 * i + 2],
            )  # fmt: skip
    if APPEND:
        total_max, total_sum, total_acc = take_new_token(
            total_max, total_sum, total_acc, new_score, value
        )
    place = out + group[None, :] * out_stride_head + dim[:, None]
    store_output(total_sum, total_acc, True, place, in_group[None, :] & (dim < D)[:, None])
