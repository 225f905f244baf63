"""Greedy output of every Llama-like family equals transformers' `generate`, id for id."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_checkpoints import save_reference

from engine import Engine, EngineConfig, SamplingParams
from engine.fused.weights import has_fused_parts

NEW_TOKENS = 32
PARAMS = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 80,
}
GEMMA3 = {
    "head_dim": 16,
    "sliding_window": 21,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 24,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-head": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 32}),
    "llama-all-heads": ("llama", {"num_key_value_heads": 4}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama-linear": ("llama", {"rope_parameters": {**YARN, "rope_type": "linear"}}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-biases": ("qwen3", {"head_dim": 16, "attention_bias": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 21}),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1},
    ),
    "gemma3": ("gemma3_text", GEMMA3),
    "gemma3-biases-untied": (
        "gemma3_text",
        {**GEMMA3, "attention_bias": True, "tie_word_embeddings": False},
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A checkpoint, prompts of mixed lengths, and what transformers goes on with."""

    directory: Path
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Makes the case of a name of `MODELS`, once."""

    @cache
    def make(name: str) -> Case:
        directory = tmp_path_factory.mktemp(name)
        model_type, options = MODELS[name]
        reference = save_reference(directory, model_type, **options)
        prompts = _prompts()
        return Case(directory, prompts, [_continued(reference, prompt) for prompt in prompts])

    return make


def _prompts() -> list[list[int]]:
    random = np.random.default_rng(2)
    prompts = [random.integers(0, 210, length).tolist() for length in (1, 16, 17, 40, 130)]
    # Two that share all but the end, for the prefix cache to find.
    return [*prompts, [*prompts[-1][:100], 1, 2, 3], prompts[-1][:128]]


def _continued(reference: Any, prompt: list[int], new_tokens: int = NEW_TOKENS) -> list[int]:
    output = reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    continued: list[int] = output[0, len(prompt) :].tolist()
    return continued


def _outputs(directory: Path, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """What the engine goes on with, twice: the second time from prefixes, where it keeps any."""
    engine = Engine(
        EngineConfig(**({"model": directory, "device": "cpu", "block_size": 16} | options))
    )
    first, again = (
        [completion.token_ids for completion in engine.generate(prompts, PARAMS)] for _ in range(2)
    )
    engine.check_integrity()
    assert first == again
    return first


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_mixed_prompts(name: str, case_of: Callable[[str], Case]) -> None:
    case = case_of(name)
    assert min(len(set(output)) for output in case.expected) > 10, "the output must vary"
    assert len({tuple(output) for output in case.expected}) == len(case.expected)
    assert _outputs(case.directory, case.prompts) == case.expected


@pytest.mark.parametrize(
    "options",
    [
        {"prefix_cache": False, "max_batch_size": 3},
        {"prefill_max_tokens": 48},
        {"num_kv_blocks": 14, "max_batch_size": 8},
        {"num_kv_blocks": 14, "max_batch_size": 8, "prefix_cache": False},
        {"block_size": 64},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["llama-llama3", "qwen3", "qwen2-window", "gemma3"])
def test_every_way_through_the_engine(
    name: str, options: dict[str, Any], case_of: Callable[[str], Case]
) -> None:
    case = case_of(name)
    assert _outputs(case.directory, case.prompts, **options) == case.expected


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_sharded_weights(name: str, case_of: Callable[[str], Case], tmp_path: Path) -> None:
    case = case_of(name)
    model_type, options = MODELS[name]
    save_reference(tmp_path, model_type, shard="30KB", **options)
    # Parts of one parameter lie in different files.
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    parts = [f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv"]
    assert len({index[part] for part in parts}) > 1
    assert _outputs(tmp_path, case.prompts) == case.expected


def test_rotary_settings_as_older_versions_spelled_them(
    case_of: Callable[[str], Case], tmp_path: Path
) -> None:
    case = case_of("llama-llama3")
    for path in case.directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    settings = fields.pop("rope_parameters")
    fields |= {"rope_theta": settings.pop("rope_theta"), "rope_scaling": settings}
    path.write_text(json.dumps(fields))
    assert _outputs(tmp_path, case.prompts) == case.expected


def test_a_list_of_end_of_sequence_ids_ends_requests(
    case_of: Callable[[str], Case], tmp_path: Path
) -> None:
    case = case_of("llama")
    for path in case.directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    output = case.expected[3]
    ends = [output[9], output[5]]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    engine = Engine(EngineConfig(model=tmp_path, device="cpu"))
    (completion,) = engine.generate([case.prompts[3]], SamplingParams(max_new_tokens=32))
    first = min(output.index(end) for end in ends)
    assert completion.token_ids == output[: first + 1]
    assert completion.finish_reason == "stop"


def test_a_window_is_left_out_where_no_sequence_is_longer(tmp_path: Path) -> None:
    """Fused steps and Hopper's ring, which have none, then run the model."""
    window, prompt = 60, _prompts()[4]
    reference = save_reference(tmp_path, "mistral", sliding_window=window)
    engine = Engine(EngineConfig(model=tmp_path, device="cpu", max_model_len=window))
    assert has_fused_parts(replace(engine.model.config, hidden_size=64, inner_size=64, head_dim=64))
    for length in (20, window):
        count = window - length + 1
        (completion,) = engine.generate([prompt[:length]], SamplingParams(count, ignore_eos=True))
        assert completion.token_ids == _continued(reference, prompt[:length], count)
    longer = Engine(EngineConfig(model=tmp_path, device="cpu", max_model_len=window + 1))
    assert longer.model.config.window(0) == window
    assert not has_fused_parts(longer.model.config)
    (completion,) = longer.generate([prompt[:window]], SamplingParams(2, ignore_eos=True))
    assert completion.token_ids == _continued(reference, prompt[:window], 2)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (
            lambda t: t.pop("model.layers.1.self_attn.k_proj.weight"),
            ["lack the tensor layers.1.self_attn.k_proj.weight, which the Llama that config.json"],
        ),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(12)}),
            ["model.layers.0.self_attn.q_norm.weight", "belongs to no part of the Llama"],
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.up_proj.weight": torch.ones(48, 80)}),
            ["model.layers.0.mlp.up_proj.weight", "[48, 80]; config.json asks for [80, 48]"],
        ),
        (
            lambda t: t["model.layers.0.self_attn.v_proj.weight"][3, 3].fill_(torch.nan),
            ["model.layers.0.self_attn.v_proj.weight", "not finite"],
        ),
    ],
    ids=["missing", "foreign", "transposed", "nan"],
)
def test_a_bad_tensor_is_named_as_it_is_stored(
    change: Callable[[dict[str, Any]], Any],
    parts: list[str],
    case_of: Callable[[str], Case],
    tmp_path: Path,
) -> None:
    from safetensors.torch import load_file, save_file

    from engine import ModelError

    directory = case_of("llama").directory
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    with pytest.raises(ModelError) as caught:
        Engine(EngineConfig(model=tmp_path, device="cpu"))
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_frequencies_that_early_checkpoints_store_are_ignored(
    case_of: Callable[[str], Case], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    case = case_of("llama")
    tensors = load_file(case.directory / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(6)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((case.directory / "config.json").read_bytes())
    assert _outputs(tmp_path, case.prompts[:2]) == case.expected[:2]
