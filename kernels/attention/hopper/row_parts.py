# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"
"""The parts of a single row's context, of each warp or program, and their combination, in Gluon.

A part is a running softmax for every query head of a group: in words of float32, by head, the
receiver's share of the weighted values, the maximum and the sum. Every program of a cluster gets
all parts, and combines its share of the dimensions.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper.gather import inbox_of, read_all, send_words
from kernels.attention.hopper.row_layouts import (
    combine_layout,
    merge_layout,
    part_line_layout,
    token_layout,
    tokens_at_once,
)


@gluon.constexpr_function
def part_words(D, cluster):
    """Of a part of a head: the program's share of weighted values, the maximum and the sum."""
    return D // cluster + 2


@gluon.constexpr_function
def part_count(cluster, warps, merge):
    """Parts of a context: one of each warp, or of each program."""
    return cluster if merge else cluster * warps


@gluon.constexpr_function
def parts_words(G, D, cluster, warps, merge):
    """Of the second inbox."""
    return part_count(cluster, warps, merge) * G * part_words(D, cluster)


@gluon.jit
def base_of(run_max):
    """The maximum that scores are taken relative to; zero where there are none, to avoid NaN."""
    return gl.where(run_max == float("-inf"), 0.0, run_max)


@gluon.jit
def send_parts(
    parts_at, rank, run_max, run_sum, run_acc,
    G: gl.constexpr, D: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """Each warp's running softmax: the maximum and sum [G, warps] to all programs, and of the
    weighted values [G, warps, D] to each its own dimensions."""
    SHARE: gl.constexpr = D // CLUSTER
    WARPS: gl.constexpr = gl.num_warps()
    WORDS: gl.constexpr = part_words(D, CLUSTER)
    TOKENS: gl.constexpr = token_layout(D, WARPS)
    # The tokens that a warp's threads have at once have the same sums: one of them each sends.
    SENDERS: gl.constexpr = tokens_at_once(D)
    BY_WARP: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, TOKENS))
    head = gl.arange(0, G, layout=gl.SliceLayout(1, BY_WARP))[:, None]
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(0, BY_WARP))[None, :]
    part = ((rank * WARPS + warp) * G + head)[:, :, None][:, :, :, None] * WORDS
    sender = gl.arange(
        0, SENDERS, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, TOKENS)))
    )[None, :][:, None, :][:, :, :, None]
    dim = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, TOKENS))))
    dim = dim[None, :][:, None, :][:, :, None, :]
    whole = gl.zeros([G, WARPS, SENDERS, D], gl.int32, layout=TOKENS)
    mask = (dim % SENDERS == sender) & (part >= 0)
    to = inbox_of(parts_at, dim // SHARE + whole)
    words = run_acc[:, :, None, :] + whole.to(gl.float32)
    send_words(to, part + dim % SHARE + whole, words, mask)

    LINES: gl.constexpr = part_line_layout(WARPS)
    BY_LINE: gl.constexpr = gl.SliceLayout(2, LINES)
    head = gl.arange(0, G, layout=gl.SliceLayout(1, BY_LINE))[:, None]
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(0, BY_LINE))[None, :]
    part = ((rank * WARPS + warp) * G + head)[:, :, None] * WORDS
    lane = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(1, LINES)))
    lane = lane[None, :][:, None, :]
    maxima = gl.convert_layout(run_max, BY_LINE)[:, :, None]
    sums = gl.convert_layout(run_sum, BY_LINE)[:, :, None]
    words = gl.where(lane < CLUSTER, maxima, sums)
    to = inbox_of(parts_at, lane % CLUSTER + part * 0)
    mask = (lane < 2 * CLUSTER) & (part >= 0)
    send_words(to, part + SHARE + lane // CLUSTER, words, mask)


@gluon.jit
def send_merged(
    parts_at, rank, run_max, run_sum, run_acc,
    G: gl.constexpr, D: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """As `send_parts`, of all warps together, in their order.

    The group must have a dimension or more for every thread.
    """
    SHARE: gl.constexpr = D // CLUSTER
    WORDS: gl.constexpr = part_words(D, CLUSTER)
    WARPS: gl.constexpr = merge_layout(D, gl.num_warps())
    gl.static_assert(32 * gl.num_warps() <= G * D)
    maxima = gl.convert_layout(run_max, gl.SliceLayout(2, WARPS))[:, :, None]
    sums = gl.convert_layout(run_sum, gl.SliceLayout(2, WARPS))[:, :, None]
    accs = gl.convert_layout(run_acc, WARPS)
    top = gl.max(maxima, 1)
    fades = gl.exp2(maxima - base_of(top)[:, None, :])
    total = gl.sum(fades * sums, 1)
    acc = gl.sum(fades * accs, 1)

    BY_HEAD: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(1, WARPS))
    head = gl.arange(0, G, layout=BY_HEAD)[:, None]
    dim = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(1, WARPS)))[None, :]
    place = (rank * G + head) * WORDS + dim % SHARE
    to = inbox_of(parts_at, dim // SHARE + head * 0)
    send_words(to, place, acc, (dim >= 0) & (head >= 0))
    # Two of the threads that send to a program send what belongs to the whole part.
    words = gl.where(dim % SHARE == 0, top, total)
    send_words(to, place + SHARE, words, (dim % SHARE < 2) & (head >= 0))


@gluon.jit
def own_heads(G: gl.constexpr, SHARE: gl.constexpr):
    """The query heads of a group as `combine_parts` has them."""
    LAYOUT: gl.constexpr = gl.SliceLayout(0, combine_layout(SHARE, gl.num_warps()))
    return gl.arange(0, G, layout=gl.SliceLayout(1, LAYOUT))


@gluon.jit
def own_dims(SHARE: gl.constexpr):
    """The program's own dimensions of a head as `combine_parts` has them."""
    LAYOUT: gl.constexpr = gl.SliceLayout(0, combine_layout(SHARE, gl.num_warps()))
    return gl.arange(0, SHARE, layout=gl.SliceLayout(0, LAYOUT))


@gluon.jit
def combine_parts(
    parts, projected, new_score,
    G: gl.constexpr, D: gl.constexpr, CLUSTER: gl.constexpr, MERGE: gl.constexpr,
):  # fmt: skip
    """All parts and the new token, normalised: the program's own dimensions of each query head,
    float32 [G, SHARE]."""
    SHARE: gl.constexpr = D // CLUSTER
    PARTS: gl.constexpr = part_count(CLUSTER, gl.num_warps(), MERGE)
    LAYOUT: gl.constexpr = combine_layout(SHARE, gl.num_warps())
    part = gl.arange(0, PARTS, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))[:, None]
    head = gl.arange(0, G, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))[None, :]
    record = ((part * G + head) * part_words(D, CLUSTER))[:, :, None]
    dim = own_dims(SHARE)[None, :]
    BY_HEAD: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(0, LAYOUT))
    new_score = gl.convert_layout(new_score, BY_HEAD)[:, None]
    maxima = read_all(parts, record + SHARE)
    top = gl.maximum(gl.max(maxima, 0), new_score)
    fades = gl.exp2(maxima - top[None, :, :])
    new_weight = gl.exp2(new_score - top)
    total = gl.sum(fades * read_all(parts, record + SHARE + 1), 0) + new_weight
    accs = read_all(parts, record + dim[None, :, :])
    new_value = read_all(projected, (G + 1) * D + dim)
    return (gl.sum(fades * accs, 0) + new_weight * new_value) / total
