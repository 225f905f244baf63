# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment, misc"
"""The attention of a single row with the linear map before it, for Hopper, in Gluon.

One row leaves a decode step nothing to wait for but the next kernel's start: so its queries, keys
and values and the attention over them are one kernel, of a cluster of programs for each KV head and
its G query heads. A program makes its share of the dimensions of all these heads, from strips of
weights that it holds in registers before the kernel ahead has ended, as `kernels.linear.vector`
does. It sends queries and key to all, so that each has them whole, and norms and turns them where
the model does so: each program again, as that needs whole heads. Then it attends over every
CLUSTER-th tile of the context, the first of which it holds in registers by then too, and sends what
came of it to all, each its share of the dimensions, which each combines and writes.

No tensor cores: a warp multiplies its own tokens of a tile by the queries, and keeps its own
running softmax. What the warps send, or the programs where their warps MERGE it first, is combined
in the order of their contexts' parts, whatever arrives first, so that results repeat bit for bit.

Why it may read the context before the kernel ahead has ended stands in
`kernels.attention.decode_append`; of the new token's slot nothing is read.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.attention.hopper.cache_slot import block_at, slot_at
from kernels.attention.hopper.gather import (
    announce_inboxes,
    await_inboxes,
    expect_words,
    gathered_bytes,
    open_inbox,
    read_all,
    wait_for_words,
)
from kernels.attention.hopper.row_layouts import head_layout, token_layout
from kernels.attention.hopper.row_parts import (
    base_of,
    combine_parts,
    own_dims,
    own_heads,
    parts_words,
    send_merged,
    send_parts,
)
from kernels.attention.hopper.row_projection import (
    load_row,
    load_strip,
    own_feature,
    project,
    projected_words,
    send_projected,
)
from kernels.attention.hopper.turn import load_turn


@gluon.constexpr_function
def first_inbox_bytes(G, D, cluster):
    """Shared memory of the first inbox."""
    return gathered_bytes(projected_words(G, D, cluster))


def inbox_bytes(group: int, head_dim: int, cluster: int, warps: int, merge: bool) -> int:
    """Shared memory of a program's two inboxes."""
    first: int = first_inbox_bytes(group, head_dim, cluster)
    second: int = gathered_bytes(parts_words(group, head_dim, cluster, warps, merge))
    return first + second


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
    turns,
    head_norm,
    epsilon,
    scale_log2,
    max_context,
    inbox_at,
    K: gl.constexpr,
    HEADS: gl.constexpr,
    G: gl.constexpr,
    D: gl.constexpr,
    PAGE: gl.constexpr,
    SLOT_STRIDE: gl.constexpr,
    CLUSTER: gl.constexpr,
    TILE: gl.constexpr,
    MERGE: gl.constexpr,
    EPSILON: gl.constexpr,
    PDL: gl.constexpr,
):
    """One of HEADS KV heads, a CLUSTER-th of it.

    x [1, K], weight [(G + 2) HEADS D, K], out [1, G HEADS D]. The row passes a LayerNorm where
    there are `column_sums`, an RMS norm where not. Queries and key are turned where there are
    `turns` [positions, D], and normed before where there is a `head_norm` [HEADS (G + 1), D].

    TILE tokens must divide a page. From one slot of the cache to the next lie SLOT_STRIDE elements:
    a constant, so that the addresses of a tile take fewer instructions.
    """
    SHARE: gl.constexpr = D // CLUSTER
    parts_at = inbox_at + first_inbox_bytes(G, D, CLUSTER)
    # The instructions that find an inbox name a symbol that no kernel has without memory of its
    # own.
    named = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(named.index(0), count=1)
    open_inbox(inbox_at)
    open_inbox(parts_at)
    expect_words(inbox_at, projected_words(G, D, CLUSTER))
    expect_words(parts_at, parts_words(G, D, CLUSTER, gl.num_warps(), MERGE))
    announce_inboxes()
    kv_head = gl.program_id(0) // CLUSTER
    rank = gl.program_id(0) % CLUSTER
    length = gl.load(position)
    runs = (gl.load(is_running).to(gl.int32) > 0) & (length < max_context)
    cached = gl.where(runs, length, 0)

    # Of each query head, of the key and of the value.
    strips, shifts, sums = (), (), ()
    for head in gl.static_range(G + 2):
        first = head_number(kv_head, head, HEADS, G) * D + rank * SHARE
        strip, shift, sum_ = load_strip(weight, bias, column_sums, first, K, SHARE)
        strips += (strip,)
        shifts += (shift,)
        sums += (sum_,)
    start = rank * TILE
    keys, values = load_tile(
        k_cache, v_cache, block_table, start, cached, kv_head, HEADS, D, TILE, PAGE, SLOT_STRIDE
    )
    new_block = block_at(block_table, cached, runs, PAGE).to(gl.int64)
    if turns is not None:
        cosines, sines = load_turn(turns, cached, _head_dim(D), D)
        query_norms = load_head_norms(head_norm, head_number(kv_head, 0, HEADS, G), G, D)
        key_norms = load_head_norms(head_norm, head_number(kv_head, G, HEADS, G), 1, D)
    if PDL:
        gdc_wait()
        # Not before: the next kernel's programs would take the places in which the last of these
        # clusters are to stand.
        gdc_launch_dependents()

    element = x.dtype.element_ty
    CENTRED: gl.constexpr = column_sums is not None
    row, mean, rstd = load_row(x, epsilon, CENTRED, K)
    made = ()
    for head in gl.static_range(G + 2):
        product = project(strips[head], row, mean, rstd, sums[head], shifts[head], CENTRED)
        made += (product.to(element).to(gl.float32),)
    # The strips' registers are free for the tile after the first.
    start += CLUSTER * TILE
    next_keys, next_values = load_tile(
        k_cache, v_cache, block_table, start, cached, kv_head, HEADS, D, TILE, PAGE, SLOT_STRIDE
    )
    await_inboxes()
    send_projected(inbox_at, rank, made, G, D, CLUSTER)
    slot = slot_at(new_block, kv_head, cached, HEADS, PAGE) * SLOT_STRIDE
    if runs:
        feature = rank * SHARE + own_feature(SHARE)
        if turns is None:
            gl.store(k_cache + slot + feature, made[G].to(k_cache.dtype.element_ty))
        gl.store(v_cache + slot + feature, made[G + 1].to(v_cache.dtype.element_ty))

    projected = wait_for_words(inbox_at)
    BY_QUERY: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, token_layout(D, gl.num_warps())))
    if turns is None:
        query = read_heads(projected, 0, 0, G, D, BY_QUERY)
        key = read_heads(projected, G, 0, 1, D, BY_QUERY)
    else:
        NORMED: gl.constexpr = head_norm is not None
        query = turned(projected, 0, query_norms, cosines, sines, element, G, D, NORMED, EPSILON)
        key = turned(projected, G, key_norms, cosines, sines, element, 1, D, NORMED, EPSILON)
    query *= scale_log2
    new_score = gl.sum(query * key, 1)
    query = gl.convert_layout(query, BY_QUERY)
    scores = score(query, keys, rank * TILE, cached, D, TILE)
    run_max = gl.max(scores, 2)
    weights = gl.exp2(scores - base_of(run_max)[:, :, None])
    # Of each token by itself, to be added up at the end.
    run_sums = weights
    run_accs = weigh(weights, values)
    for here in range(start, cached, CLUSTER * TILE):
        scores = score(query, next_keys, here, cached, D, TILE)
        new_max = gl.maximum(run_max, gl.max(scores, 2))
        fade = gl.exp2(run_max - new_max)
        weights = gl.exp2(scores - new_max[:, :, None])
        run_max = new_max
        run_sums = run_sums * fade[:, :, None] + weights
        run_accs = run_accs * fade[:, :, None][:, :, :, None] + weigh(weights, next_values)
        ahead = here + CLUSTER * TILE
        next_keys, next_values = load_tile(
            k_cache, v_cache, block_table, ahead, cached, kv_head, HEADS, D, TILE, PAGE, SLOT_STRIDE
        )
    run_sum, run_acc = gl.sum(run_sums, 2), gl.sum(run_accs, 2)
    if MERGE:
        send_merged(parts_at, rank, run_max, run_sum, run_acc, G, D, CLUSTER)
    else:
        send_parts(parts_at, rank, run_max, run_sum, run_acc, G, D, CLUSTER)
    if turns is not None:
        own = runs & (_head_dim(D) // SHARE == rank)
        place = k_cache + slot + _head_dim(D)
        gl.store(place[None, :], key.to(k_cache.dtype.element_ty), mask=own[None, :])

    parts = wait_for_words(parts_at)
    result = combine_parts(parts, projected, new_score, G, D, CLUSTER, MERGE)
    # Zeros for a row that does not run, whatever its weights hold.
    result = gl.where(runs, result, 0.0)
    head, dim = own_heads(G, SHARE), own_dims(SHARE)
    place = (kv_head * G + head)[:, None] * D + rank * SHARE + dim[None, :]
    gl.store(out + place, result.to(out.dtype.element_ty))
    if MERGE:
        # Until here nothing else is given its memory; without a merge, nothing else needs any.
        mbarrier.invalidate(named.index(0))


@gluon.jit
def head_number(kv_head, head: gl.constexpr, HEADS: gl.constexpr, G: gl.constexpr):
    """Which of all heads that the map makes is a KV head's query head `head`; G and G + 1: its key
    and value."""
    if head < G:
        return kv_head * G + head
    else:
        return HEADS * head + kv_head


@gluon.jit
def load_tile(
    k_cache, v_cache, block_table, start, cached, kv_head,
    HEADS: gl.constexpr, D: gl.constexpr, TILE: gl.constexpr, PAGE: gl.constexpr,
    SLOT_STRIDE: gl.constexpr,
):  # fmt: skip
    """Keys and values [warps, TILE / warps, D] of the tile at `start`, zeros where there are no
    cached tokens."""
    TOKENS: gl.constexpr = gl.SliceLayout(0, token_layout(D, gl.num_warps()))
    block = block_at(block_table, start, start < cached, PAGE).to(gl.int64)
    first = slot_at(block, kv_head, start, HEADS, PAGE) * SLOT_STRIDE
    token = _token(TILE, gl.SliceLayout(2, TOKENS))
    dim = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(1, TOKENS)))
    dim = dim[None, :][:, None, :]
    place = token[:, :, None] * SLOT_STRIDE + dim
    mask = (start + token < cached)[:, :, None] & (dim >= 0)
    keys = gl.load(k_cache + first + place, mask=mask, other=0.0)
    return keys, gl.load(v_cache + first + place, mask=mask, other=0.0)


@gluon.jit
def _token(TILE: gl.constexpr, layout: gl.constexpr):
    """Each warp's tokens of a tile [warps, TILE / warps]."""
    OWN: gl.constexpr = TILE // gl.num_warps()
    warp = gl.arange(0, gl.num_warps(), layout=gl.SliceLayout(1, layout))
    own = gl.arange(0, OWN, layout=gl.SliceLayout(0, layout))
    return warp[:, None] * OWN + own[None, :]


@gluon.jit
def _head_dim(D: gl.constexpr):
    """A head's dimensions as `turned` has them."""
    return gl.arange(0, D, layout=gl.SliceLayout(0, head_layout(gl.num_warps())))


@gluon.jit
def load_head_norms(head_norm, first, COUNT: gl.constexpr, D: gl.constexpr):
    """Weights [COUNT, D] of the norms of heads `first` and after, and those of the dimensions that
    they are turned with; ones where there are none."""
    if head_norm is None:
        return 1.0, 1.0
    else:
        norms = head_norm + first * D
        here = place_of_heads(0, 0, COUNT, D, head_layout(gl.num_warps()))
        there = place_of_heads(0, D // 2, COUNT, D, head_layout(gl.num_warps()))
        return gl.load(norms + here).to(gl.float32), gl.load(norms + there).to(gl.float32)


@gluon.jit
def turned(
    projected, first: gl.constexpr, norms, cosines, sines, element: gl.constexpr,
    COUNT: gl.constexpr, D: gl.constexpr, NORMED: gl.constexpr, EPSILON: gl.constexpr,
):  # fmt: skip
    """COUNT heads, `first` and after, normed and turned, as `element` holds them: float32.

    As `kernels.attention.hopper.turn.load_turned`.
    """
    HEADS: gl.constexpr = head_layout(gl.num_warps())
    heads = read_heads(projected, first, 0, COUNT, D, HEADS)
    swapped = read_heads(projected, first, D // 2, COUNT, D, HEADS)
    if NORMED:
        rstd = gl.rsqrt(gl.sum(heads * heads, 1) / D + EPSILON)[:, None]
        heads = heads * rstd * norms[0]
        swapped = swapped * rstd * norms[1]
    return (heads * cosines[None, :] + swapped * sines[None, :]).to(element).to(gl.float32)


@gluon.jit
def read_heads(
    projected, first: gl.constexpr, shift: gl.constexpr, COUNT: gl.constexpr, D: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """COUNT whole heads, `first` and after, from the inbox, their dimensions shifted around."""
    return read_all(projected, place_of_heads(first, shift, COUNT, D, layout))


@gluon.jit
def place_of_heads(
    first: gl.constexpr, shift: gl.constexpr, COUNT: gl.constexpr, D: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Where heads lie that stand one after another."""
    head = first + gl.arange(0, COUNT, layout=gl.SliceLayout(1, layout))
    dim = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    return head[:, None] * D + ((dim + shift) % D)[None, :]


@gluon.jit
def score(query, keys, start, cached, D: gl.constexpr, TILE: gl.constexpr):
    """A tile's scores [G, warps, TILE / warps], minus infinity where there are no cached tokens."""
    BY_SCORE: gl.constexpr = gl.SliceLayout(3, token_layout(D, gl.num_warps()))
    token = _token(TILE, gl.SliceLayout(0, BY_SCORE))
    products = keys.to(gl.float32)[None, :, :, :] * query[:, None, :][:, :, None, :]
    return gl.where((start + token < cached)[None, :, :], gl.sum(products, 3), float("-inf"))


@gluon.jit
def weigh(weights, values):
    """Values of each token times their weights, float32 [G, warps, TILE / warps, D]."""
    return weights[:, :, :, None] * values.to(gl.float32)[None, :, :, :]
