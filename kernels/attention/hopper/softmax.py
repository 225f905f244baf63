# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The running softmax for one warp of a Hopper GPU, in Gluon.

The same arithmetic as `kernels.attention.running_softmax`. Everything is transposed: scores are
keys times queries, [tokens, heads], and values come out as [dimensions, heads], so that the side of
the product which tensor cores take in pieces of 16 is that of tokens and of dimensions, and the few
query heads of a group stand on the other, which is 8 wide. A group of one is padded 8-fold, where
the other way round it would be 16-fold: half the products, exponentials and registers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

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
    q, k, v, tokens, score_scale, run_max, run_sum, run_acc,
    BLOCK_N: gl.constexpr, HEADS: gl.constexpr, PARTIAL: gl.constexpr,
):  # fmt: skip
    """Take a tile of keys [BLOCK_N, D] and values [D, BLOCK_N] into a running softmax.

    All of it, or where PARTIAL its first `tokens`, one or more; what the others hold then does
    not matter. `score_scale` is a number, or one for each head [1, HEADS].
    """
    scores = mma_v2(k, q, gl.zeros([BLOCK_N, HEADS], gl.float32, layout=PRODUCT)) * score_scale
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
def store_output(total_sum, total_acc, runs, value_scale, place, mask, EIGHT_BITS: gl.constexpr):
    """Normalise and write; zeros for a sequence that does not run, whatever its queries hold.

    The values' scale is that of a cache of EIGHT_BITS.
    """
    result = gl.where(runs, total_acc / total_sum[None, :], 0.0)
    if EIGHT_BITS:
        result *= value_scale
    gl.store(place, result.to(place.dtype.element_ty), mask=mask)
