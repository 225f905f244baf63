"""Gemma 3 against transformers: config.json, logits, and tokens far beyond the window."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_checkpoints import TINY, save_reference
from gpt2_checkpoints import logits_of

from engine import Engine, EngineConfig, ModelError, SamplingParams
from engine.fused.weights import has_fused_parts
from engine.models.families import read_config, spec_of
from engine.models.layers import RMSNorm
from engine.models.registry import load_model, random_config
from engine.models.rotary import LinearScaling, Rotary
from engine.models.spec import DecoderSpec

CPU = torch.device("cpu")
LOCAL, GLOBAL = "sliding_attention", "full_attention"
WINDOW, NEW_TOKENS = 21, 70
OPTIONS: dict[str, Any] = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "head_dim": 32,
    "sliding_window": WINDOW,
    "query_pre_attn_scalar": 400,
    "rope_parameters": {
        GLOBAL: {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
        LOCAL: {"rope_theta": 1e4, "rope_type": "default"},
    },
}


def _spec(**fields: Any) -> DecoderSpec:
    return spec_of({"model_type": "gemma3_text", **TINY, **fields})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A directory as transformers writes it, and the model in it."""
    directory = tmp_path_factory.mktemp("gemma")
    return directory, save_reference(directory, "gemma3_text", **OPTIONS)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    random = np.random.default_rng(5)
    prompts = [random.integers(0, 210, length).tolist() for length in (1, 20, 22, 130)]
    return [*prompts, [*prompts[-1][:100], 1, 2, 3]]


@pytest.fixture(scope="module")
def expected(checkpoint: tuple[Path, Any], prompts: list[list[int]]) -> list[list[int]]:
    """What transformers goes on with."""
    continued = [
        checkpoint[1]
        .generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :]
        .tolist()
        for prompt in prompts
    ]
    assert min(len(set(output)) for output in continued) > 20, "the output must vary"
    return continued


def test_defaults_are_those_of_transformers() -> None:
    from transformers import Gemma3TextConfig

    ours, theirs = spec_of({"model_type": "gemma3_text"}), Gemma3TextConfig()
    assert (ours.vocab_size, ours.max_positions) == (
        theirs.vocab_size,
        theirs.max_position_embeddings,
    )
    assert (ours.num_layers, ours.num_heads, ours.num_kv_heads, ours.head_dim) == (
        theirs.num_hidden_layers,
        theirs.num_attention_heads,
        theirs.num_key_value_heads,
        theirs.head_dim,
    )
    assert (ours.hidden_size, ours.inner_size) == (theirs.hidden_size, theirs.intermediate_size)
    assert (ours.activation, ours.norm_epsilon) == (theirs.hidden_activation, theirs.rms_norm_eps)
    assert (ours.tied_head, ours.eos_token_ids) == (theirs.tie_word_embeddings, (1,))
    assert ours.attention_scale(3) == theirs.query_pre_attn_scalar**-0.5
    windows = [ours.window(layer) for layer in range(ours.num_layers)]
    assert windows == [
        theirs.sliding_window if kind == LOCAL else None for kind in theirs.layer_types
    ]
    both = theirs.rope_parameters
    assert ours.rotary == Rotary(both[GLOBAL]["rope_theta"])
    assert ours.local_rotary == Rotary(both[LOCAL]["rope_theta"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Rotary(1e6)),
        ({"rope_theta": 5e5, "rope_local_base_freq": 2e4}, Rotary(5e5)),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, Rotary(1e6, LinearScaling(8.0))),
        ({"rope_parameters": {GLOBAL: {"rope_theta": 3e5}, LOCAL: None}}, Rotary(3e5)),
        ({"rope_parameters": OPTIONS["rope_parameters"]}, Rotary(1e6, LinearScaling(8.0))),
    ],
    ids=str,
)
def test_rotary_settings_of_old_and_new_files(fields: dict[str, Any], expected: Rotary) -> None:
    from transformers import Gemma3TextConfig

    spec = _spec(**fields)
    assert spec.rotary == expected
    theirs = Gemma3TextConfig(**json.loads(json.dumps(fields))).rope_parameters
    assert spec.rotary.theta == theirs[GLOBAL]["rope_theta"]
    assert spec.local_rotary == Rotary(theirs[LOCAL]["rope_theta"])


@pytest.mark.parametrize(
    ("fields", "locals_of_six"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"sliding_window_pattern": 2}, [0, 2, 4]),
        ({"layer_types": [LOCAL, GLOBAL, GLOBAL, LOCAL, LOCAL, LOCAL]}, [0, 3, 4, 5]),
        ({"layer_types": [GLOBAL] * 6, "sliding_window_pattern": 2}, []),
    ],
    ids=str,
)
def test_local_layers_of_old_and_new_files(
    fields: dict[str, Any], locals_of_six: list[int]
) -> None:
    spec = _spec(num_hidden_layers=6, sliding_window=30, **fields)
    assert [layer for layer in range(6) if spec.window(layer) == 30] == locals_of_six


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0; this engine caps no"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0; this engine caps no"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is set"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern is 0; it must be at least 1"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0.0; it must be a positive"),
        ({"layer_types": [LOCAL] * 2}, "layer_types names 2 layers; it must name num_hidden_l"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be an object, or null"),
        ({"rope_parameters": {GLOBAL: 3}}, "full_attention is 3; it must be an object, or null"),
        ({"hidden_size": 10**400}, "hidden_size is a number of 1329 bits; it must be at most"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_run_is_refused_in_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        _spec(**fields)
    assert sentence in str(caught.value)


def test_a_model_of_images_too_is_refused(tmp_path: Path) -> None:
    from transformers import Gemma3Config

    Gemma3Config().save_pretrained(tmp_path)
    with pytest.raises(ModelError) as caught:
        read_config(tmp_path)
    assert "'gemma3' with a vision_config, a model of more than text" in str(caught.value)


def test_logits_are_those_of_transformers(checkpoint: tuple[Path, Any]) -> None:
    directory, reference = checkpoint
    token_ids = torch.randint(211, (160,), generator=torch.Generator().manual_seed(0))
    ours = load_model(directory, device=CPU).model
    with torch.inference_mode():
        theirs = reference(token_ids[None]).logits[0]
        found = logits_of(ours, token_ids)
    assert float((found - theirs).norm() / theirs.norm()) < 1e-5
    assert torch.equal(found.argmax(1), theirs.argmax(1))


def test_embeddings_are_scaled_as_transformers_rounds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = save_reference(tmp_path, "gemma3_text", **OPTIONS | {"hidden_size": 48})
    model = load_model(tmp_path, device=CPU, dtype=torch.bfloat16).model
    normed: list[torch.Tensor] = []
    norm = RMSNorm.__call__

    def noted(self: RMSNorm, x: torch.Tensor) -> torch.Tensor:
        normed.append(x)
        return norm(self, x)

    monkeypatch.setattr(RMSNorm, "__call__", noted)
    token_ids = torch.arange(211)
    with torch.inference_mode():
        logits_of(model, token_ids)
        theirs = reference.to(torch.bfloat16).model.embed_tokens(token_ids)
    assert torch.equal(normed[0], theirs)
    assert not torch.equal(theirs, reference.model.embed_tokens.weight * 48**0.5)


def test_norms_are_stored_less_one_and_rounded_once(tmp_path: Path) -> None:
    reference = save_reference(tmp_path, "gemma3_text", **OPTIONS)
    reference.to(torch.bfloat16).save_pretrained(tmp_path)
    weight = reference.model.layers[2].post_feedforward_layernorm.weight.float() + 1
    for dtype in (torch.bfloat16, torch.float32):
        model = load_model(tmp_path, device=CPU, dtype=dtype).model
        assert torch.equal(model.blocks[2].feed_forward.out.norm.weight, weight.to(dtype))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefix_cache": False, "max_batch_size": 2},
        {"prefill_max_tokens": 32},
        {"mixed_prefill_tokens": 16},
        {"speculative": "prompt-lookup"},
        {"block_size": 64, "decode_first": True},
        {"num_kv_blocks": 18},
        pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_tokens_far_beyond_the_window(
    options: dict[str, Any],
    checkpoint: tuple[Path, Any],
    prompts: list[list[int]],
    expected: list[list[int]],
) -> None:
    """Twice: the second time from cached prefixes, where there are any."""
    made = {"model": checkpoint[0], "device": "cpu", "block_size": 16} | options
    engine = Engine(EngineConfig(**made))
    try:
        for _ in range(2):
            found = engine.generate(prompts, SamplingParams(NEW_TOKENS, ignore_eos=True))
            assert [completion.token_ids for completion in found] == expected
        engine.check_integrity()
    finally:
        engine.close()


@pytest.mark.parametrize("option", [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}], ids=str)
def test_in_eight_bits_tokens_are_the_likeliest_of_nearly_the_same_logits(
    option: dict[str, str], checkpoint: tuple[Path, Any], prompts: list[list[int]]
) -> None:
    directory, reference = checkpoint
    engine = Engine(EngineConfig(model=directory, device="cpu", block_size=16, **option))
    prompt = prompts[3]
    (completion,) = engine.generate([prompt], SamplingParams(NEW_TOKENS, ignore_eos=True))
    fed = torch.tensor([prompt + completion.token_ids])
    with torch.inference_mode():
        logits = reference(fed).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
    behind = (logits.amax(1) - chosen) / logits.std(1)
    assert float(behind.mean()) < 0.25
    assert math.isfinite(float(behind.max()))


def test_built_in_shapes_are_gemmas() -> None:
    spec = random_config("random:gemma-3-1b")
    assert [layer for layer in range(26) if spec.window(layer) is None] == [5, 11, 17, 23]
    assert not has_fused_parts(spec.up_to(512)), "norms behind maps have no fused kernels"
    engine = Engine(EngineConfig(model="random:gemma-tiny", device="cpu", block_size=16))
    (completion,) = engine.generate([[1, 2, 3]], SamplingParams(150, ignore_eos=True))
    assert len(set(completion.token_ids)) > 75
