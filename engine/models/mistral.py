"""Mistral: a Llama whose layers may attend to a window of the last tokens only."""

from __future__ import annotations

from dataclasses import replace

from engine.models.family import Family
from engine.models.fields import Fields
from engine.models.llama import LLAMA_NAMES, read_like_llama
from engine.models.spec import DecoderSpec


def _read(fields: Fields) -> DecoderSpec:
    spec = read_like_llama(
        fields,
        "mistral",
        vocab_size=32000,
        inner_size=14336,
        num_kv_heads=8,
        max_positions=131072,
        eos_token_id=2,
    )
    return replace(spec, sliding_window=fields.integer_or_none("sliding_window", 4096))


MISTRAL = Family("Mistral", _read, LLAMA_NAMES)
