# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Words that the programs of a Hopper cluster send each other, without a trip through memory.

An inbox is a barrier, which counts the bytes that arrive, and the words behind it, in the shared
memory of the program that reads it. Every program opens its own as it starts, says so to the others
and sends when all have. As in `kernels.hopper.cluster`, whose `launch_clusters` launches these
kernels too, the instructions that reach another program are written out: Gluon of Triton 3.6 knows
nothing of clusters. `st.async`, `mapa` and `barrier.cluster` are in the PTX ISA's chapters on data
movement and on synchronisation, for sm_90.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_BARRIER_BYTES = gl.constexpr(16)
_WORD_BYTES = gl.constexpr(4)

_INBOX = """
    .reg .u32 inbox;
    mov.u32 inbox, global_smem;
    add.u32 inbox, inbox, $1;
"""
_FIRST_THREAD = """
    .reg .pred is_first;
    .reg .u32 thread;
    mov.u32 thread, %tid.x;
    setp.eq.u32 is_first, thread, 0;
"""
_OPEN = gl.constexpr(
    f"""{{
    {_INBOX}
    {_FIRST_THREAD}
    @is_first mbarrier.init.shared::cta.b64 [inbox], 1;
    @is_first fence.mbarrier_init.release.cluster;
    mov.u32 $0, 0;
    }}"""
)
_ANNOUNCE = gl.constexpr("barrier.cluster.arrive.relaxed.aligned; mov.u32 $0, 0;")
_AWAIT = gl.constexpr("barrier.cluster.wait.acquire.aligned; mov.u32 $0, 0;")
_EXPECT = gl.constexpr(
    f"""{{
    {_INBOX}
    {_FIRST_THREAD}
    @is_first mbarrier.arrive.expect_tx.shared::cta.b64 _, [inbox], $2;
    mov.u32 $0, 0;
    }}"""
)
_FIND = gl.constexpr(
    f"""{{
    {_INBOX}
    mapa.shared::cluster.u32 $0, inbox, $2;
    }}"""
)
_SEND = gl.constexpr(
    """{
    .reg .pred wanted;
    setp.ne.u32 wanted, $3, 0;
    @wanted st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [$2], $1, [$4];
    mov.u32 $0, 0;
    }"""
)
_WAIT = gl.constexpr(
    f"""{{
    .reg .pred arrived;
    {_INBOX}
    UNTIL:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 arrived, [inbox], 0;
    @!arrived bra UNTIL;
    mov.u32 $0, inbox;
    }}"""
)
_READ = gl.constexpr(
    """{
    .reg .pred wanted;
    setp.ne.u32 wanted, $2, 0;
    mov.f32 $0, $3;
    @wanted ld.shared.f32 $0, [$1];
    }"""
)


@gluon.constexpr_function
def gathered_bytes(words):
    """Shared memory of an inbox for so many words."""
    return _BARRIER_BYTES.value + _WORD_BYTES.value * words


@gluon.jit
def open_inbox(inbox_at):
    """One of the program's inboxes, `inbox_at` bytes from the start of its shared memory; once."""
    gl.inline_asm_elementwise(_OPEN, "=r,r", [inbox_at], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def expect_words(inbox_at, count):
    """How many words an inbox that is open will be sent in all, the program's own among them."""
    num_bytes = count * _WORD_BYTES
    gl.inline_asm_elementwise(
        _EXPECT, "=r,r,r", [inbox_at, num_bytes], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def announce_inboxes():
    """Tell the other programs of the cluster that all inboxes here are open; once a program."""
    gl.inline_asm_elementwise(_ANNOUNCE, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def await_inboxes():
    """Wait until all programs of the cluster have announced theirs; at most once a program."""
    gl.inline_asm_elementwise(_AWAIT, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def inbox_of(inbox_at, rank):
    """The address to send to of the inbox of program `rank` of the cluster, or of several."""
    return gl.inline_asm_elementwise(
        _FIND, "=r,r,r", [inbox_at + rank * 0, rank], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def send_words(inbox, place, values, mask):
    """Send float32 `values` where `mask`, to words `place` of what `inbox_of` returned.

    All of one shape, in a layout that gives every element to one thread: an element that two
    threads hold would be sent and counted twice.
    """
    layout: gl.constexpr = values.type.layout
    barrier = inbox + gl.zeros(values.shape, gl.int32, layout=layout)
    address = barrier + _BARRIER_BYTES + place * _WORD_BYTES
    gl.inline_asm_elementwise(
        _SEND,
        "=r,f,r,r,r",
        [values, address, mask.to(gl.int32), barrier],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def wait_for_words(inbox_at):
    """The program's own inbox, once all words that it expects are there."""
    return gl.inline_asm_elementwise(
        _WAIT, "=r,r", [inbox_at], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def read_words(inbox, place, mask, other):
    """The words at `place` of what `wait_for_words` returned; `other` where not `mask`."""
    layout: gl.constexpr = place.type.layout
    return gl.inline_asm_elementwise(
        _READ,
        "=f,r,r,f",
        [
            inbox + _BARRIER_BYTES + place * _WORD_BYTES,
            mask.to(gl.int32),
            gl.full(place.shape, other, gl.float32, layout=layout),
        ],
        dtype=gl.float32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def read_all(inbox, place):
    """The words at `place`, without a mask."""
    return read_words(inbox, place, place >= 0, 0.0)
