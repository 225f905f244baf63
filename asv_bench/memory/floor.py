"""The floor of a decode step: the bytes it must read, at the bandwidth this machine reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from asv_bench.errors import Refused

BYTES_PER_ELEMENT = {"float32": 4, "float16": 2, "bfloat16": 2}


class ModelConfig(Protocol):
    """The sizes of a decoder that decide how many bytes a step reads."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def inner_size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class GPT2Shape:
    """Sizes of the GPT-2 that the anchors were measured on (124M parameters)."""

    vocab_size: int = 50257
    num_layers: int = 12
    num_heads: int = 12
    num_kv_heads: int = 12
    head_dim: int = 64
    hidden_size: int = 768
    inner_size: int = 3072


_GPT2_PARTS: dict[str, Any] = {
    "rotary": None,
    "norm": "layer",
    "is_gated": False,
    "qk_norm": False,
    "attention_in_bias": True,
    "attention_out_bias": True,
    "feed_forward_bias": True,
}
"""What a config is made of that does not say so: engines of older commits know GPT-2 alone."""


def model_parts(config: ModelConfig) -> dict[str, Any]:
    """What the config's layers are made of, as `engine.models.spec.DecoderSpec` says it."""
    return {name: getattr(config, name, part) for name, part in _GPT2_PARTS.items()}


def weight_elements(config: ModelConfig) -> int:
    """Weights that one decode step reads: every layer, the last norm, the head.

    The head is read whole. Of the embeddings only one row a sequence is read, which is left out,
    and a tied head is not counted twice.
    """
    parts = model_parts(config)
    hidden, inner = config.hidden_size, config.inner_size
    query = config.num_heads * config.head_dim
    attention_in = query + 2 * config.num_kv_heads * config.head_dim
    feed_forward_in = 2 * inner if parts["is_gated"] else inner
    maps = hidden * (attention_in + query + feed_forward_in + inner)
    biases = (
        parts["attention_in_bias"] * attention_in
        + parts["attention_out_bias"] * hidden
        + parts["feed_forward_bias"] * (feed_forward_in + hidden)
    )
    norm = 2 * hidden if parts["norm"] == "layer" else hidden
    per_layer = maps + biases + 2 * norm + parts["qk_norm"] * 2 * config.head_dim
    elements: int = config.num_layers * per_layer + norm + config.vocab_size * hidden
    return elements


def kv_elements_per_token(config: ModelConfig) -> int:
    """Elements of K and V that the cache holds for one token of one sequence, all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim


def step_bytes(config: ModelConfig, *, dtype: str, batch_size: int, mean_context: float) -> float:
    """Bytes that one decode step must read: the weights once, and each sequence's K and V.

    `dtype` is "float32", "float16" or "bfloat16", of weights and cache alike. `mean_context` is how
    many tokens a sequence attends to.
    """
    kv = batch_size * mean_context * kv_elements_per_token(config)
    return element_bytes(dtype) * (weight_elements(config) + kv)


def element_bytes(dtype: str) -> int:
    """Bytes of a number of that type. Raises Refused if it is none of the three."""
    if dtype not in BYTES_PER_ELEMENT:
        raise Refused(f"dtype must be one of {', '.join(BYTES_PER_ELEMENT)}, not {dtype!r}.")
    return BYTES_PER_ELEMENT[dtype]


def floor_ms(bytes_read: float, bytes_per_second: float) -> float:
    """Milliseconds that reading `bytes_read` takes at the measured bandwidth."""
    return 1e3 * bytes_read / bytes_per_second


def fraction_of_floor(floor: float, step: float) -> float:
    """Bytes that the step must read over (time x bandwidth): 1 is the floor, smaller is slower."""
    return floor / step


def describe(config: ModelConfig) -> dict[str, Any]:
    """The sizes as JSON-ready values."""
    return {name: getattr(config, name) for name in GPT2Shape.__slots__}
