"""The config.json of every Llama-like family: understood as transformers does, or refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_checkpoints import TINY

from engine.errors import ModelError
from engine.models.families import FAMILIES, read_config, spec_of
from engine.models.rotary import LinearScaling, Llama3, Rotary, Yarn
from engine.models.spec import DecoderSpec

FAMILY_NAMES = ("llama", "mistral", "qwen2", "qwen3")
CPU = torch.device("cpu")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def _theirs(model_type: str, **options: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **options)


def _spec(model_type: str = "llama", **fields: Any) -> DecoderSpec:
    return spec_of({"model_type": model_type, **TINY, **fields})


def _refusal(values: dict[str, Any]) -> str:
    with pytest.raises(ModelError) as caught:
        spec_of(values)
    return str(caught.value)


@pytest.mark.parametrize("model_type", FAMILY_NAMES)
def test_defaults_are_those_of_transformers(model_type: str) -> None:
    ours, theirs = spec_of({"model_type": model_type}), _theirs(model_type)
    assert ours.family == model_type
    assert (ours.vocab_size, ours.max_positions) == (
        theirs.vocab_size,
        theirs.max_position_embeddings,
    )
    assert ours.num_layers == theirs.num_hidden_layers
    assert (ours.num_heads, ours.num_kv_heads) == (
        theirs.num_attention_heads,
        theirs.num_key_value_heads,
    )
    head_dim = getattr(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    assert (ours.hidden_size, ours.head_dim) == (theirs.hidden_size, head_dim)
    assert (ours.inner_size, ours.activation) == (theirs.intermediate_size, theirs.hidden_act)
    assert (ours.norm, ours.norm_epsilon) == ("rms", theirs.rms_norm_eps)
    assert ours.tied_head == theirs.tie_word_embeddings
    assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
    assert ours.sliding_window == getattr(theirs, "sliding_window", None)
    assert ours.rotary == Rotary(theirs.rope_parameters["rope_theta"])


@pytest.mark.parametrize("model_type", FAMILY_NAMES)
def test_a_config_written_by_transformers_is_read(model_type: str, tmp_path: Path) -> None:
    _theirs(model_type, **TINY, rms_norm_eps=1e-3).save_pretrained(tmp_path)
    spec = read_config(tmp_path)
    assert (spec.vocab_size, spec.max_positions, spec.num_layers) == (211, 320, 3)
    assert (spec.num_heads, spec.num_kv_heads) == (4, 2)
    assert spec.head_dim == (128 if model_type == "qwen3" else 12)
    assert (spec.hidden_size, spec.inner_size, spec.norm_epsilon) == (48, 80, 1e-3)
    assert spec.eos_token_ids == (210,)
    assert spec.qk_norm == (model_type == "qwen3")
    assert spec.attention_in_bias == (model_type == "qwen2")


def test_biases_are_read() -> None:
    spec = _spec(attention_bias=True)
    assert (spec.attention_in_bias, spec.attention_out_bias) == (True, True)
    assert not spec.feed_forward_bias
    assert _spec(mlp_bias=True).feed_forward_bias
    qwen = _spec("qwen2")
    assert (qwen.attention_in_bias, qwen.attention_out_bias) == (True, False)
    assert _spec("qwen3", attention_bias=True).attention_out_bias


@pytest.mark.parametrize("model_type", FAMILY_NAMES)
def test_heads_of_null_are_those_of_the_hidden_size(model_type: str) -> None:
    spec = _spec(model_type, num_key_value_heads=None, head_dim=None)
    assert (spec.num_kv_heads, spec.head_dim) == (4, 12)
    assert _spec(model_type, head_dim=20).head_dim == 20


@pytest.mark.parametrize(
    ("generation", "expected"),
    [(None, (210,)), ({"eos_token_id": [7, 3]}, (3, 7)), ({"eos_token_id": None}, (210,))],
)
def test_end_of_sequence_ids(
    generation: dict[str, Any] | None, expected: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **TINY}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert read_config(tmp_path).eos_token_ids == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Rotary(10_000.0)),
        ({"rope_theta": 5e5}, Rotary(5e5)),
        ({"rope_theta": 5e5, "rope_scaling": None}, Rotary(5e5)),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, Rotary(5e5)),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            Rotary(10_000.0, LinearScaling(2.0)),
        ),
        (
            {"rope_parameters": {"rope_theta": 7e4, "rope_type": "linear", "factor": 2.0}},
            Rotary(7e4, LinearScaling(2.0)),
        ),
        (
            {
                "rope_theta": 5e5,
                "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64},
            },
            Rotary(5e5, Llama3(8.0, 1.0, 4.0, 64)),
        ),
        (
            {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
            Rotary(5e5, Llama3(8.0, 1.0, 4.0, 320)),
        ),
        (
            {"rope_parameters": LLAMA3, "original_max_position_embeddings": 80},
            Rotary(10_000.0, Llama3(8.0, 1.0, 4.0, 80)),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": False}},
            Rotary(10_000.0, Yarn(4.0, 320, 0.1 * math.log(4) + 1, 32.0, 1.0, False)),
        ),
    ],
    ids=str,
)
def test_rotary_settings_in_every_spelling(fields: dict[str, Any], expected: Rotary) -> None:
    assert _spec(**fields).rotary == expected


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rope_type": "linear", "factor": 3.0},
        {**LLAMA3, "original_max_position_embeddings": 64},
        {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 80},
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8, "beta_slow": 2, "truncate": False},
        {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("head_dim", [12, 64, 128])
def test_positions_turn_as_in_transformers(settings: dict[str, Any], head_dim: int) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_theta": 5e5, "rope_type": "default", **settings}
    theirs = _theirs("llama", **TINY, head_dim=head_dim, rope_parameters=parameters)
    cosines, sines = LlamaRotaryEmbedding(theirs)(torch.zeros(1), torch.arange(320)[None])
    rotary = _spec(head_dim=head_dim, rope_parameters=parameters).rotary
    assert rotary is not None
    table = rotary.table(320, head_dim, CPU)
    half = head_dim // 2
    assert table.shape == (320, head_dim)
    torch.testing.assert_close(table[:, :half], cosines[0, :, :half], rtol=0, atol=5e-5)
    torch.testing.assert_close(table[:, half:], sines[0, :, :half], rtol=0, atol=5e-5)


USED = {"sliding_window": 100, "use_sliding_window": True}


@pytest.mark.parametrize(
    ("model_type", "fields", "windows"),
    [
        ("mistral", {"max_position_embeddings": 8192}, [4096] * 3),
        ("mistral", {"sliding_window": None}, [None] * 3),
        ("mistral", {"sliding_window": 100}, [100] * 3),
        ("llama", {"sliding_window": 100}, [None] * 3),
        ("qwen2", {"sliding_window": 100}, [None] * 3),
        ("qwen2", USED, [None] * 3),
        ("qwen2", {**USED, "max_window_layers": 2}, [None, None, 100]),
        (
            "qwen3",
            {**USED, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            [None, 100, None],
        ),
        ("qwen3", {**USED, "layer_types": ["full_attention"] * 3}, [None] * 3),
    ],
    ids=str,
)
def test_sliding_windows(
    model_type: str, fields: dict[str, Any], windows: list[int | None]
) -> None:
    spec = _spec(model_type, **fields)
    assert [spec.window(layer) for layer in range(3)] == windows
    assert spec.sliding_window == max(windows, key=lambda window: window or 0)


def test_a_window_that_holds_the_longest_sequence_is_none() -> None:
    spec = _spec("mistral", sliding_window=100)
    assert spec.up_to(None) == spec.up_to(101) == spec
    assert spec.up_to(100).sliding_window is None
    assert _spec("mistral", sliding_window=320).up_to(None).sliding_window is None


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 heads of keys and values"),
        ({"num_key_value_heads": 0}, "num_kv_heads is 0; it must be at least 1"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "48 does not divide into 5 heads"),
        ({"num_attention_heads": 0}, "num_heads is 0; it must be at least 1"),
        ({"head_dim": 7}, "head_dim is 7; rotary positions turn pairs, so it must be even"),
        ({"head_dim": 0}, "head_dim is 0; it must be at least 1"),
        ({"rms_norm_eps": 0}, "must be a positive number"),
        ({"hidden_act": "gelo"}, "'gelo' is not known"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "of the kind 'dynamic'; this engine",
        ),
        ({"rope_parameters": {"rope_type": "longrope"}}, "of the kind 'longrope'"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "of the kind ['yarn']"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "factor is None; it must be a number"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0.0; it must be a positive"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "above low_freq_factor, 1.0"),
        ({"rope_theta": 1}, "rope_theta is 1.0; it must be above 1"),
        ({"rope_theta": None}, "rope_theta is None; it must be a number"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rotary positions differ between layers",
        ),
        (
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 0}},
            "original_max_position_embeddings is 0",
        ),
        ({"quantization_config": {"bits": 4}}, "It has a quantization_config"),
        ({"auto_map": {"AutoModelForCausalLM": "a.B"}}, "the plain Llama architecture"),
        ({"num_local_experts": 8}, "with num_local_experts 8, a mixture of experts"),
        ({"vision_config": {}}, "with a vision_config, a model of more than text"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused_in_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    assert sentence in _refusal({"model_type": "llama", **TINY, **fields})


@pytest.mark.parametrize("kinds", ["full_attention", ["chunked_attention"], [["full_attention"]]])
def test_layers_of_other_kinds_are_refused(kinds: object) -> None:
    sentence = _refusal({"model_type": "qwen3", **TINY, "layer_types": kinds})
    assert "every layer must be 'full_attention' or 'sliding_attention'" in sentence


def test_layer_types_of_another_number_of_layers_are_refused() -> None:
    sentence = _refusal({"model_type": "qwen2", **TINY, "layer_types": ["full_attention"]})
    assert "layer_types names 1 layers; it must name num_hidden_layers, 3" in sentence


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [
        ("mixtral", "a mixture of experts"),
        ("qwen3_moe", "a mixture of experts"),
        ("deepseek_v3", "a mixture of experts"),
        ("mllama", "a model of more than text"),
        ("llava", "a model of more than text"),
        ("gemma", "this engine runs"),
    ],
)
def test_models_of_other_kinds_are_refused_by_what_they_are(
    model_type: str, kind: str, tmp_path: Path
) -> None:
    _theirs(model_type).save_pretrained(tmp_path)
    with pytest.raises(ModelError) as caught:
        read_config(tmp_path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{tmp_path / 'config.json'}: The model_type is '{model_type}'")
    assert kind in sentence
    assert all(f'"{name}"' in sentence for name in FAMILIES)
