"""Weights in eight bits: rounded on load, read from checkpoints, and what they compute."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_checkpoints import save_reference
from fp8_checkpoints import CONFIGS, SIZES, save_fp8
from gpt2_checkpoints import dense_causal_attention
from safetensors.torch import load_file, save_file
from threaded_ranks import on_ranks

from asv_bench.peers.model import likelihoods
from engine import ConfigError, Engine, EngineConfig, ModelError, SamplingParams
from engine.models.decoder import Decoder
from engine.models.random_weights import random_weights
from engine.models.registry import load_model, random_config
from engine.models.share import Share
from engine.models.weights import is_linear, scales_of
from engine.parallel.group import Group
from kernels.linear.fp8 import FP8, dequantized, quantize

CPU = torch.device("cpu")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODELS = ("gpt2-tiny", "llama-tiny", "qwen3-tiny", "gemma-tiny")
TOKENS = torch.arange(60) * 37 % 200


def _logits(model: Decoder) -> torch.Tensor:
    with torch.inference_mode():
        positions = torch.arange(len(TOKENS), device=model.device)
        tokens = TOKENS.to(model.device)
        return model.logits(model.forward(tokens, positions, dense_causal_attention(model)))


def _theirs(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(TOKENS[None]).logits[0]
        return logits


def _error(logits: torch.Tensor, exact: torch.Tensor) -> float:
    return float((logits.double() - exact.double()).norm() / exact.double().norm())


def test_rounding_is_to_the_nearest_of_e4m3_and_keeps_each_rows_largest():
    weight = torch.randn(5, 64) * torch.tensor([1.0, 1e-6, 300.0, 0.0, 1.0])[:, None]
    weight[4, 3] = 1e4  # beside it the others are small
    values, scales = quantize(weight)
    assert (values.dtype, values.shape, scales.shape) == (FP8, weight.shape, (1, 5))
    again = dequantized(values, scales, torch.float32)
    assert torch.allclose(again.abs().amax(1), weight.abs().amax(1), rtol=1e-6)
    # Half of the last of three bits, or of the smallest step of what is left.
    bound = torch.maximum(weight.abs() / 16, scales[0][:, None] * 2**-10)
    assert ((again - weight).abs() <= bound * 1.0001).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_quantized_model_computes_what_its_weights_stand_for(name: str):
    spec = random_config("random:" + name)
    kept = random_weights(spec, seed=3, device=CPU, dtype=torch.float32, quantize=True)
    assert {key for key, weight in kept.items() if weight.dtype == FP8} == set(
        filter(is_linear, kept)
    )
    exact = {
        key: dequantized(weight, kept[scales_of(key)], torch.float32)
        if weight.dtype == FP8
        else weight
        for key, weight in kept.items()
        if not key.endswith(".scales")
    }
    reference, model = _logits(Decoder(spec, exact)), Decoder(spec, kept)
    assert _error(_logits(model), reference) < 1e-5
    model.fold_norms()
    assert _error(_logits(model), reference) < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_logits_differ_by_what_rounding_explains(name: str):
    """No more than with noise of the same size on the same weights, which is no error of code."""
    spec = random_config("random:" + name)
    weights = random_weights(spec, seed=3, device=CPU, dtype=torch.float32)
    exact = _logits(Decoder(spec, weights))
    generator = torch.Generator().manual_seed(5)
    noisy = dict(weights)
    for key in filter(is_linear, weights):
        rounded = dequantized(*quantize(weights[key]), torch.float32)
        noise = torch.randn(rounded.shape, generator=generator)
        noisy[key] = weights[key] + noise * (rounded - weights[key]).square().mean().sqrt()
    quantized = random_weights(spec, seed=3, device=CPU, dtype=torch.float32, quantize=True)
    of_noise = _error(_logits(Decoder(spec, noisy)), exact)
    assert 0 < _error(_logits(Decoder(spec, quantized)), exact) < 1.5 * of_noise


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_checkpoints_in_eight_bits_compute_what_transformers_does_with_their_weights(
    tmp_path: Path, model_type: str, kind: str
):
    theirs = save_fp8(tmp_path, model_type, kind)
    model = load_model(tmp_path, device=CPU).model
    assert len(model.quantized) == 4
    assert _error(_logits(model), _theirs(theirs)) < 1e-5


@pytest.mark.parametrize("kind", ["block", "compressed channel"])
@pytest.mark.parametrize("left_out", ["layers.0.mlp", "k_proj"])
def test_maps_that_a_checkpoint_leaves_in_floats(tmp_path: Path, kind: str, left_out: str):
    """A part of a map in floats makes the whole one floats, unless all are to be rounded."""
    theirs = _theirs(save_fp8(tmp_path, "qwen3", kind, left_out=left_out))
    assert _error(_logits(load_model(tmp_path, device=CPU).model), theirs) < 1e-5
    rounded = load_model(tmp_path, device=CPU, quantization="fp8").model
    assert all(block.feed_forward.into.weight.dtype == FP8 for block in rounded.blocks)
    assert 1e-5 < _error(_logits(rounded), theirs) < 0.3


@pytest.mark.parametrize("kind", CONFIGS)
def test_ranks_share_a_checkpoint_in_eight_bits(tmp_path: Path, kind: str):
    whole = _logits(_saved(tmp_path, kind))

    def on_rank(group: Group) -> torch.Tensor:
        share = Share(group.rank, 2)
        return _logits(load_model(tmp_path, device=CPU, share=share, group=group).model)

    for logits in on_ranks(2, on_rank):
        assert _error(logits, whole) < 1e-5


def _saved(directory: Path, kind: str) -> Decoder:
    # Each of two ranks has whole blocks of columns.
    save_fp8(directory, "qwen3", kind, head_dim=64)
    return load_model(directory, device=CPU).model


def test_ranks_cannot_cut_a_block_of_columns(tmp_path: Path):
    save_fp8(tmp_path, "llama", "block")
    with pytest.raises(ConfigError, match="scale for every 128: so many ranks"):
        load_model(tmp_path, device=CPU, share=Share(0, 2))


@pytest.mark.parametrize("name", MODELS)
def test_ranks_round_their_parts(name: str):
    spec = random_config("random:" + name)
    made: dict[str, Any] = {"seed": 3, "device": CPU, "dtype": torch.float32}
    exact = _logits(Decoder(spec, random_weights(spec, **made)))
    whole = _error(_logits(Decoder(spec, random_weights(spec, **made, quantize=True))), exact)

    def on_rank(group: Group) -> torch.Tensor:
        share = Share(group.rank, 2)
        weights = random_weights(spec, **made, share=share, quantize=True)
        return _logits(Decoder(share.spec(spec), weights, group))

    for logits in on_ranks(2, on_rank):
        assert _error(logits, exact) < 1.5 * whole


def test_rounding_on_load_takes_the_maps_of_blocks_alone(tmp_path: Path):
    save_reference(tmp_path, "llama", hidden_size=64, intermediate_size=96)
    plain = load_model(tmp_path, device=CPU).model
    model = load_model(tmp_path, device=CPU, quantization="fp8").model
    assert model.num_bytes < plain.num_bytes
    for mine, theirs in zip(model.blocks, plain.blocks, strict=True):
        assert torch.equal(
            mine.attention.into.weight.view(torch.uint8),
            quantize(theirs.attention.into.weight)[0].view(torch.uint8),
        )
        assert torch.equal(mine.attention.norm.weight, theirs.attention.norm.weight)
    assert torch.equal(model.token_embedding, plain.token_embedding)
    assert torch.equal(model.head.weight, plain.head.weight)


@pytest.mark.parametrize("kind", ["block", "compressed channel"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_tokens_are_as_often_the_likeliest_of_what_the_weights_stand_for(
    tmp_path: Path, model_type: str, kind: str
):
    """Within 2 points of the unquantized model's share, each against its own weights in fp64."""
    save_reference(tmp_path / "plain", model_type, **SIZES)
    save_fp8(tmp_path / "fp8", model_type, kind)
    prompts = [[(7 * place + offset) % 200 for place in range(12)] for offset in range(48)]
    params = SamplingParams(max_new_tokens=32, ignore_eos=True)
    shares = {}
    for name in ("plain", "fp8", "fp8-dynamic"):
        model = str(tmp_path / name.removesuffix("-dynamic"))
        quantization = name if name == "fp8-dynamic" else None
        config = EngineConfig(
            model=model, device=DEVICE, dtype="bfloat16", quantization=quantization
        )
        with closing(Engine(config)) as engine:
            made = [list(one.token_ids) for one in engine.generate(prompts, params)]
        asked = [(prompts[at : at + 8], made[at : at + 8]) for at in range(0, len(prompts), 8)]
        found = likelihoods(model, "float32", DEVICE, asked)
        shares[name] = sum(one["argmax"] for one in found) / len(found)
    assert shares["plain"] > 0.8
    assert shares["fp8"] > shares["plain"] - 0.02
    # Rounded rows are as noisy as rounded weights.
    assert shares["fp8-dynamic"] > shares["plain"] - 0.3


@pytest.mark.skipif(DEVICE == "cpu", reason="rows are rounded on a GPU alone")
@pytest.mark.parametrize("name", MODELS)
def test_rounding_rows_costs_about_as_much_as_rounding_weights(name: str):
    spec, device = random_config("random:" + name), torch.device(DEVICE)
    made = {"seed": 3, "device": device, "dtype": torch.bfloat16}
    kept = random_weights(spec, **made, quantize=True)
    exact = {
        key: dequantized(weight, kept[scales_of(key)], torch.float32)
        if weight.dtype == FP8
        else weight.float()
        for key, weight in kept.items()
        if not key.endswith(".scales")
    }
    unrounded = {key: weight.float() for key, weight in random_weights(spec, **made).items()}
    reference = _logits(Decoder(spec, exact))
    of_weights = _error(_logits(Decoder(spec, unrounded)), reference)
    of_rows = _error(_logits(Decoder(spec, kept, rounds_rows=True)), reference)
    of_neither = _error(_logits(Decoder(spec, kept)), reference)
    assert 2 * of_neither < of_rows < 2 * of_weights


def _edited(directory: Path, change: Any) -> str:
    """The refusal of a checkpoint after `change` of its tensors."""
    save_fp8(directory, "llama", "compressed channel")
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError) as caught:
        load_model(directory, device=CPU)
    return str(caught.value)


Q_PROJ = "model.layers.0.self_attn.q_proj."


def test_damaged_checkpoints_are_refused(tmp_path: Path):
    missing = _edited(tmp_path / "a", lambda tensors: tensors.pop(Q_PROJ + "weight_scale"))
    assert "has the type F8_E4M3, but no scales are beside it" in missing
    assert "self_attn.q_proj.weight_scale must be there" in missing
    shape = {Q_PROJ + "weight_scale": torch.ones(3, 1)}
    wrong = _edited(tmp_path / "b", lambda tensors: tensors.update(shape))
    assert "is [3, 1] of the type F32; scales of a weight [128, 128] must be [128, 1]" in wrong
    infinite = {Q_PROJ + "weight_scale": torch.full((128, 1), float("inf"))}
    assert "values that are not finite" in _edited(
        tmp_path / "c", lambda tensors: tensors.update(infinite)
    )
    nan = {Q_PROJ + "weight": torch.full((128, 128), float("nan")).to(FP8)}
    assert "values that are not finite" in _edited(
        tmp_path / "d", lambda tensors: tensors.update(nan)
    )
    head = {"lm_head.weight": torch.zeros(211, 128).to(FP8)}
    assert "has the type F8_E4M3; weights must be unquantized" in _edited(
        tmp_path / "e", lambda tensors: tensors.update(head)
    )


def test_eight_bits_without_a_word_in_the_config_are_refused(tmp_path: Path):
    save_fp8(tmp_path, "llama", "block")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["quantization_config"]
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"weight_scale_inv in .* belongs to no part"):
        load_model(tmp_path, device=CPU)


def _with_weights(**options: Any) -> dict[str, Any]:
    config = CONFIGS["compressed channel"]
    group = config["config_groups"]["group_0"]
    changed = group | {"weights": group["weights"] | options}
    return config | {"config_groups": {"group_0": changed}}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"quant_method": "gptq", "bits": 4}, "of quant_method 'gptq'; this engine runs"),
        ({"bits": 4}, "of quant_method None; this engine runs"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "the fmt 'e5m2'; it must be \"e4m3\""),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "in blocks of [64, 64]"),
        (CONFIGS["compressed channel"] | {"format": "pack-quantized"}, "format 'pack-quantized'"),
        (CONFIGS["compressed channel"] | {"config_groups": {}}, "must have config_groups"),
        (_with_weights(num_bits=4), "num_bits 4 and symmetric True; they must be"),
        (_with_weights(type="int"), "of type 'int'"),
        (_with_weights(strategy="group"), "of the strategy 'group'; it must be one of tensor"),
        (_with_weights(strategy="block", block_structure=[1, 128]), "in blocks of [1, 128]"),
    ],
    ids=str,
)
def test_other_quantizations_are_refused_in_a_sentence(
    tmp_path: Path, config: dict[str, Any], sentence: str
):
    save_fp8(tmp_path, "llama", "compressed channel")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path, device=CPU)
    assert sentence in str(caught.value)


def test_models_whose_scales_do_not_fit_are_refused():
    spec = replace(random_config("random:llama-tiny"), num_layers=1)
    weights = random_weights(spec, seed=0, device=CPU, dtype=torch.float32, quantize=True)
    name = scales_of("blocks.0.attention_out.weight")
    with pytest.raises(ModelError, match=r"is \[2, 128\] of torch.float32; it must be \[1, 128\]"):
        Decoder(spec, weights | {name: torch.ones(2, 128)})
    del weights[name]
    with pytest.raises(ModelError, match=r"its scales, .* must be there"):
        Decoder(spec, weights)


def test_other_words_for_the_option_are_refused():
    with pytest.raises(ConfigError, match="quantization is 'int4'; it must be 'fp8' or 'fp8-dy"):
        EngineConfig(quantization="int4")
