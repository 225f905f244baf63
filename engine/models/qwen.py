"""Qwen2, a Llama whose queries, keys and values have biases, and Qwen3, which norms their heads."""

from __future__ import annotations

from dataclasses import replace

from engine.models.family import Family
from engine.models.fields import Fields
from engine.models.llama import LLAMA_NAMES, read_like_llama
from engine.models.rotary import Rotary
from engine.models.spec import DecoderSpec


def qwen3(
    *,
    vocab_size: int = 151936,
    max_positions: int = 40960,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int = 128,
    hidden_size: int,
    inner_size: int,
    tied_head: bool,
    eos_token_ids: tuple[int, ...] = (151643, 151645),
) -> DecoderSpec:
    """The spec of a Qwen3."""
    return DecoderSpec(
        family="qwen3",
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
        rotary=Rotary(1_000_000.0),
        qk_norm=True,
        activation="silu",
        is_gated=True,
        tied_head=tied_head,
        eos_token_ids=eos_token_ids,
        dtype="bfloat16",
    )


def _read_qwen2(fields: Fields) -> DecoderSpec:
    spec = _read(fields, "qwen2", head_dim=None)
    return replace(spec, attention_in_bias=True)


def _read_qwen3(fields: Fields) -> DecoderSpec:
    spec = _read(fields, "qwen3", head_dim=128)
    has_bias = fields.flag("attention_bias", False)
    return replace(spec, qk_norm=True, attention_in_bias=has_bias, attention_out_bias=has_bias)


def _read(fields: Fields, family: str, *, head_dim: int | None) -> DecoderSpec:
    spec = read_like_llama(
        fields,
        family,
        vocab_size=151936,
        inner_size=22016,
        num_kv_heads=32,
        head_dim=head_dim,
        max_positions=32768,
        eos_token_id=None,
    )
    is_used = fields.flag("use_sliding_window", False)
    first = min(max(fields.integer("max_window_layers", 28), 0), spec.num_layers)
    global_layers = fields.global_layers(spec.num_layers, range(first))
    has_window = is_used and len(global_layers) < spec.num_layers
    return replace(
        spec,
        sliding_window=fields.integer_or_none("sliding_window", 4096) if has_window else None,
        global_layers=global_layers if has_window else (),
    )


QWEN2 = Family("Qwen2", _read_qwen2, LLAMA_NAMES)
QWEN3 = Family("Qwen3", _read_qwen3, LLAMA_NAMES)
