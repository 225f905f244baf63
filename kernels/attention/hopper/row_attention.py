# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment, misc"
"""The attention of a single row with the linear map before it, for Hopper, in Gluon.

One row leaves a decode step nothing to wait for but the next kernel's start: so its queries, keys
and values and the attention over them are one kernel, of a cluster of `CLUSTER` programs for each
head. A program makes its share of the head's query, key and value, `SHARE` of each, from strips of
weights that it holds in registers before the kernel ahead has ended, as `kernels.linear.vector`
does. It sends query and key to all, so that each has them whole. Then it attends over every
CLUSTER-th tile of the context, the first of which it holds in registers by then too, and sends what
came of it to all, each its share of the dimensions, which each combines and writes.

No tensor cores: a warp multiplies its own tokens of a tile by the query, and keeps its own running
softmax. What the warps send is combined in the order of their contexts' parts, whatever arrives
first, so that results repeat bit for bit.

Why it may read the context before the kernel ahead has ended stands in
`kernels.attention.decode_append`; of the new token's slot nothing is read.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.attention.hopper.gather import (
    announce_inboxes,
    await_inboxes,
    expect_words,
    gathered_bytes,
    inbox_of,
    open_inbox,
    read_words,
    send_words,
    wait_for_words,
)

HEAD_DIM = gl.constexpr(64)
CLUSTER = gl.constexpr(8)
"""Programs that share a head. GPT-2 124M, one row, us a step at contexts 257 and 420: 134 and 135;
of four programs of eight warps 138 and 141, of 16 of two warps 154 and 151."""
WARPS = gl.constexpr(4)
TILE = gl.constexpr(64)
"""Tokens of a tile, which must divide a page."""
CHUNK = gl.constexpr(256)
"""What a warp reads of a row of weights at once: must divide the row."""

_SHARE = HEAD_DIM.value // CLUSTER.value
_PARTS = CLUSTER.value * WARPS.value
SHARE = gl.constexpr(_SHARE)
PARTS = gl.constexpr(_PARTS)
# Of a part: its share of the weighted values, the maximum and the sum.
PART_WORDS = gl.constexpr(_SHARE + 2)
# Of the first inbox: the query, the new key, and the program's own share of the new value.
PROJECTED_WORDS = gl.constexpr(2 * HEAD_DIM.value + _SHARE)
PROJECTED_BYTES = gl.constexpr(gathered_bytes(2 * HEAD_DIM.value + _SHARE))
INBOX_BYTES = PROJECTED_BYTES.value + gathered_bytes(_PARTS * (_SHARE + 2))
"""Shared memory of a program's two inboxes."""

_STRIP = gl.BlockedLayout([1, 8], [1, 32], [WARPS.value, 1], [1, 0])
_LANES = gl.BlockedLayout([1, 1], [1, 32], [WARPS.value, 1], [1, 0])
_TILE = gl.BlockedLayout([1, 1, 8], [1, 4, 8], [WARPS.value, 1, 1], [2, 1, 0])
_PART = gl.BlockedLayout([1, 1], [32 // _SHARE, _SHARE], [1, WARPS.value], [0, 1])
# Strips of weights [SHARE, CHUNK], a few rows for each warp; of one row, and of one column.
BY_FEATURE = gl.constexpr(gl.SliceLayout(1, _STRIP))
BY_INPUT = gl.constexpr(gl.SliceLayout(0, _STRIP))
# [features or warps, 32]: what a warp's threads have alike, each thread sends elsewhere.
LANES = gl.constexpr(_LANES)
BY_LINE = gl.constexpr(gl.SliceLayout(1, _LANES))
BY_LANE = gl.constexpr(gl.SliceLayout(0, _LANES))
# Keys and values [WARPS, TILE / WARPS, HEAD_DIM], each warp its own tokens; of one token; of one
# dimension.
TOKENS = gl.constexpr(_TILE)
BY_TOKEN = gl.constexpr(gl.SliceLayout(2, _TILE))
BY_DIM = gl.constexpr(gl.SliceLayout(0, gl.SliceLayout(1, _TILE)))
# Parts of a context [PARTS, SHARE], every warp all of them.
BY_PART = gl.constexpr(gl.SliceLayout(1, _PART))
BY_OWN_DIM = gl.constexpr(gl.SliceLayout(0, _PART))


@gluon.jit(
    do_not_specialize=["max_context", "inbox_at"],
    do_not_specialize_on_alignment=["block_table", "position", "is_running"],
)
def row_attention(
    x,
    weight,
    bias,
    column_sums,
    k_cache,
    v_cache,
    block_table,
    position,
    is_running,
    out,
    epsilon,
    scale_log2,
    max_context,
    inbox_at,
    K: gl.constexpr,
    HEADS: gl.constexpr,
    PAGE: gl.constexpr,
    SLOT_STRIDE: gl.constexpr,
    PDL: gl.constexpr,
):
    """One head, a CLUSTER-th of it: x [1, K], weight [3 HEADS HEAD_DIM, K], out [1, HEADS D].

    From one slot of the cache to the next lie SLOT_STRIDE elements: a constant, so that the
    addresses of a tile take fewer instructions.
    """
    parts_at = inbox_at + PROJECTED_BYTES
    # The instructions that find an inbox name a symbol that no kernel has without memory of its
    # own.
    named = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(named.index(0), count=1)
    open_inbox(inbox_at)
    open_inbox(parts_at)
    expect_words(inbox_at, PROJECTED_WORDS)
    expect_words(parts_at, PARTS * PART_WORDS)
    announce_inboxes()
    head = gl.program_id(0) // CLUSTER
    rank = gl.program_id(0) % CLUSTER
    length = gl.load(position)
    runs = (gl.load(is_running).to(gl.int32) > 0) & (length < max_context)
    cached = gl.where(runs, length, 0)

    first = head * HEAD_DIM + rank * SHARE
    query_strips, query_shift, query_sums = load_strips(weight, bias, column_sums, first, K)
    first += HEADS * HEAD_DIM
    key_strips, key_shift, key_sums = load_strips(weight, bias, column_sums, first, K)
    first += HEADS * HEAD_DIM
    value_strips, value_shift, value_sums = load_strips(weight, bias, column_sums, first, K)
    start = rank * TILE
    keys, values = load_tile(
        k_cache, v_cache, block_table, start, cached, head, HEADS, PAGE, SLOT_STRIDE
    )
    new_block = gl.load(block_table + cached // PAGE, mask=runs, other=0).to(gl.int64)
    if PDL:
        gdc_wait()
        # Not before: the next kernel's programs would take the places in which the last of these
        # clusters are to stand.
        gdc_launch_dependents()

    row, mean, rstd = load_row(x, epsilon, K)
    element = x.dtype.element_ty
    query = project(query_strips, row, mean, rstd, query_sums, query_shift, element)
    key = project(key_strips, row, mean, rstd, key_sums, key_shift, element)
    value = project(value_strips, row, mean, rstd, value_sums, value_shift, element)
    # The strips' registers are free for the tile after the first.
    start += CLUSTER * TILE
    next_keys, next_values = load_tile(
        k_cache, v_cache, block_table, start, cached, head, HEADS, PAGE, SLOT_STRIDE
    )
    await_inboxes()
    send_projected(inbox_at, rank, query, key, value)
    if runs:
        slot = (new_block * HEADS + head) * PAGE + cached % PAGE
        slot = slot * SLOT_STRIDE + rank * SHARE
        feature = gl.arange(0, SHARE, layout=BY_FEATURE)
        gl.store(k_cache + slot + feature, key.to(k_cache.dtype.element_ty))
        gl.store(v_cache + slot + feature, value.to(v_cache.dtype.element_ty))

    projected = wait_for_words(inbox_at)
    dim = gl.arange(0, HEAD_DIM, layout=BY_DIM)
    query = read_all(projected, dim) * scale_log2
    new_score = gl.sum(query * read_all(projected, HEAD_DIM + dim), 0)
    scores = score(query, keys, rank * TILE, cached)
    run_max = gl.max(scores, 1)
    weights = gl.exp2(scores - base_of(run_max)[:, None])
    # Of each token by itself, to be added up at the end.
    run_sums = weights
    run_accs = weights[:, :, None] * values.to(gl.float32)
    for here in range(start, cached, CLUSTER * TILE):
        scores = score(query, next_keys, here, cached)
        new_max = gl.maximum(run_max, gl.max(scores, 1))
        fade = gl.exp2(run_max - new_max)
        weights = gl.exp2(scores - new_max[:, None])
        run_max = new_max
        run_sums = run_sums * fade[:, None] + weights
        run_accs = run_accs * fade[:, None][:, :, None] + weights[:, :, None] * next_values.to(
            gl.float32
        )
        ahead = here + CLUSTER * TILE
        next_keys, next_values = load_tile(
            k_cache, v_cache, block_table, ahead, cached, head, HEADS, PAGE, SLOT_STRIDE
        )
    send_parts(parts_at, rank, run_max, gl.sum(run_sums, 1), gl.sum(run_accs, 1))

    parts = wait_for_words(parts_at)
    own_dim = gl.arange(0, SHARE, layout=BY_OWN_DIM)
    new_value = read_all(projected, 2 * HEAD_DIM + own_dim)
    result = combine_parts(parts, new_score, new_value)
    # Zeros for a row that does not run, whatever its weights hold.
    result = gl.where(runs, result, 0.0)
    gl.store(out + head * HEAD_DIM + rank * SHARE + own_dim, result.to(out.dtype.element_ty))


@gluon.jit
def load_strips(weight, bias, column_sums, first, K: gl.constexpr):
    """Rows `first` and after of weight [N, K], SHARE of them in chunks, their bias and sums."""
    feature = first + gl.arange(0, SHARE, layout=BY_FEATURE)
    column = gl.arange(0, CHUNK, layout=BY_INPUT)
    strips = ()
    for start in gl.static_range(0, K, CHUNK):
        strips += (gl.load(weight + feature[:, None] * K + (start + column)[None, :]),)
    return strips, gl.load(bias + feature), gl.load(column_sums + feature)


@gluon.jit
def load_row(x, epsilon, K: gl.constexpr):
    """The row in chunks of float32, its mean and its reciprocal deviation."""
    column = gl.arange(0, CHUNK, layout=BY_INPUT)
    row = ()
    for start in gl.static_range(0, K, CHUNK):
        row += (gl.load(x + start + column).to(gl.float32),)
    total = row[0]
    for chunk in gl.static_range(1, K // CHUNK):
        total += row[chunk]
    mean = gl.sum(total, 0) / K
    squares = (row[0] - mean) * (row[0] - mean)
    for chunk in gl.static_range(1, K // CHUNK):
        squares += (row[chunk] - mean) * (row[chunk] - mean)
    return row, mean, gl.rsqrt(gl.sum(squares, 0) / K + epsilon)


@gluon.jit
def project(strips, row, mean, rstd, column_sum, shift, element: gl.constexpr):
    """Strips times the row, LayerNorm first, as `element` holds it: float32 [SHARE]."""
    products = strips[0].to(gl.float32) * row[0][None, :]
    for chunk in gl.static_range(1, len(strips)):
        products += strips[chunk].to(gl.float32) * row[chunk][None, :]
    result = rstd * (gl.sum(products, 1) - mean * column_sum) + shift
    return result.to(element).to(gl.float32)


@gluon.jit
def send_projected(inbox_at, rank, query, key, value):
    """The program's share of query and key to every program, and of the value to itself."""
    line = gl.arange(0, SHARE, layout=BY_LINE)[:, None]
    lane = gl.arange(0, 32, layout=BY_LANE)[None, :]
    query, key, value = _by_line(query), _by_line(key), _by_line(value)
    words = gl.where(lane < CLUSTER, query, gl.where(lane < 2 * CLUSTER, key, value))
    to = gl.where(lane < 2 * CLUSTER, lane % CLUSTER, rank) + line * 0
    place = gl.where(lane < CLUSTER, 0, HEAD_DIM) + rank * SHARE
    place = gl.where(lane < 2 * CLUSTER, place, 2 * HEAD_DIM) + line
    send_words(inbox_of(inbox_at, to), place, words, (lane <= 2 * CLUSTER) & (line >= 0))


@gluon.jit
def _by_line(values):
    """Values of features or warps as a column of LANES, which moves nothing."""
    return gl.convert_layout(values, BY_LINE)[:, None]


@gluon.jit
def load_tile(
    k_cache, v_cache, block_table, start, cached, head,
    HEADS: gl.constexpr, PAGE: gl.constexpr, SLOT_STRIDE: gl.constexpr,
):  # fmt: skip
    """Keys and values of the tile at `start`, zeros where there are no cached tokens."""
    block = gl.load(block_table + start // PAGE, mask=start < cached, other=0).to(gl.int64)
    first = ((block * HEADS + head) * PAGE + start % PAGE) * SLOT_STRIDE
    token = _token()
    dim = gl.arange(0, HEAD_DIM, layout=BY_DIM)[None, :][:, None, :]
    place = token[:, :, None] * SLOT_STRIDE + dim
    mask = (start + token < cached)[:, :, None] & (dim >= 0)
    keys = gl.load(k_cache + first + place, mask=mask, other=0.0)
    return keys, gl.load(v_cache + first + place, mask=mask, other=0.0)


@gluon.jit
def _token():
    """Each warp's tokens of a tile [WARPS, TILE / WARPS]."""
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, BY_TOKEN))
    own = gl.arange(0, TILE // WARPS, layout=gl.SliceLayout(0, BY_TOKEN))
    return warp[:, None] * (TILE // WARPS) + own[None, :]


@gluon.jit
def score(query, keys, start, cached):
    """A tile's scores [WARPS, TILE / WARPS], minus infinity where there are no cached tokens."""
    scores = gl.sum(keys.to(gl.float32) * query[None, :][:, None, :], 2)
    return gl.where(start + _token() < cached, scores, float("-inf"))


@gluon.jit
def base_of(run_max):
    """The maximum that scores are taken relative to; zero where there are none, to avoid NaN."""
    return gl.where(run_max == float("-inf"), 0.0, run_max)


@gluon.jit
def send_parts(parts_at, rank, run_max, run_sum, run_acc):
    """Each warp's running softmax: the maximum and sum [WARPS] to all programs, and of the weighted
    values [WARPS, HEAD_DIM] to each its own dimensions."""
    # The four tokens that a warp's threads have at once have the same sums: one of them each sends.
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, BY_TOKEN))[:, None][:, :, None]
    sender = gl.arange(0, 4, layout=gl.SliceLayout(0, BY_TOKEN))[None, :][:, :, None]
    dim = gl.arange(0, HEAD_DIM, layout=BY_DIM)[None, :][:, None, :]
    whole = gl.zeros([WARPS, 4, HEAD_DIM], gl.int32, layout=TOKENS)
    place = (rank * WARPS + warp) * PART_WORDS + dim % SHARE + whole
    mask = (dim % 4 == sender) & (warp >= 0)
    to = inbox_of(parts_at, dim // SHARE + whole)
    send_words(to, place, run_acc[:, None, :] + whole.to(gl.float32), mask)

    line = gl.arange(0, WARPS, layout=BY_LINE)[:, None]
    lane = gl.arange(0, 32, layout=BY_LANE)[None, :]
    words = gl.where(lane < CLUSTER, _by_line(run_max), _by_line(run_sum))
    place = (rank * WARPS + line) * PART_WORDS + SHARE + lane // CLUSTER
    to = inbox_of(parts_at, lane % CLUSTER + line * 0)
    send_words(to, place, words, (lane < 2 * CLUSTER) & (line >= 0))


@gluon.jit
def combine_parts(parts, new_score, new_value):
    """All parts and the new token, normalised: the program's own dimensions, float32 [SHARE]."""
    part = gl.arange(0, PARTS, layout=BY_PART) * PART_WORDS
    dim = gl.arange(0, SHARE, layout=BY_OWN_DIM)
    maxima = read_all(parts, part + SHARE)
    top = gl.maximum(gl.max(maxima, 0), new_score)
    fades = gl.exp2(maxima - top)
    new_weight = gl.exp2(new_score - top)
    total = gl.sum(fades * read_all(parts, part + SHARE + 1), 0) + new_weight
    accs = read_all(parts, part[:, None] + dim[None, :])
    return (gl.sum(fades[:, None] * accs, 0) + new_weight * new_value) / total


@gluon.jit
def read_all(inbox, place):
    """The words at `place`, without a mask."""
    return read_words(inbox, place, place >= 0, 0.0)
