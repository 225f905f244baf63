"""config.json to spec: what transformers writes is understood, what cannot run is refused."""

from __future__ import annotations

import json
import math

import pytest

from engine.errors import ModelError
from engine.models.families import read_config, spec_of
from engine.models.gpt2 import gpt2

SMALL = {
    "model_type": "gpt2",
    "vocab_size": 100,
    "n_positions": 32,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
}


def _config(**fields):
    return spec_of(SMALL | fields)


def test_an_empty_config_is_gpt2_small():
    assert spec_of({"model_type": "gpt2"}) == gpt2()
    assert gpt2().head_dim == 64


def test_sizes_are_read():
    config = _config(n_inner=50)
    assert config.vocab_size == 100
    assert config.max_positions == 32
    assert config.num_layers == 2
    assert config.num_heads == config.num_kv_heads == 3
    assert config.head_dim == 8
    assert config.inner_size == 50
    assert _config(n_inner=None).inner_size == 96


def test_every_name_of_a_field_is_understood():
    renamed = {
        "model_type": "gpt2",
        "vocab_size": 100,
        "max_position_embeddings": 32,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
    }
    assert spec_of(renamed) == _config()


def test_n_positions_goes_before_n_ctx():
    assert _config(n_ctx=7).max_positions == 32
    assert spec_of({"model_type": "gpt2", "n_ctx": 77}).max_positions == 77


def test_a_config_written_by_transformers_is_read(tmp_path):
    from transformers import GPT2Config as TheirConfig

    TheirConfig(n_embd=24, n_head=3, n_inner=7, layer_norm_epsilon=1e-3).save_pretrained(tmp_path)
    config = read_config(tmp_path)
    assert (config.hidden_size, config.num_heads, config.inner_size) == (24, 3, 7)
    assert config.norm_epsilon == 1e-3
    assert (config.vocab_size, config.eos_token_ids, config.tied_head) == (50257, (50256,), True)


def test_defaults_are_those_of_transformers():
    from transformers import GPT2Config as TheirConfig

    ours, theirs = spec_of({"model_type": "gpt2"}), TheirConfig()
    assert (ours.vocab_size, ours.max_positions) == (theirs.vocab_size, theirs.n_positions)
    assert (ours.num_layers, ours.num_heads) == (theirs.n_layer, theirs.n_head)
    assert (ours.hidden_size, ours.activation) == (theirs.n_embd, theirs.activation_function)
    assert ours.norm_epsilon == theirs.layer_norm_epsilon
    assert ours.tied_head == theirs.tie_word_embeddings
    assert ours.scale_by_head_dim == theirs.scale_attn_weights
    assert ours.scale_by_layer == theirs.scale_attn_by_inverse_layer_idx
    assert ours.eos_token_ids == (theirs.eos_token_id,)


def test_keys_without_effect_are_ignored():
    harmless = {"attn_pdrop": 0.3, "summary_type": "mean", "use_cache": False, "made_up": [1]}
    assert _config(**harmless, task_specific_params={"a": 1}, architectures=["X"]) == _config()


@pytest.mark.parametrize(
    ("by_head_dim", "by_layer", "expected"),
    [
        (True, False, [8**-0.5, 8**-0.5]),
        (True, True, [8**-0.5, 8**-0.5 / 2]),
        (False, True, [1.0, 0.5]),
        (False, False, [1.0, 1.0]),
    ],
)
def test_attention_scale(by_head_dim, by_layer, expected):
    config = _config(scale_attn_weights=by_head_dim, scale_attn_by_inverse_layer_idx=by_layer)
    assert [config.attention_scale(layer) for layer in range(2)] == expected


def test_upcast_attention_changes_nothing_because_the_kernels_always_do_it():
    assert _config(reorder_and_upcast_attn=True) == _config()


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        ({}, None, ()),  # 50256 is the default, and no id of this vocabulary
        ({"eos_token_id": 7}, None, (7,)),
        ({"eos_token_id": [9, 7, 9]}, None, (7, 9)),
        ({"eos_token_id": None}, None, ()),
        ({"eos_token_id": [99, 100]}, None, (99,)),
        ({"eos_token_id": 7}, {"eos_token_id": [1, 2]}, (1, 2)),
        ({"eos_token_id": 7}, {"eos_token_id": None}, (7,)),
        ({"eos_token_id": 7}, {"temperature": 0.5}, (7,)),
    ],
)
def test_end_of_sequence_ids(in_config, in_generation, expected):
    config = spec_of(SMALL | in_config, in_generation)
    assert config.eos_token_ids == expected


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtype_is_read_under_both_names(key):
    assert _config(**{key: "bfloat16"}).dtype == "bfloat16"
    assert _config(**{key: "torch.float16"}).dtype == "float16"
    assert _config(**{key: None}).dtype is None


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"model_type": "opt"}, "model_type is 'opt'; this engine runs \"gpt2\""),
        ({"model_type": None}, 'no "model_type"'),
        ({"add_cross_attention": True}, "add_cross_attention is set"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"auto_map": {"AutoModelForCausalLM": "a.B"}}, "never run"),
        ({"activation_function": "prelu"}, "'prelu' has learned parameters"),
        ({"activation_function": "xielu"}, "'xielu' has learned parameters"),
        ({"activation_function": "gelo"}, "'gelo' is not known; it must be one of gelu"),
        ({"activation_function": None}, "activation_function is None; it must be a string"),
        ({"n_head": 5}, "24 does not divide into 5 heads"),
        ({"n_head": 0}, "num_heads is 0; it must be at least 1"),
        ({"n_layer": "2"}, "n_layer is '2'; it must be an integer"),
        ({"n_layer": True}, "n_layer is True; it must be an integer"),
        ({"n_embd": 24.0}, "n_embd is 24.0; it must be an integer"),
        ({"n_positions": -1}, "max_positions is -1"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"n_inner": 0}, "inner_size is 0"),
        ({"layer_norm_epsilon": 0}, "it must be a positive number"),
        ({"layer_norm_epsilon": math.nan}, "it must be a positive number"),
        ({"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small'; it must be a number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be true or false"),
        ({"reorder_and_upcast_attn": "no"}, "it must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"eos_token_id": [1, None]}, "eos_token_id is"),
        ({"dtype": "int8"}, "dtype is 'int8'; it must be one of float64"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(fields, sentence, tmp_path):
    with pytest.raises(ModelError) as caught:
        _config(**fields)
    assert sentence in str(caught.value)

    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL | fields))
    with pytest.raises(ModelError) as caught:
        read_config(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert sentence in str(caught.value)


def test_a_tokenizer_of_its_own_does_not_make_a_model_foreign():
    assert _config(auto_map={"AutoTokenizer": ["a.B", None]}) == _config()


def test_generation_config_is_read_from_its_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"eos_token_id": 7}))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 8}')
    assert read_config(tmp_path).eos_token_ids == (8,)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "has no config.json"),
        (b"{not json", "config.json is not valid JSON"),
        (b"\xff\xfe\x00", "config.json is not valid JSON"),
        (b"[1, 2]", "config.json must hold a JSON object, not a list"),
        (b"[" * 100_000, "config.json is not valid JSON"),
    ],
)
def test_an_unreadable_config_is_named(content, sentence, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=sentence):
        read_config(tmp_path)
