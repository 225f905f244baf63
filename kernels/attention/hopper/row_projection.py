# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment, misc"
"""The linear map of a single row, a program's share of one KV head's, in Gluon.

A program makes SHARE features of each query head of a group, of their key and of their value. Every
program of a cluster then gets whole queries and the whole key, and keeps its share of the value: in
words of float32 the query heads one after another, the key and that share.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention import row_plan
from kernels.attention.hopper.gather import inbox_of, send_words
from kernels.attention.hopper.row_layouts import line_layout, strip_layout

CHUNK = gl.constexpr(row_plan.CHUNK)


@gluon.constexpr_function
def projected_words(G, D, cluster):
    """Of the first inbox: the queries, the new key, and the program's share of the new value."""
    return (G + 1) * D + D // cluster


@gluon.jit
def own_feature(SHARE: gl.constexpr):
    """A head's features that a program makes, as the sums of its strips lie."""
    return gl.arange(0, SHARE, layout=gl.SliceLayout(1, strip_layout(gl.num_warps())))


@gluon.jit
def load_strip(weight, bias, column_sums, first, K: gl.constexpr, SHARE: gl.constexpr):
    """Rows `first` and after of weight [N, K], SHARE of them in chunks, their bias, and their sums
    where there are any."""
    feature = first + own_feature(SHARE)
    column = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, strip_layout(gl.num_warps())))
    strip = ()
    for start in gl.static_range(0, K, CHUNK):
        strip += (gl.load(weight + feature[:, None] * K + (start + column)[None, :]),)
    shift = gl.load(bias + feature)
    sum_ = shift
    if column_sums is not None:
        sum_ = gl.load(column_sums + feature)
    return strip, shift, sum_


@gluon.jit
def load_row(x, epsilon, CENTRED: gl.constexpr, K: gl.constexpr):
    """The row in chunks of float32, its mean where CENTRED, and the reciprocal root of its variance
    or mean square."""
    column = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, strip_layout(gl.num_warps())))
    row = ()
    for start in gl.static_range(0, K, CHUNK):
        row += (gl.load(x + start + column).to(gl.float32),)
    mean = 0.0
    if CENTRED:
        total = row[0]
        for chunk in gl.static_range(1, K // CHUNK):
            total += row[chunk]
        mean = gl.sum(total, 0) / K
    squares = (row[0] - mean) * (row[0] - mean)
    for chunk in gl.static_range(1, K // CHUNK):
        squares += (row[chunk] - mean) * (row[chunk] - mean)
    return row, mean, gl.rsqrt(gl.sum(squares, 0) / K + epsilon)


@gluon.jit
def project(strip, row, mean, rstd, column_sum, shift, CENTRED: gl.constexpr):
    """A strip times the row, normed first: float32 [SHARE]."""
    products = strip[0].to(gl.float32) * row[0][None, :]
    for chunk in gl.static_range(1, len(strip)):
        products += strip[chunk].to(gl.float32) * row[chunk][None, :]
    product = gl.sum(products, 1)
    if CENTRED:
        product -= mean * column_sum
    return rstd * product + shift


@gluon.jit
def send_projected(inbox_at, rank, made, G: gl.constexpr, D: gl.constexpr, CLUSTER: gl.constexpr):
    """The program's share of queries and key to every program, and of the value to itself.

    CLUSTER threads of a warp have a head, one for each program.
    """
    SHARE: gl.constexpr = D // CLUSTER
    AT_ONCE: gl.constexpr = 32 // CLUSTER
    LINES: gl.constexpr = line_layout(gl.num_warps())
    line = gl.arange(0, SHARE, layout=gl.SliceLayout(1, LINES))[:, None]
    lane = gl.arange(0, 32, layout=gl.SliceLayout(0, LINES))[None, :]
    for first in gl.static_range(0, G + 2, AT_ONCE):
        head = first + lane // CLUSTER
        words = gl.convert_layout(made[first], gl.SliceLayout(1, LINES))[:, None] + lane * 0.0
        for other in gl.static_range(first + 1, min(first + AT_ONCE, G + 2)):
            made_there = gl.convert_layout(made[other], gl.SliceLayout(1, LINES))[:, None]
            words = gl.where(head == other, made_there, words)
        is_value = head == G + 1
        to = gl.where(is_value, rank, lane % CLUSTER) + line * 0
        place = head * D + gl.where(is_value, 0, rank * SHARE) + line
        wanted = (head <= G) | (is_value & (lane % CLUSTER == 0))
        send_words(inbox_of(inbox_at, to), place, words, wanted & (line >= 0))
