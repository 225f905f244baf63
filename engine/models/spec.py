"""What a decoder-only model is: its sizes and which of the known parts it is made of.

Everything that runs a model is built from its spec: weights, plain layers and fused steps.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from engine.errors import ModelError
from engine.models.activations import activation_function
from engine.models.quantization import Quantization
from engine.models.rotary import Rotary

_LARGEST_SIZE = 2**31 - 1
"""Of any size that a config may claim: places in a tensor's dimension are counted in 32 bits."""

_SIZES = (
    "vocab_size",
    "max_positions",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "hidden_size",
    "inner_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """Sizes and parts of one decoder.

    Attributes
    ----------
    family
        The model_type in its config.json, a key of `engine.models.families.FAMILIES`.
    vocab_size, num_layers, hidden_size, inner_size
        Rows of the token embedding, blocks, width of the residual stream, width between the two
        maps of the feed-forward layer.
    max_positions
        Tokens of the longest sequence that the model was made for.
    num_heads, num_kv_heads, head_dim
        Heads of queries, heads of keys and of values, and the width of each.
    norm, norm_epsilon
        "layer" subtracts the mean and adds a bias, "rms" does neither.
    rotary
        How queries and keys are turned by their positions; None adds a learned embedding of the
        position to that of the token.
    local_rotary
        How layers do it that are not in `global_layers`; None: as these.
    qk_norm
        Every head of the queries and the keys passes an RMS norm before it is turned.
    output_norms
        What attention and the feed-forward layer make passes a norm, too, before it is added to the
        residual stream.
    scaled_embedding
        Embeddings of tokens are multiplied by the root of `hidden_size`; a tied head is not.
    activation
        A name of `engine.models.activations`.
    is_gated
        The feed-forward layer multiplies the activation of one map with a second map of the same
        input, in place of the activation alone.
    attention_in_bias, attention_out_bias, feed_forward_bias
        Whether these linear maps have biases.
    tied_head
        The output head is the token embedding.
    eos_token_ids
        Ids that end a sequence; those outside the vocabulary are left out.
    scale_by_head_dim, scale_by_layer, query_scalar
        Parts of the attention scale, see `attention_scale`.
    sliding_window
        Tokens that a layer attends to at most, its own among them; None: all.
    global_layers
        Layers (0-based) that attend to all tokens where the others, the local ones, have a window.
    head_tokens
        Tokens that the head scores, of a rank's part of a model; None: the vocabulary.
    dtype
        The type the checkpoint says it was written in: float64, float32, float16 or bfloat16.
    quantization
        How a checkpoint stores the linear maps of blocks in eight bits; None: in no such way.

    Raises
    ------
    ModelError
        A size makes no sense, or does not fit another one.
    """

    family: str
    vocab_size: int
    max_positions: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    inner_size: int
    norm: Literal["layer", "rms"]
    norm_epsilon: float
    activation: str
    rotary: Rotary | None = None
    local_rotary: Rotary | None = None
    qk_norm: bool = False
    output_norms: bool = False
    scaled_embedding: bool = False
    is_gated: bool = False
    attention_in_bias: bool = False
    attention_out_bias: bool = False
    feed_forward_bias: bool = False
    tied_head: bool = False
    eos_token_ids: tuple[int, ...] = ()
    scale_by_head_dim: bool = True
    scale_by_layer: bool = False
    query_scalar: float | None = None
    sliding_window: int | None = None
    global_layers: Collection[int] = ()
    head_tokens: int | None = None
    dtype: str | None = None
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        for name in _SIZES:
            size = getattr(self, name)
            if size < 1:
                raise ModelError(f"{name} is {_shown(size)}; it must be at least 1.")
            if size > _LARGEST_SIZE:
                raise ModelError(f"{name} is {_shown(size)}; it must be at most {_LARGEST_SIZE}.")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} heads of keys and "
                "values; num_heads must be a multiple of num_kv_heads."
            )
        if self.rotary is not None and self.head_dim % 2:
            raise ModelError(
                f"head_dim is {self.head_dim}; rotary positions turn pairs, so it must be even."
            )
        if self.qk_norm and self.rotary is None:
            raise ModelError("Heads of queries and keys are normed only before they are turned.")
        if not (math.isfinite(self.norm_epsilon) and self.norm_epsilon > 0):
            raise ModelError(
                f"The epsilon of the norms is {self.norm_epsilon}; it must be a positive number."
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ModelError(
                f"sliding_window is {_shown(self.sliding_window)}; it must be at least 1, or null."
            )
        activation_function(self.activation)

    @property
    def group(self) -> int:
        """Query heads that share a head of keys and values."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_scored(self) -> int:
        """Tokens that the head scores."""
        return self.head_tokens or self.vocab_size

    @property
    def is_plain(self) -> bool:
        """Every layer attends to all tokens, and all that is added up is added up as it is made."""
        has_local_layers = self.sliding_window is not None or self.local_rotary is not None
        return not (has_local_layers or self.output_norms or self.scaled_embedding)

    def require_plain(self, what: str) -> None:
        """Raise ModelError where the model is not plain, of which `what` is to be made."""
        if not self.is_plain:
            raise ModelError(
                f"The model, a {self.family}, has local layers, norms behind its maps or scaled "
                f"embeddings; {what} can be made of models without these only."
            )

    def window(self, layer: int) -> int | None:
        """Tokens that `layer` (0-based) attends to at most, its own among them; None: all."""
        return None if layer in self.global_layers else self.sliding_window

    def up_to(self, tokens: int | None) -> DecoderSpec:
        """The same for sequences of so many tokens, or None for `max_positions`, at most.

        It has no window where the whole of such a sequence is within it.
        """
        longest = min(tokens or self.max_positions, self.max_positions)
        if self.sliding_window is None or self.sliding_window < longest:
            return self
        return replace(self, sliding_window=None)

    def attention_scale(self, layer: int) -> float:
        """Factor on the scores q.k of `layer` (0-based) before the softmax.

        One over the root of `query_scalar`, or else of `head_dim`.
        """
        scale = (self.query_scalar or self.head_dim) ** -0.5 if self.scale_by_head_dim else 1.0
        return scale / (layer + 1) if self.scale_by_layer else scale


def split_heads(hidden_size: int, num_heads: int) -> int:
    """The width of a head where all heads together are as wide as the residual stream."""
    if num_heads < 1:
        raise ModelError(f"num_heads is {_shown(num_heads)}; it must be at least 1.")
    if hidden_size % num_heads:
        raise ModelError(
            f"The hidden size {_shown(hidden_size)} does not divide into {_shown(num_heads)} "
            "heads; it must be a multiple of the number of heads."
        )
    return hidden_size // num_heads


def _shown(size: int) -> str:
    """A number of which Python may refuse to write all digits."""
    return str(size) if abs(size) < 10**20 else f"a number of {size.bit_length()} bits"
