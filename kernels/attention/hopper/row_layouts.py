# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Which thread of a row's attention has what: layouts of D dimensions and so many warps."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_WIDTH = 8
"""Half-precision elements of 16 bytes, which a thread reads at once."""
_LANES = 32


@gluon.constexpr_function
def strip_layout(warps):
    """Strips of weights [SHARE, CHUNK], a few rows for each warp."""
    return gl.BlockedLayout([1, _WIDTH], [1, _LANES], [warps, 1], [1, 0])


@gluon.constexpr_function
def line_layout(warps):
    """[features, 32]: what a warp's threads have alike, each thread sends elsewhere."""
    return gl.BlockedLayout([1, 1], [1, _LANES], [warps, 1], [1, 0])


@gluon.constexpr_function
def part_line_layout(warps):
    """[G, warps, 32]: as `line_layout`, for what each warp has of every head."""
    return gl.BlockedLayout([1, 1, 1], [1, 1, _LANES], [1, warps, 1], [2, 1, 0])


@gluon.constexpr_function
def head_layout(warps):
    """Heads [H, D], every warp all of them, and a thread every 32nd dimension of each."""
    whole = gl.BlockedLayout([1, 1, 1], [1, 1, _LANES], [warps, 1, 1], [2, 1, 0])
    return gl.SliceLayout(0, whole)


@gluon.constexpr_function
def tokens_at_once(D):
    """Tokens of which the threads of a warp have all dimensions at once."""
    return _LANES * _WIDTH // D


@gluon.constexpr_function
def token_layout(D, warps):
    """Query heads by tokens [G, warps, TILE / warps, D]: each warp its own tokens, a thread the
    same dimensions of every head."""
    at_once = tokens_at_once(D)
    threads = [1, 1, at_once, _LANES // at_once]
    return gl.BlockedLayout([1, 1, 1, _WIDTH], threads, [1, warps, 1, 1], [3, 2, 1, 0])


@gluon.constexpr_function
def merge_layout(D, warps):
    """What the warps have of every head [G, warps, D]: a thread all of a dimension or two."""
    by_dim = min(warps, D // _LANES)
    return gl.BlockedLayout([1, warps, 1], [1, 1, _LANES], [warps // by_dim, 1, by_dim], [2, 1, 0])


@gluon.constexpr_function
def combine_layout(share, warps):
    """Parts of a context [PARTS, G, share]: each warp some dimensions, its threads the parts."""
    dims = max(1, share // warps)
    threads = [_LANES // dims, 1, dims]
    return gl.BlockedLayout([1, 1, 1], threads, [1, 1, warps], [2, 0, 1])
