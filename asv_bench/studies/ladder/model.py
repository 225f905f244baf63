"""The GPT-2 of rungs 0 to 6: a frozen copy in torch, with the seeded weights of `random:NAME`.

T tokens of all sequences in a row, E hidden size, H heads, D head dimension, V vocabulary.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from asv_bench.errors import Refused

PREFIX = "random:"
EPSILON = 1e-5
_HEAD_ROWS = 64  # cuBLAS has fast kernels only for outputs whose rows are aligned.

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q, k, v), [T, H, D] each -> [T, H, D]: stores k and v and attends with q."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a GPT-2."""

    vocab_size: int = 50257
    max_positions: int = 1024
    num_layers: int = 12
    num_heads: int = 12
    hidden_size: int = 768

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_heads

    def parameter_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all parameters; linear weights are [out, in]."""
        embed, inner = self.hidden_size, 4 * self.hidden_size
        yield "wte.weight", (self.vocab_size, embed)
        yield "wpe.weight", (self.max_positions, embed)
        for layer in range(self.num_layers):
            for name, shape in (
                ("attn.c_attn", (3 * embed, embed)),
                ("attn.c_proj", (embed, embed)),
                ("mlp.c_fc", (inner, embed)),
                ("mlp.c_proj", (embed, inner)),
            ):
                yield f"h.{layer}.{name}.weight", shape
                yield f"h.{layer}.{name}.bias", shape[:1]
            for name in ("ln_1", "ln_2"):
                yield from _norm_shapes(f"h.{layer}.{name}", embed)
        yield from _norm_shapes("ln_f", embed)


SIZES = {
    "gpt2-tiny": ModelSizes(1024, num_layers=2, num_heads=4, hidden_size=128),
    "gpt2": ModelSizes(),
    "gpt2-medium": ModelSizes(num_layers=24, num_heads=16, hidden_size=1024),
    "gpt2-large": ModelSizes(num_layers=36, num_heads=20, hidden_size=1280),
    "gpt2-xl": ModelSizes(num_layers=48, num_heads=25, hidden_size=1600),
}


class GPT2:
    """GPT-2 for inference, on one device and in one float dtype.

    Parameters
    ----------
    sizes
        Its sizes.
    weights
        By the names of `ModelSizes.parameter_shapes`.
    """

    def __init__(self, sizes: ModelSizes, weights: dict[str, Tensor]) -> None:
        self.sizes = sizes
        self.weights = weights
        embedding = weights["wte.weight"]
        self.device, self.dtype = embedding.device, embedding.dtype
        self._head = F.pad(embedding, (0, 0, 0, -sizes.vocab_size % _HEAD_ROWS))

    def in_float32(self) -> GPT2:
        """The same weights in full precision."""
        return GPT2(self.sizes, {name: weight.float() for name, weight in self.weights.items()})

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [T, E] after the last norm, of int32 or int64 tokens and positions [T]."""
        weights, sizes = self.weights, self.sizes
        x = F.embedding(token_ids, weights["wte.weight"])
        x = x + F.embedding(positions, weights["wpe.weight"])
        for layer in range(sizes.num_layers):
            block = f"h.{layer}."
            qkv = self._linear(block + "attn.c_attn", self._norm(block + "ln_1", x))
            q, k, v = qkv.view(-1, 3, sizes.num_heads, sizes.head_dim).unbind(1)
            attended = attend(layer, q, k, v).reshape(-1, sizes.hidden_size)
            x = x + self._linear(block + "attn.c_proj", attended)
            inner = self._linear(block + "mlp.c_fc", self._norm(block + "ln_2", x))
            x = x + self._linear(block + "mlp.c_proj", F.gelu(inner, approximate="tanh"))
        return self._norm("ln_f", x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [N, V] after hidden states [N, E]."""
        return F.linear(hidden, self._head)[:, : self.sizes.vocab_size]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[name + ".weight"], self.weights[name + ".bias"]
        return F.layer_norm(x, weight.shape, weight, bias, EPSILON)


def seeded_model(name: str, *, device: str, dtype: str, seed: int) -> GPT2:
    """The model `random:NAME`, with the weights that the engine gives it.

    Parameters
    ----------
    device
        Of torch; "auto" is a GPU where there is one.
    dtype
        A float type of torch; "auto" is float32 on the CPU and float16 elsewhere.

    Raises
    ------
    Refused
        If there is no built-in model of that name.
    """
    sizes = SIZES.get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
    if sizes is None:
        known = ", ".join(PREFIX + size for size in SIZES)
        raise Refused(f"a rung runs the built-in models ({known}), not {name!r}.")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "float16"
    kind: torch.dtype = getattr(torch, dtype)
    drawn = ((key, _draw(key, shape, seed)) for key, shape in sizes.parameter_shapes())
    return GPT2(sizes, {key: numbers.to(device, kind) for key, numbers in drawn})


def _norm_shapes(name: str, embed: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (embed,)
    yield f"{name}.bias", (embed,)


def _draw(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Uniform numbers in float32 that depend on seed, name and shape alone."""
    entropy = np.random.SeedSequence([seed % 2**64, zlib.crc32(name.encode())])
    numbers = np.random.Generator(np.random.SFC64(entropy)).random(shape, dtype=np.float32)
    center, deviation = _distribution(name, shape)
    half_width = deviation * math.sqrt(3.0)
    numbers *= np.float32(2.0 * half_width)
    numbers += np.float32(center - half_width)
    return torch.from_numpy(numbers)


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a parameter."""
    if name == "ln_f.weight":
        return 8.0, 0.1
    if len(shape) == 1:
        return (1.0 if name.endswith(("ln_1.weight", "ln_2.weight")) else 0.0), 0.1
    gains = {"wte.weight": 0.5, "attn.c_attn.weight": 2.0, "mlp.c_proj.weight": 1.5}
    gain = next((gain for end, gain in gains.items() if name.endswith(end)), 1.0)
    return 0.0, gain * shape[-1] ** -0.5
