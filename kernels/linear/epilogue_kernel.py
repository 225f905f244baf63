# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""`kernels.linear.epilogue` in Triton."""

import triton
import triton.language as tl


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """The activation of every value of x, float32."""
    if ACTIVATION == 1:
        # x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
        u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x / (1.0 + tl.exp(-2.0 * u))
    if ACTIVATION == 2:
        x = x / (1.0 + tl.exp(-x))
    return x


@triton.jit
def gated(mapped, ACTIVATION: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """The activated gate times what it gates, [M, N / 2], of a packed map's `mapped` [M, N]."""
    by_turns = tl.reshape(mapped, (M, N // 16, 2, 8))
    gate, other = tl.split(tl.permute(by_turns, (0, 1, 3, 2)))
    return tl.reshape(activated(gate, ACTIVATION) * other, (M, N // 2))
