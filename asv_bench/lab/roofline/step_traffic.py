"""The bytes that each kernel of a decode step must move, from the model's sizes alone.

Bytes that only an implementation needs, such as partial products, are not counted. The weights and
cached tokens of all kernels together are `asv_bench.memory.floor.step_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from asv_bench.memory.floor import ModelConfig, element_bytes, model_parts


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
    parts = model_parts(config)
    norm = 2 if parts["norm"] == "layer" else 1
    size, rows, layers = element_bytes(dtype), batch_size, config.num_layers
    hidden, inner = config.hidden_size, config.inner_size
    query = config.num_heads * config.head_dim
    key_value = 2 * config.num_kv_heads * config.head_dim

    def linear(
        n: int, k: int, *, bias: bool, has_norm: bool, adds_residual: bool, gates: int = 1
    ) -> RoleTraffic:
        weights = gates * n * (k + bias) + (norm * k if has_norm else 0)
        activations = rows * (k + n + (n if adds_residual else 0))
        return RoleTraffic(size * layers * weights, 0.0, size * layers * activations)

    cached = size * layers * rows * context * key_value
    head_norms = size * layers * parts["qk_norm"] * 2 * config.head_dim
    project = linear(
        query + key_value,
        hidden,
        bias=parts["attention_in_bias"],
        has_norm=True,
        adds_residual=False,
    )
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
    embedded = 3 if parts["rotary"] is None else 2
    feed_forward_bias = parts["feed_forward_bias"]
    return {
        Role.EMBED: RoleTraffic(0.0, 0.0, size * rows * embedded * hidden),
        **attention,
        Role.ATTENTION_OUT: linear(
            hidden, query, bias=parts["attention_out_bias"], has_norm=False, adds_residual=True
        ),
        Role.FEED_FORWARD_IN: linear(
            inner,
            hidden,
            bias=feed_forward_bias,
            has_norm=True,
            adds_residual=False,
            gates=2 if parts["is_gated"] else 1,
        ),
        Role.FEED_FORWARD_OUT: linear(
            hidden, inner, bias=feed_forward_bias, has_norm=False, adds_residual=True
        ),
        Role.HEAD: RoleTraffic(
            size * (config.vocab_size * hidden + norm * hidden), 0.0, size * rows * hidden
        ),
        Role.PICK: RoleTraffic(0.0, 0.0, rows * _ROW_STATE_BYTES),
    }
