"""Gemma 3: a Llama most of whose layers are local, with norms on both sides of every part.

Local layers attend to a window and have rotary positions of their own. Checkpoints store the
weights of norms less one, and embeddings are scaled before the first block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.errors import ModelError
from engine.models.family import Family
from engine.models.fields import Fields
from engine.models.llama import LLAMA_NAMES
from engine.models.rotary import Rotary, read_rotary
from engine.models.spec import DecoderSpec

_NAMES = replace(
    LLAMA_NAMES,
    inside={
        **LLAMA_NAMES.inside,
        "attention_out_norm": ("post_attention_layernorm",),
        "feed_forward_norm": ("pre_feedforward_layernorm",),
        "feed_forward_out_norm": ("post_feedforward_layernorm",),
    },
    norm_offset=1.0,
)
_GLOBAL_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


def gemma3(
    *,
    vocab_size: int = 262144,
    max_positions: int = 32768,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int = 256,
    hidden_size: int,
    inner_size: int,
    sliding_window: int = 512,
    local_layers_each: int = 5,
    eos_token_ids: tuple[int, ...] = (1, 106),
) -> DecoderSpec:
    """The spec of a Gemma 3, with `local_layers_each` local layers before each global one."""
    each = local_layers_each + 1
    return DecoderSpec(
        family="gemma3_text",
        vocab_size=vocab_size,
        max_positions=max_positions,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=hidden_size,
        inner_size=inner_size,
        norm="rms",
        norm_epsilon=1e-6,
        rotary=Rotary(_GLOBAL_THETA),
        local_rotary=Rotary(_LOCAL_THETA),
        qk_norm=True,
        output_norms=True,
        scaled_embedding=True,
        activation="gelu_pytorch_tanh",
        is_gated=True,
        tied_head=True,
        eos_token_ids=eos_token_ids,
        query_scalar=head_dim,
        sliding_window=sliding_window,
        global_layers=range(each - 1, num_layers, each),
        dtype="bfloat16",
    )


def _read(fields: Fields) -> DecoderSpec:
    _refuse_other_scores(fields)
    vocab_size = fields.integer("vocab_size", 262208)
    num_layers = fields.integer("num_hidden_layers", 26)
    each = fields.integer("sliding_window_pattern", 6)
    if each < 1:
        raise ModelError(f"sliding_window_pattern is {each}; it must be at least 1.")
    max_positions = fields.integer("max_position_embeddings", 131072)
    has_bias = fields.flag("attention_bias", False)
    spec = gemma3(
        vocab_size=vocab_size,
        max_positions=max_positions,
        num_layers=num_layers,
        num_heads=fields.integer("num_attention_heads", 8),
        num_kv_heads=fields.integer("num_key_value_heads", 4),
        head_dim=fields.integer("head_dim", 256),
        hidden_size=fields.integer("hidden_size", 2304),
        inner_size=fields.integer("intermediate_size", 9216),
        eos_token_ids=fields.eos_token_ids(vocab_size, 1),
    )
    return replace(
        spec,
        norm_epsilon=fields.number("rms_norm_eps", 1e-6),
        rotary=_rotary(fields, "full_attention", max_positions),
        local_rotary=_rotary(fields, "sliding_attention", max_positions),
        activation=fields.text("hidden_activation", "gelu_pytorch_tanh"),
        attention_in_bias=has_bias,
        attention_out_bias=has_bias,
        tied_head=fields.flag("tie_word_embeddings", True),
        query_scalar=fields.positive("query_pre_attn_scalar", 256),
        sliding_window=fields.integer_or_none("sliding_window", 4096),
        global_layers=fields.global_layers(num_layers, range(each - 1, num_layers, each)),
        dtype=fields.dtype(),
    )


def _refuse_other_scores(fields: Fields) -> None:
    """Refuse what Gemma 3 was never trained with, though its config.json can say it."""
    for name in _CAPS:
        if fields.get(name) is not None:
            raise ModelError(
                f"{name} is {fields.get(name)!r}; this engine caps no scores, so it must be null."
            )
    if fields.get("use_bidirectional_attention"):
        raise ModelError(
            "use_bidirectional_attention is set; this engine attends to what came before, so it "
            "must be false."
        )


def _rotary(fields: Fields, kind: str, max_positions: int) -> Rotary:
    """The rotary settings of layers of a kind.

    They stand in rope_parameters under the kind; in older files beside each other, as rope_theta
    with rope_scaling for global layers, and as rope_local_base_freq for local ones.
    """
    is_global = kind == "full_attention"
    name, theta = (
        ("rope_theta", _GLOBAL_THETA) if is_global else ("rope_local_base_freq", _LOCAL_THETA)
    )
    settings = {"rope_theta": fields.get(name, theta)}
    by_kind = fields.nested("rope_parameters")
    settings |= {} if by_kind is None else _object(by_kind, kind)
    settings |= _object(fields, "rope_scaling") if is_global else {}
    return read_rotary(Fields({"rope_parameters": settings}), max_positions, theta)


def _object(fields: Fields, name: str) -> dict[str, Any]:
    """The object under `name`; an empty one where there is none."""
    return {} if fields.nested(name) is None else dict(fields.get(name))


GEMMA3 = Family("Gemma 3", _read, _NAMES)
