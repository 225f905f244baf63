"""Llama 2 and 3: RMS norms, rotary positions, shared heads of keys, a gated feed-forward layer.

Families that differ from Llama in little read their config.json, and name their weights, by what
is here.
"""

from __future__ import annotations

from dataclasses import replace

from engine.models.family import Family
from engine.models.fields import Fields
from engine.models.rotary import Llama3, Rotary, read_rotary
from engine.models.spec import DecoderSpec, split_heads
from engine.models.weights import WeightNames

LLAMA_NAMES = WeightNames(
    outside={"token_embedding": "embed_tokens", "final_norm": "norm"},
    block="layers.{}.",
    inside={
        "attention_norm": ("input_layernorm",),
        "attention_in": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "query_norm": ("self_attn.q_norm",),
        "key_norm": ("self_attn.k_norm",),
        "attention_out": ("self_attn.o_proj",),
        "feed_forward_norm": ("post_attention_layernorm",),
        "feed_forward_in": ("mlp.gate_proj", "mlp.up_proj"),
        "feed_forward_out": ("mlp.down_proj",),
    },
    prefix="model.",
    buffers=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",  # of early checkpoints
)


def llama3(
    *,
    vocab_size: int = 128256,
    max_positions: int = 131072,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_size: int,
    inner_size: int,
    stretch: float,
    tied_head: bool,
    eos_token_ids: tuple[int, ...] = (128001,),
) -> DecoderSpec:
    """The spec of a Llama 3.1 or 3.2, whose long waves are stretched by `stretch`."""
    return DecoderSpec(
        family="llama",
        vocab_size=vocab_size,
        max_positions=max_positions,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=split_heads(hidden_size, num_heads),
        hidden_size=hidden_size,
        inner_size=inner_size,
        norm="rms",
        norm_epsilon=1e-5,
        rotary=Rotary(500_000.0, Llama3(stretch, 1.0, 4.0, original_positions=8192)),
        activation="silu",
        is_gated=True,
        tied_head=tied_head,
        eos_token_ids=eos_token_ids,
        dtype="bfloat16",
    )


def read_like_llama(
    fields: Fields,
    family: str,
    *,
    vocab_size: int,
    inner_size: int,
    num_kv_heads: int | None,
    head_dim: int | None = None,
    max_positions: int,
    eos_token_id: int | None,
) -> DecoderSpec:
    """The spec of a config.json with the fields of Llama's, without any bias.

    Parameters
    ----------
    fields, family
        The config.json, and the model_type that it has.
    vocab_size, inner_size, num_kv_heads, head_dim, max_positions, eos_token_id
        Where it says nothing. None: as many heads of keys as of queries, heads as wide together as
        the residual stream, no id.
    """
    vocab_size = fields.integer("vocab_size", vocab_size)
    hidden_size = fields.integer("hidden_size", 4096)
    num_heads = fields.integer("num_attention_heads", 32)
    num_kv_heads = fields.integer_or_none("num_key_value_heads", num_kv_heads)
    head_dim = fields.integer_or_none("head_dim", head_dim)
    max_positions = fields.integer("max_position_embeddings", max_positions)
    return DecoderSpec(
        family=family,
        vocab_size=vocab_size,
        max_positions=max_positions,
        num_layers=fields.integer("num_hidden_layers", 32),
        num_heads=num_heads,
        num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
        head_dim=split_heads(hidden_size, num_heads) if head_dim is None else head_dim,
        hidden_size=hidden_size,
        inner_size=fields.integer("intermediate_size", inner_size),
        norm="rms",
        norm_epsilon=fields.number("rms_norm_eps", 1e-6),
        rotary=read_rotary(fields, max_positions, default_theta=10_000.0),
        activation=fields.text("hidden_act", "silu"),
        is_gated=True,
        tied_head=fields.flag("tie_word_embeddings", False),
        eos_token_ids=fields.eos_token_ids(vocab_size, eos_token_id),
        dtype=fields.dtype(),
    )


def _read(fields: Fields) -> DecoderSpec:
    spec = read_like_llama(
        fields,
        "llama",
        vocab_size=32000,
        inner_size=11008,
        num_kv_heads=None,
        max_positions=2048,
        eos_token_id=2,
    )
    has_attention_bias = fields.flag("attention_bias", False)
    return replace(
        spec,
        attention_in_bias=has_attention_bias,
        attention_out_bias=has_attention_bias,
        feed_forward_bias=fields.flag("mlp_bias", False),
    )


LLAMA = Family("Llama", _read, LLAMA_NAMES)
