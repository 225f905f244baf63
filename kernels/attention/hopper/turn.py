# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Heads of queries and keys, normed and turned as they are read, in Gluon.

The same as `kernels.attention.decode_append.load_turned`, with the dimensions of a head along the
first axis.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def load_turn(turns, position, dim, D: gl.constexpr):
    """Cosines and signed sines of `position` for the dimensions `dim` of a head."""
    pair = turns + position * D + dim % (D // 2)
    sines = gl.load(pair + D // 2)
    return gl.load(pair), gl.where(dim < D // 2, -sines, sines)


@gluon.jit
def load_turned(
    heads, head_norm, norms, dim, mask, cosines, sines, D: gl.constexpr, EPSILON: gl.constexpr
):  # fmt: skip
    """The dimensions `dim` of heads that begin at `heads`, float32.

    The weights of their norm begin `norms` behind `head_norm`.
    """
    swapped_dim = (dim + D // 2) % D
    values = gl.load(heads + dim, mask=mask, other=0.0).to(gl.float32)
    swapped = gl.load(heads + swapped_dim, mask=mask, other=0.0).to(gl.float32)
    if head_norm is not None:
        weights = gl.load(head_norm + norms + dim, mask=mask, other=0.0).to(gl.float32)
        others = gl.load(head_norm + norms + swapped_dim, mask=mask, other=0.0).to(gl.float32)
        square = gl.sum(values * values, 0) / D
        if len(values.shape) == 2:
            rstd = gl.rsqrt(square + EPSILON)[None, :]
        else:
            rstd = gl.rsqrt(square + EPSILON)
        values = values * rstd * weights
        swapped = swapped * rstd * others
    return values * cosines + swapped * sines
