# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Sums over the programs of a Hopper cluster, without a trip through memory.

The programs that share a tile, each with products of its part of K, are launched as one cluster,
and each is left with the sums of its own share of the tile's columns: rows of the batch, as weights
are the left operand. The other shares it sends straight into the shared memory of the programs they
belong to, whose barriers count the bytes that arrive. A program adds what it receives in the order
of the senders, so that results repeat bit for bit.

Gluon of Triton 3.6 knows nothing of clusters. So a kernel is compiled as if its programs ran by
themselves, and the few instructions that reach another program are written out here. Every launch
passes the size of a cluster and the shared memory of a program. The memory beyond what the compiler
asked for is the inbox; the kernel is told where it begins.
"""

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.errors import KernelArgumentError
from kernels.hopper.limits import GIVEN_SHARED_BYTES, MOST_SHARED_BYTES

_BARRIER_BYTES = 16
# A thread sends and receives four float32 at a time.
_VECTOR = 4


@gluon.constexpr_function
def inbox_bytes(programs, share):
    """Shared memory that one program receives in: `share` float32 from each of the others."""
    return _BARRIER_BYTES + (programs - 1) * share * 4 if programs > 1 else 0


@gluon.constexpr_function
def _vector(names, first):
    """Four registers as one operand."""
    return f"{{{', '.join(names[first : first + _VECTOR])}}}"


@gluon.constexpr_function
def _place(slot, first, threads, share):
    """Where four registers of a sender lie in an inbox, from a thread's own place in it on."""
    return _BARRIER_BYTES + slot * share * 4 + first * threads * 4


@gluon.constexpr_function
def opening_code(programs, share):
    """PTX: expect the other programs' words, and let them send."""
    expected = inbox_bytes(programs, share) - _BARRIER_BYTES
    return f"""{{
        .reg .pred is_first; .reg .u32 inbox, thread;
        mov.u32 inbox, global_smem;
        add.u32 inbox, inbox, $1;
        mov.u32 thread, %tid.x;
        setp.eq.u32 is_first, thread, 0;
        @is_first mbarrier.init.shared::cta.b64 [inbox], 1;
        @is_first fence.mbarrier_init.release.cluster;
        @is_first mbarrier.arrive.expect_tx.shared::cta.b64 _, [inbox], {expected};
        barrier.cluster.arrive.relaxed.aligned;
        mov.u32 $0, 0;
    }}"""


@gluon.constexpr_function
def exchange_code(programs, threads, share):
    """PTX: send the others' shares, and add what they send to the own one.

    `st.async`, `mapa` and `barrier.cluster` are in the PTX ISA's chapters on data movement and on
    synchronisation, for sm_90.

    Operands are the results, then each program's share of this one's products, then where the inbox
    begins, of which the first counts: `share / threads` registers each. Which share is the own one
    is known only as the program runs, and registers cannot be chosen then: there is code for each.
    """
    own = share // threads
    results = [f"${i}" for i in range(own)]
    products = [[f"${own * (1 + rank) + i}" for i in range(own)] for rank in range(programs)]
    received = [[f"from{slot}_{i}" for i in range(own)] for slot in range(programs - 1)]
    vectors = range(0, own, _VECTOR)
    lines = [
        ".reg .pred other, arrived; .reg .u32 rank, inbox, mine, there, barrier;",
        f".reg .f32 {', '.join(name for slot in received for name in slot)};",
        "mov.u32 inbox, global_smem;",
        f"add.u32 inbox, inbox, ${own * (1 + programs)};",
        "mov.u32 mine, %tid.x;",
        f"mad.lo.u32 mine, mine, {4 * _VECTOR}, inbox;",
        "mov.u32 rank, %cluster_ctarank;",
        # All inboxes are open.
        "barrier.cluster.wait.acquire.aligned;",
    ]
    for rank in range(programs):
        others = [other for other in range(programs) if other != rank]
        lines += [f"setp.ne.u32 other, rank, {rank};", f"@other bra AFTER{rank};"]
        for other in others:
            lines += [
                f"mapa.shared::cluster.u32 there, mine, {other};",
                f"mapa.shared::cluster.u32 barrier, inbox, {other};",
            ]
            slot = rank - (rank > other)
            lines += [
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                f"[there+{_place(slot, i, threads, share)}], "
                f"{_vector(products[other], i)}, [barrier];"
                for i in vectors
            ]
        lines += [
            f"UNTIL{rank}:",
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 arrived, [inbox], 0;",
            f"@!arrived bra UNTIL{rank};",
        ]
        lines += [
            f"ld.shared.v4.f32 {_vector(received[slot], i)}, "
            f"[mine+{_place(slot, i, threads, share)}];"
            for slot in range(programs - 1)
            for i in vectors
        ]
        # The senders in order, the own part where it belongs among them.
        terms = [*received[:rank], products[rank], *received[rank:]]
        for result, first, *more in zip(results, *terms, strict=True):
            sums = [first] + [result] * (len(more) - 1)
            lines += [
                f"add.f32 {result}, {sum_}, {term};" for sum_, term in zip(sums, more, strict=True)
            ]
        lines += ["bra DONE;", f"AFTER{rank}:"]
    return "\n".join(["{", *lines, "DONE:", "}"])


@gluon.constexpr_function
def exchange_operands(programs, threads, share):
    """The constraints of `exchange_code`; results must not take the place of what is still read."""
    own = share // threads
    return ",".join(["=&f"] * own + ["f"] * own * programs + ["r"] * own)


@gluon.jit
def open_inbox(inbox_at, PROGRAMS: gl.constexpr, SHARE: gl.constexpr):
    """Open the program's inbox; each program of a cluster calls it once, as it starts."""
    CODE: gl.constexpr = opening_code(PROGRAMS, SHARE)
    gl.inline_asm_elementwise(CODE, "=r,r", [inbox_at], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _shares(
    tile, ROWS: gl.constexpr, COLUMNS: gl.constexpr, COUNT: gl.constexpr, layout: gl.constexpr
):
    """Neighbouring columns of a tile [ROWS, COLUMNS] as COUNT tiles in `layout`; moves nothing."""
    HALF: gl.constexpr = COLUMNS // 2
    halves = gl.split(gl.permute(gl.reshape(tile, [ROWS, 2, HALF]), (0, 2, 1)))
    if COUNT == 2:
        return (
            gl.convert_layout(halves[0], layout, assert_trivial=True),
            gl.convert_layout(halves[1], layout, assert_trivial=True),
        )
    else:
        return _shares(halves[0], ROWS, HALF, COUNT // 2, layout) + _shares(
            halves[1], ROWS, HALF, COUNT // 2, layout
        )


@gluon.jit
def summed_share(
    tile, inbox_at,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, PROGRAMS: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """The cluster's sum of this program's share of the tiles: [ROWS, COLUMNS / PROGRAMS].

    Float32, in `layout`, which must be that of the tile but for its width. Once a program, after
    `open_inbox`; all programs of the cluster must take part.
    """
    THREADS: gl.constexpr = 32 * gl.num_warps()
    SHARE: gl.constexpr = ROWS * COLUMNS // PROGRAMS
    CODE: gl.constexpr = exchange_code(PROGRAMS, THREADS, SHARE)
    OPERANDS: gl.constexpr = exchange_operands(PROGRAMS, THREADS, SHARE)
    operands = _shares(tile, ROWS, COLUMNS, PROGRAMS, layout)
    operands += (gl.full([ROWS, COLUMNS // PROGRAMS], inbox_at, gl.int32, layout=layout),)
    return gl.inline_asm_elementwise(
        CODE,
        OPERANDS,
        operands,
        dtype=gl.float32,
        is_pure=False,
        pack=SHARE // THREADS,
    )


def launch_clusters(
    kernel: Any, grid: tuple[int, ...], programs: int, inbox: int, *arguments: Any, **options: Any
) -> None:
    """Launch a kernel in clusters of `programs` along the first axis.

    Parameters
    ----------
    kernel
        A Gluon kernel with an argument `inbox_at`, on whose value it is not specialised: bytes from
        the start of its shared memory.
    grid
        In clusters: programs along the first axis are `programs` times as many.
    programs
        One of `kernels.hopper.limits.CLUSTER_SIZES`.
    inbox
        Bytes of shared memory that a program receives in.
    arguments, options
        As for a launch without clusters. Launches of other cluster sizes must be told apart by a
        compile-time constant.

    Raises
    ------
    KernelArgumentError
        If a program's memory and its inbox are more than a multiprocessor has.
    """
    inbox_at = 0
    if programs > 1:
        compiled = kernel.warmup(*arguments, inbox_at=0, grid=grid, **options)
        if compiled is None:
            # It is only noted, to be compiled later, see `kernels.compilation`.
            return
        own = compiled.metadata.shared
        inbox_at = -(-own // 16) * 16
        shared = inbox_at + inbox
        if shared > (MOST_SHARED_BYTES if own > GIVEN_SHARED_BYTES else GIVEN_SHARED_BYTES):
            raise KernelArgumentError(
                f"the tile must leave {inbox} bytes of a program's shared "
                f"memory to what it receives from its cluster of {programs}, but takes {own} bytes"
            )
        compiled.packed_metadata = (compiled.metadata.num_warps, programs, shared)
    kernel[grid](*arguments, inbox_at=inbox_at, **options)
