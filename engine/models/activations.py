"""The feed-forward activations that a config.json may name, by the names transformers gives them.

Each is elementwise: a float tensor of any shape and dtype in, the same shape and dtype out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import ModelError
from kernels.linear.epilogue import GELU, SILU

Activation = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, computed in float32 whatever the dtype of x."""
    return F.gelu(x, approximate="tanh")


def gelu_clipped(x: Tensor) -> Tensor:
    """GELU clipped to -10..10, for quantized training."""
    return F.gelu(x).clamp(-10.0, 10.0)


def quick_gelu(x: Tensor) -> Tensor:
    """GELU approximated by a sigmoid."""
    return x * torch.sigmoid(1.702 * x)


def laplace(x: Tensor) -> Tensor:
    """Distribution function of a normal variable of mean sqrt(1/2), as MEGA uses it."""
    mean, deviation = 0.707107, 0.282095
    return 0.5 * (1.0 + torch.erf((x - mean) / (deviation * math.sqrt(2.0))))


def relu_squared(x: Tensor) -> Tensor:
    """Square of the positive part."""
    return F.relu(x).square()


def sqrt_softplus(x: Tensor) -> Tensor:
    """Square root of log(1 + exp(x))."""
    return F.softplus(x).sqrt()


def linear(x: Tensor) -> Tensor:
    """No activation."""
    return x


# transformers spells the tanh approximation of GELU in five ways, which differ in rounding only.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_10": gelu_clipped,
    "gelu_accurate": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_new": gelu_tanh,
    "gelu_python": F.gelu,
    "gelu_python_tanh": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "hardswish": F.hardswish,
    "laplace": laplace,
    "leaky_relu": F.leaky_relu,
    "linear": linear,
    "mish": F.mish,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu2": relu_squared,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sqrtsoftplus": sqrt_softplus,
    "swish": F.silu,
    "tanh": torch.tanh,
}

KERNEL_ACTIVATIONS: dict[Activation, int] = {gelu_tanh: GELU, F.silu: SILU}
"""Those that kernels have, as `kernels.linear.epilogue` calls them."""

_WITH_LEARNED_PARAMETERS = ("prelu", "xielu")


def activation_function(name: str) -> Activation:
    """The activation called `name`.

    Raises
    ------
    ModelError
        The name is not in `ACTIVATIONS`.
    """
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]
    known = ", ".join(ACTIVATIONS)
    if name in _WITH_LEARNED_PARAMETERS:
        raise ModelError(
            f"The activation function {name!r} has learned parameters, which this engine does not "
            f"run; it runs {known}."
        )
    raise ModelError(f"The activation function {name!r} is not known; it must be one of {known}.")
