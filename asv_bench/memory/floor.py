"""The floor of a decode step: the bytes that each of its kernels must move, from the sizes alone.

Bytes that only an implementation needs, such as partial products, are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from asv_bench.errors import Refused

if TYPE_CHECKING:
    from engine.models.spec import DecoderSpec

BYTES_PER_ELEMENT = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class GPT2Shape:
    """Sizes of the GPT-2 that the anchors were measured on (124M parameters), and its parts.

    Names are those of `engine.models.spec.DecoderSpec`. Engines of older commits know GPT-2 alone,
    and their configs do not say what layers are made of.
    """

    vocab_size: int = 50257
    num_layers: int = 12
    num_heads: int = 12
    num_kv_heads: int = 12
    head_dim: int = 64
    hidden_size: int = 768
    inner_size: int = 3072
    rotary: None = None
    norm: str = "layer"
    is_gated: bool = False
    qk_norm: bool = False
    attention_in_bias: bool = True
    attention_out_bias: bool = True
    feed_forward_bias: bool = True


_SIZES = (
    *("vocab_size", "num_layers", "num_heads", "num_kv_heads"),
    *("head_dim", "hidden_size", "inner_size"),
)
ModelConfig: TypeAlias = "DecoderSpec | GPT2Shape"
"""What decides how many bytes a step reads."""


class Role(StrEnum):
    """What a kernel of a step does, in the order in which a layer needs them.

    Where one kernel does the second and the third, as for a single row, it is `WHOLE_ATTENTION`.
    """

    EMBED = "embedding"
    ATTENTION_IN = "attention in"
    ATTENTION = "attention, append"
    WHOLE_ATTENTION = "attention in, append"
    ATTENTION_OUT = "attention out"
    FEED_FORWARD_IN = "feed-forward in"
    FEED_FORWARD_OUT = "feed-forward out"
    HEAD = "head"
    PICK = "pick tokens"


_ROW_STATE_BYTES = 4 * 4  # last token, position, remaining budget, ring slot: int32 each


@dataclass(frozen=True, slots=True)
class RoleTraffic:
    """Bytes of one role in one step, all layers: weights, cached K and V, and everything else."""

    weights: float
    kv: float = 0.0
    activations: float = 0.0

    @property
    def total(self) -> float:
        """All bytes."""
        return self.weights + self.kv + self.activations


def step_traffic(
    config: ModelConfig,  # the model's sizes
    *,
    dtype: str,  # "float32", "float16" or "bfloat16", of weights, activations and cache alike
    batch_size: int,  # sequences in the step
    # Mean tokens that a sequence attends to, the new one included, which is written.
    context: float,
    # One kernel makes queries, keys and values and attends to them, so that they are never in
    # memory by themselves.
    joins_attention: bool = False,
) -> dict[Role, RoleTraffic]:
    """Bytes that each role must move in a decode step of a decoder, in the order of `Role`."""

    def has(part: str) -> Any:
        return getattr(config, part, getattr(GPT2Shape, part))

    norm = 2 if has("norm") == "layer" else 1
    size, rows, layers = element_bytes(dtype), batch_size, config.num_layers
    hidden, inner = config.hidden_size, config.inner_size
    query = config.num_heads * config.head_dim
    key_value = 2 * config.num_kv_heads * config.head_dim

    def linear(n: int, k: int, bias: bool, *, norms: int = 0, gates: int = 1) -> RoleTraffic:
        """A map from k to n: behind a norm, or else added to the residual stream."""
        weights = gates * n * (k + bias) + norms * k
        activations = rows * (k + (n if norms else 2 * n))
        return RoleTraffic(size * layers * weights, 0.0, size * layers * activations)

    cached = size * layers * rows * context * key_value
    head_norms = size * layers * has("qk_norm") * 2 * config.head_dim
    project = linear(query + key_value, hidden, has("attention_in_bias"), norms=norm)
    if joins_attention:
        activations = size * layers * rows * (hidden + query)
        weights = project.weights + head_norms
        attention = {Role.WHOLE_ATTENTION: RoleTraffic(weights, cached, activations)}
    else:
        activations = size * layers * rows * (2 * query + key_value)
        attention = {
            Role.ATTENTION_IN: project,
            Role.ATTENTION: RoleTraffic(head_norms, cached, activations),
        }
    # Of each embedding, also that of learned positions, a row; and one of the residual stream.
    embedded = 3 if has("rotary") is None else 2
    bias, gates = has("feed_forward_bias"), 2 if has("is_gated") else 1
    head = config.vocab_size * hidden + norm * hidden
    return {
        Role.EMBED: RoleTraffic(0.0, 0.0, size * rows * embedded * hidden),
        **attention,
        Role.ATTENTION_OUT: linear(hidden, query, has("attention_out_bias")),
        Role.FEED_FORWARD_IN: linear(inner, hidden, bias, norms=norm, gates=gates),
        Role.FEED_FORWARD_OUT: linear(hidden, inner, bias),
        Role.HEAD: RoleTraffic(size * head, 0.0, size * rows * hidden),
        Role.PICK: RoleTraffic(0.0, 0.0, rows * _ROW_STATE_BYTES),
    }


def step_bytes(config: ModelConfig, *, dtype: str, batch_size: int, mean_context: float) -> float:
    """Bytes that one decode step must read: the weights once, and each sequence's K and V.

    Arguments are as those of `step_traffic`. The head is read whole. Of the embeddings only one row
    a sequence is read, which is left out, and a tied head is not counted twice.
    """
    traffic = step_traffic(config, dtype=dtype, batch_size=batch_size, context=mean_context)
    return sum(one.weights + one.kv for one in traffic.values())


def element_bytes(dtype: str) -> int:
    """Bytes of a number of that type. Raises Refused if it is none of the three."""
    if dtype not in BYTES_PER_ELEMENT:
        raise Refused(f"dtype must be one of {', '.join(BYTES_PER_ELEMENT)}, not {dtype!r}.")
    return BYTES_PER_ELEMENT[dtype]


def describe(config: ModelConfig) -> dict[str, Any]:
    """The sizes as JSON-ready values."""
    return {name: getattr(config, name) for name in _SIZES}
