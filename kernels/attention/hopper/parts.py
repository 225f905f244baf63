# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The parts of a context, one for each split, and how they are combined, in Gluon.

A part is the running softmax of one split, for every query head of its group: in words of float32,
by head, the weighted values, the maximum, the sum and, of the first split, the new token's score.
Parts of one (sequence, KV head) pair meet either in memory, in the workspace, or GATHERED, in the
inbox that the first program of their cluster has in its shared memory. They are combined from the
first to the last either way, so that a context's result is the same bit for bit.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper.cache_slot import rounded
from kernels.attention.hopper.gather import read_words, send_words
from kernels.attention.hopper.softmax import PRODUCT, combine, store_output, take_new_token
from kernels.attention.running_softmax import PART_HEADER


@gluon.constexpr_function
def sent_words(G, D, APPEND):
    """Words of a part that `send_part` sends."""
    return G * (D + (3 if APPEND else 2))


@gluon.jit
def write_part(
    parts, split, group, dim, run_max, run_sum, run_acc, new_score,
    G: gl.constexpr, D: gl.constexpr, APPEND: gl.constexpr,
):  # fmt: skip
    """Part number `split` to the `parts` of a pair in memory."""
    in_group = group < G
    part = parts + (split * G + group) * (D + PART_HEADER)
    mask = in_group[None, :] & (dim < D)[:, None]
    gl.store(part[None, :] + dim[:, None], run_acc, mask=mask)
    gl.store(part + D, run_max, mask=in_group)
    gl.store(part + D + 1, run_sum, mask=in_group)
    if APPEND:
        gl.store(part + D + 2, new_score, mask=in_group)


@gluon.jit
def send_part(
    inbox, split, group, dim, run_max, run_sum, run_acc, new_score,
    G: gl.constexpr, D: gl.constexpr, APPEND: gl.constexpr,
):  # fmt: skip
    """Part number `split` to the inbox that `inbox_of` returned: `sent_words` of it."""
    part = (split * G + group) * (D + PART_HEADER)
    place = part[None, :] + dim[:, None]
    mask = (group < G)[None, :] & (dim < D)[:, None]
    send_words(inbox, place, run_acc, mask)
    # What there is once a head, in rows of a product: in its own layout many threads have it.
    spread = gl.zeros(run_acc.shape, gl.float32, layout=PRODUCT)
    rest = gl.where((dim == 0)[:, None], run_max[None, :] + spread, run_sum[None, :] + spread)
    if APPEND:
        rest = gl.where((dim == 2)[:, None], new_score[None, :] + spread, rest)
    ROWS: gl.constexpr = 3 if APPEND else 2
    send_words(inbox, place + D, rest, mask & (dim < ROWS)[:, None])


@gluon.jit
def store_combined(
    parts, splits, new_value, value_scale, out, out_stride_head,
    G: gl.constexpr, G_PAD: gl.constexpr, D: gl.constexpr, APPEND: gl.constexpr,
    GATHERED: gl.constexpr, EIGHT_BITS: gl.constexpr,
):  # fmt: skip
    """Combine a pair's parts from the first to the last, and the new token, and write its heads.

    The layout has no padding for tensor cores, so that the parts of several splits fit into
    registers: they are requested together and waited for once.
    """
    RECORD: gl.constexpr = D + PART_HEADER
    AT_ONCE: gl.constexpr = 8 if G_PAD * D <= 128 else 4 if G_PAD * D <= 512 else 1
    FLAT: gl.constexpr = gl.BlockedLayout([D // 32, 1], [32, 1], [1, 1], [0, 1])
    group = gl.arange(0, G_PAD, layout=gl.SliceLayout(0, FLAT))
    dim = gl.arange(0, D, layout=gl.SliceLayout(1, FLAT))
    in_group = group < G
    if APPEND:
        new_score = _read(parts, group * RECORD + D + 2, in_group, 0.0, GATHERED)
        value = rounded(gl.load(new_value + dim), value_scale, EIGHT_BITS)
    total_max = gl.full([G_PAD], float("-inf"), gl.float32, layout=gl.SliceLayout(0, FLAT))
    total_sum = gl.zeros([G_PAD], gl.float32, layout=gl.SliceLayout(0, FLAT))
    total_acc = gl.zeros([D, G_PAD], gl.float32, layout=FLAT)
    for s in range(0, splits, AT_ONCE):
        waiting = ()
        for i in gl.static_range(AT_ONCE):
            part = ((s + i) * G + group) * RECORD
            waiting += _read_part(parts, part, dim, in_group & (s + i < splits), D, GATHERED)
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
    mask = in_group[None, :] & (dim < D)[:, None]
    store_output(total_sum, total_acc, True, value_scale, place, mask, EIGHT_BITS)


@gluon.jit
def _read_part(parts, part, dim, in_group, D: gl.constexpr, GATHERED: gl.constexpr):
    """Maximum, sum and weighted values of one split; of no keys where masked."""
    place = part[None, :] + dim[:, None]
    acc = _read(parts, place, in_group[None, :] & (dim < D)[:, None], 0.0, GATHERED)
    run_max = _read(parts, part + D, in_group, float("-inf"), GATHERED)
    run_sum = _read(parts, part + D + 1, in_group, 0.0, GATHERED)
    return run_max, run_sum, acc


@gluon.jit
def _read(parts, place, mask, other: gl.constexpr, GATHERED: gl.constexpr):
    """Words that other programs have left."""
    if GATHERED:
        return read_words(parts, place, mask, other)
    else:
        return gl.load(parts + place, mask=mask, other=other, cache_modifier=".cg")
