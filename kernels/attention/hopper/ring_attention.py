# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"
"""Decode attention for Hopper, in Gluon (Triton's explicit-layout form), with or without an append.

The same computation as `kernels.attention.decode_append`, split by split. But keys and values come
through a ring of `STAGES` tiles in shared memory that the bulk copy engine fills, and the ring is
full before the projection that makes the query has ended: plain Triton cannot say that. A program
is one warp. Its arithmetic is in `kernels.attention.hopper.softmax`; how the parts of a context are
combined, in `kernels.attention.hopper.parts`; how many programs share a context, in
`kernels.attention.hopper.ring_launch`.

Why the early launch is safe stands in `kernels.attention.decode_append`. Here whole tiles are
copied, so the slot being appended to may be copied too, before or after the write: slots at or
beyond the cached tokens never enter a result.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.attention.hopper.cache_slot import (
    arranged,
    block_at,
    head_scales,
    key_dimension_at,
    key_tile,
    rounded,
    scaled_query,
    slot_at,
    slot_words,
    value_dimension_at,
    value_tile,
)
from kernels.attention.hopper.gather import (
    announce_inboxes,
    await_inboxes,
    expect_words,
    inbox_of,
    open_inbox,
    wait_for_words,
)
from kernels.attention.hopper.parts import send_part, sent_words, store_combined, write_part
from kernels.attention.hopper.ring import refill, request
from kernels.attention.hopper.softmax import (
    BY_HEAD,
    BY_QUERY_DIM,
    BY_QUERY_HEAD,
    BY_ROW,
    LEFT,
    attend_tile,
    combine,
    empty_part,
    store_output,
    take_new_token,
)
from kernels.attention.hopper.turn import load_turn, load_turned
from kernels.attention.running_softmax import PART_HEADER
from kernels.hopper.names import program_barrier

# Of a key or a value as it is appended: 16 bytes a thread, so that each is one whole line. In the
# layouts that it is attended to in, it would be stored in pieces of 16 bytes.
LINE = gl.constexpr(gl.BlockedLayout([8], [32], [1], [0]))


@gluon.jit(
    do_not_specialize=["max_context", "table_stride", "inbox_at"],
    do_not_specialize_on_alignment=["block_tables", "lengths", "is_running"],
)
def ring_attention(
    query,
    keys,
    values,
    tail_keys,
    tail_values,
    k_cache,
    v_cache,
    block_tables,
    lengths,
    is_running,
    out,
    partials,
    counters,
    turns,
    head_norm,
    scale_log2,
    max_context,
    query_stride_row,
    query_stride_head,
    cache_stride_slot,
    table_stride,
    out_stride_row,
    out_stride_head,
    scales,
    inbox_at,
    G: gl.constexpr,
    G_PAD: gl.constexpr,
    D: gl.constexpr,
    KV_HEADS: gl.constexpr,
    PAGE: gl.constexpr,
    BLOCK_N: gl.constexpr,
    TAIL: gl.constexpr,
    STAGES: gl.constexpr,
    SPARE: gl.constexpr,
    SPLIT: gl.constexpr,
    SERIAL: gl.constexpr,
    CLUSTER: gl.constexpr,
    APPEND: gl.constexpr,
    LATE: gl.constexpr,
    EPSILON: gl.constexpr,
    PDL: gl.constexpr,
):
    """One KV head of one sequence: all splits (SERIAL), split number `program_id(2)`, or some.

    Where CLUSTER is more than 1, as many programs share the splits: each takes every CLUSTER-th,
    and sends their parts to the first. With APPEND the new token's key and value stand behind its
    queries, and `lengths` counts the tokens before it; it is written before they are attended to,
    or where LATE after. Without, all tokens are in the cache and are counted. To be appended, its
    key is turned, as its queries are, where there are `turns` [positions, D], and normed before
    where there is a `head_norm` [KV_HEADS (G + 1), D]. A cache of eight bits has `scales`
    [2, KV_HEADS].
    """
    EIGHT_BITS: gl.constexpr = scales is not None
    WORDS: gl.constexpr = slot_words(D, EIGHT_BITS)
    if PDL:
        gdc_launch_dependents()
    if CLUSTER > 1:
        open_inbox(inbox_at)
        announce_inboxes()
    kv_head = gl.program_id(0) // CLUSTER
    sequence = gl.program_id(1).to(gl.int64)
    # Of the two one is always 0.
    split = gl.program_id(0) % CLUSTER + gl.program_id(2)
    length = gl.load(lengths + sequence)
    if APPEND:
        runs = (gl.load(is_running + sequence).to(gl.int32) > 0) & (length < max_context)
        cached = gl.where(runs, length, 0)
    else:
        # A length beyond the table would read past it and wait for splits that never arrive.
        cached = gl.minimum(length, max_context)
        runs = cached > 0
    first = split * SPLIT
    # Pages of the first tiles, whether the context reaches them or not: read with its length, not
    # after it.
    table = block_tables + sequence * table_stride
    blocks = ()
    for stage in gl.static_range(STAGES):
        start = _start(first, stage, BLOCK_N, SPLIT, CLUSTER)
        blocks += (block_at(table, start, start < max_context, PAGE),)
    if first < gl.maximum(cached, 1):
        splits = 1
        if not SERIAL:
            splits = gl.maximum(gl.cdiv(cached, SPLIT), 1)
        last = cached
        if not SERIAL and CLUSTER == 1:
            last = gl.minimum(first + SPLIT, cached)
        tokens = last - first
        if CLUSTER > 1:
            # Only the last split of all may be short.
            taken = gl.cdiv(splits - split, CLUSTER)
            last_taken = (split + (taken - 1) * CLUSTER) * SPLIT
            tokens = (taken - 1) * SPLIT + gl.minimum(SPLIT, cached - last_taken)
            if (split == 0) & (splits > 1):
                expect_words(inbox_at, splits * sent_words(G, D, APPEND))
        tiles = gl.cdiv(tokens, BLOCK_N)

        k_ring = gl.allocate_shared_memory(keys.dtype, [STAGES, BLOCK_N, WORDS], keys.layout)
        v_ring = gl.allocate_shared_memory(values.dtype, [STAGES, BLOCK_N, WORDS], values.layout)
        # Memory that is to be left unused counts as barriers too many.
        barriers: gl.constexpr = STAGES + SPARE // 8
        ready = gl.allocate_shared_memory(gl.int64, [barriers, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(STAGES):
            mbarrier.init(ready.index(stage), count=1)
        fence_async_shared()
        for stage in gl.static_range(STAGES):
            if stage < tiles:
                request(
                    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, blocks[stage],
                    kv_head, _start(first, stage, BLOCK_N, SPLIT, CLUSTER), last, stage,
                    KV_HEADS, PAGE, BLOCK_N, TAIL, WORDS,
                )  # fmt: skip

        HEADS: gl.constexpr = G_PAD if G_PAD > 8 else 8
        # Once a stage is in registers it can be filled again, before its tile is worked on. Those
        # of wide heads do not all fit beside the sums.
        EARLY: gl.constexpr = WORDS <= 64
        group = gl.arange(0, HEADS, layout=BY_HEAD)
        dim = value_dimension_at(gl.arange(0, D, layout=BY_ROW), D, EIGHT_BITS)
        query_group = gl.arange(0, HEADS, layout=BY_QUERY_HEAD)
        query_dim = key_dimension_at(gl.arange(0, D, layout=BY_QUERY_DIM), D, EIGHT_BITS)
        query_mask = (query_group < G)[None, :] & (query_dim < D)[:, None]
        query_place = (kv_head * G + query_group)[None, :] * query_stride_head + query_dim[:, None]
        key_scale, value_scale = head_scales(scales, kv_head, KV_HEADS)
        if EIGHT_BITS:
            scale_log2 *= key_scale
        if APPEND:
            new_block = block_at(table, cached, runs, PAGE).to(gl.int64)
        if turns is not None:
            line = gl.arange(0, D, layout=LINE)
            query_cosines, query_sines = load_turn(turns, cached, query_dim, D)
            line_cosines, line_sines = load_turn(turns, cached, line, D)
        if PDL:
            gdc_wait()

        row = query + sequence * query_stride_row
        key_row = row + (KV_HEADS * G + kv_head) * query_stride_head
        value_row = key_row + KV_HEADS * query_stride_head
        if APPEND:
            line = gl.arange(0, D, layout=LINE)
            if turns is None:
                key_line = gl.load(key_row + line)
            else:
                norms = (KV_HEADS * G + kv_head) * D
                key_line = load_turned(
                    key_row, head_norm, norms, line, line >= 0, line_cosines, line_sines, D, EPSILON
                ).to(query.dtype.element_ty)
            key_line = rounded(key_line, key_scale, EIGHT_BITS)
            value_line = rounded(gl.load(value_row + line), value_scale, EIGHT_BITS)
            appends = (split == 0) & runs
            slot = slot_at(new_block, kv_head, cached, KV_HEADS, PAGE) * cache_stride_slot
        if turns is None:
            q = gl.load(row + query_place, mask=query_mask, other=0.0)
        else:
            query_head = (kv_head * G + query_group)[None, :]
            q = load_turned(
                row + query_head * query_stride_head, head_norm, query_head * D,
                query_dim[:, None], query_mask, query_cosines[:, None], query_sines[:, None],
                D, EPSILON,
            ).to(query.dtype.element_ty)  # fmt: skip
        if APPEND:
            if turns is None:
                new_key = rounded(gl.load(key_row + query_dim), key_scale, EIGHT_BITS)
            else:
                new_key = gl.convert_layout(arranged(key_line, D, EIGHT_BITS), BY_QUERY_DIM)
            new_value = rounded(gl.load(value_row + dim), value_scale, EIGHT_BITS)
            if not LATE:  # noqa: SIM102
                if appends:
                    gl.store(k_cache + slot + line, key_line)
                    gl.store(v_cache + slot + line, value_line)
            products = q.to(gl.float32) * new_key[:, None].to(gl.float32)
            new_score = gl.convert_layout(gl.sum(products, 0), BY_HEAD) * scale_log2

        score_scale = scale_log2
        if EIGHT_BITS:
            q, power = scaled_query(q)
            score_scale = (scale_log2 * gl.convert_layout(power, BY_HEAD))[None, :]
        if CLUSTER > 1:
            inbox = 0
            if splits > 1:
                await_inboxes()
                inbox = inbox_of(inbox_at, 0)
        total_max, total_sum, total_acc = empty_part(HEADS, D)
        run_max, run_sum, run_acc = empty_part(HEADS, D)
        whole_tiles = tokens // BLOCK_N
        for tile in range(whole_tiles):
            start = _start(first, tile, BLOCK_N, SPLIT, CLUSTER)
            here = tile % STAGES
            # The tile that will stand in this stage next: its page is read before the wait.
            ahead = _start(first, tile + STAGES, BLOCK_N, SPLIT, CLUSTER)
            block = block_at(table, ahead, ahead < last, PAGE)
            mbarrier.wait(ready.index(here), (tile // STAGES) & 1)
            k = k_ring.index(here).load(LEFT)
            v = v_ring.index(here).permute((1, 0)).load(LEFT)
            if EARLY:
                refill(
                    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, block, kv_head,
                    ahead, last, here, KV_HEADS, PAGE, BLOCK_N, TAIL, WORDS,
                )  # fmt: skip
            k, v = key_tile(k, EIGHT_BITS), value_tile(v, EIGHT_BITS)
            run_max, run_sum, run_acc = attend_tile(
                q, k, v, BLOCK_N, score_scale, run_max, run_sum, run_acc, BLOCK_N, HEADS, False
            )
            if not EARLY:
                refill(
                    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, block, kv_head,
                    ahead, last, here, KV_HEADS, PAGE, BLOCK_N, TAIL, WORDS,
                )  # fmt: skip
            if SERIAL:  # noqa: SIM102
                if (start + BLOCK_N) % SPLIT == 0:
                    total_max, total_sum, total_acc = combine(
                        total_max, total_sum, total_acc, run_max, run_sum, run_acc
                    )
                    run_max, run_sum, run_acc = empty_part(HEADS, D)
            if CLUSTER > 1:  # noqa: SIM102
                if ((start + BLOCK_N) % SPLIT == 0) & (splits > 1):
                    send_part(
                        inbox, start // SPLIT, group, dim, run_max, run_sum, run_acc,
                        new_score if APPEND else run_max, G, D, APPEND,
                    )  # fmt: skip
                    run_max, run_sum, run_acc = empty_part(HEADS, D)
        # Apart from the others, so that only the last tile pays for being cut short.
        if whole_tiles < tiles:
            here = whole_tiles % STAGES
            mbarrier.wait(ready.index(here), (whole_tiles // STAGES) & 1)
            k = k_ring.index(here).load(LEFT)
            v = v_ring.index(here).permute((1, 0)).load(LEFT)
            k, v = key_tile(k, EIGHT_BITS), value_tile(v, EIGHT_BITS)
            left = tokens - whole_tiles * BLOCK_N
            run_max, run_sum, run_acc = attend_tile(
                q, k, v, left, score_scale, run_max, run_sum, run_acc, BLOCK_N, HEADS, True
            )

        if APPEND and LATE:  # noqa: SIM102
            if appends:
                gl.store(k_cache + slot + line, key_line)
                gl.store(v_cache + slot + line, value_line)
        if not SERIAL:  # noqa: SIM102
            if splits > 1:
                out_heads = out + sequence * out_stride_row + kv_head * G * out_stride_head
                if CLUSTER > 1:
                    if tokens % SPLIT != 0:
                        send_part(
                            inbox, split + tokens // SPLIT * CLUSTER, group, dim,
                            run_max, run_sum, run_acc, new_score if APPEND else run_max,
                            G, D, APPEND,
                        )  # fmt: skip
                    if split == 0:
                        store_combined(
                            wait_for_words(inbox_at), splits, value_row, value_scale, out_heads,
                            out_stride_head, G, G_PAD, D, APPEND, True, EIGHT_BITS,
                        )  # fmt: skip
                else:
                    pair = sequence * KV_HEADS + kv_head
                    parts = partials + pair * gl.num_programs(2) * (G * (D + PART_HEADER))
                    write_part(
                        parts, split, group, dim, run_max, run_sum, run_acc,
                        new_score if APPEND else run_max, G, D, APPEND,
                    )  # fmt: skip
                    # Every thread's part must be written before one says so, and the atomic makes
                    # what others wrote visible to the program that arrives last.
                    program_barrier()
                    arrived = gl.atomic_add(counters + pair, 1, sem="acq_rel")
                    program_barrier()
                    if arrived == splits - 1:
                        store_combined(
                            parts, splits, value_row, value_scale, out_heads, out_stride_head,
                            G, G_PAD, D, APPEND, False, EIGHT_BITS,
                        )  # fmt: skip
                        gl.store(counters + pair, 0)
        if splits == 1:
            total_max, total_sum, total_acc = combine(
                total_max, total_sum, total_acc, run_max, run_sum, run_acc
            )
            if APPEND:
                total_max, total_sum, total_acc = take_new_token(
                    total_max, total_sum, total_acc, new_score, new_value
                )
            place = (kv_head * G + group)[None, :] * out_stride_head + dim[:, None]
            mask = (group < G)[None, :] & (dim < D)[:, None]
            place = out + sequence * out_stride_row + place
            store_output(total_sum, total_acc, runs, value_scale, place, mask, EIGHT_BITS)


@gluon.jit
def _start(first, tile, BLOCK_N: gl.constexpr, SPLIT: gl.constexpr, CLUSTER: gl.constexpr):
    """The token that a program's tile begins with, of which the first begins with `first`."""
    if CLUSTER == 1:
        return first + tile * BLOCK_N
    else:
        TILES: gl.constexpr = SPLIT // BLOCK_N
        return first + tile // TILES * (CLUSTER * SPLIT) + tile % TILES * BLOCK_N
