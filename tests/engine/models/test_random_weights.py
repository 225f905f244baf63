"""Seeded weights: the same everywhere, and worth decoding."""

from __future__ import annotations

import dataclasses
import time
import zlib

import pytest
import torch
from gpt2_checkpoints import greedy_continuation, logits_of

from engine.models.decoder import Decoder
from engine.models.random_weights import random_weights
from engine.models.registry import RANDOM_CONFIGS, load_model
from engine.models.weights import parameter_shapes

CPU = torch.device("cpu")
TINY = RANDOM_CONFIGS["gpt2-tiny"]
TINY_MODELS = ("gpt2-tiny", "llama-tiny", "qwen3-tiny", "gemma-tiny")

FIXED = {
    "token_embedding.weight": 3155269009,
    "position_embedding.weight": 1647301223,
    "blocks.1.feed_forward_out.weight": 3493295556,
    "final_norm.weight": 2646466592,
    "blocks.0.attention_norm.bias": 4159918814,
}


def _weights(config=TINY, seed=0, dtype=torch.float32):
    return random_weights(config, seed=seed, device=CPU, dtype=dtype)


@pytest.fixture(scope="module", params=TINY_MODELS)
def tiny(request) -> Decoder:
    config = RANDOM_CONFIGS[request.param]
    return Decoder(config, _weights(config))


def test_numbers_are_fixed_for_all_time():
    """Other numbers would make measurements of two commits measurements of two models."""
    weights = _weights()
    checksums = {name: zlib.crc32(weights[name].numpy().tobytes()) for name in FIXED}
    assert checksums == FIXED


@pytest.mark.parametrize("name", TINY_MODELS)
def test_every_parameter_has_its_shape_and_numbers_of_its_own(name):
    config = RANDOM_CONFIGS[name]
    weights = _weights(config)
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    assert shapes == parameter_shapes(config)
    assert len({float(weight.double().sum()) for weight in weights.values()}) == len(weights)
    assert all(weight.is_contiguous() for weight in weights.values())


@pytest.mark.parametrize("name", TINY_MODELS)
def test_seed_chooses_the_numbers(name):
    first, again, other = (
        _weights(RANDOM_CONFIGS[name], seed=seed)["token_embedding.weight"] for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_layer_has_the_same_numbers_in_a_deeper_model():
    deeper = dataclasses.replace(TINY, num_layers=3)
    assert torch.equal(
        _weights()["blocks.1.attention_norm.bias"], _weights(deeper)["blocks.1.attention_norm.bias"]
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_same_numbers_rounded(dtype):
    exact, half = _weights(), _weights(dtype=dtype)
    assert all(torch.equal(half[name], exact[name].to(dtype)) for name in exact)


def test_greedy_output_varies_with_step_and_prompt(tiny):
    prompts = [[0], [1], [1023], [5, 7, 9], [5, 8, 9], [7] * 30, list(range(60))]
    outputs = [greedy_continuation(tiny, prompt, 64) for prompt in prompts]
    assert min(len(set(output)) for output in outputs) > 20
    assert len({token for output in outputs for token in output}) > 100
    for index, output in enumerate(outputs):
        for other in outputs[:index]:
            assert sum(a == b for a, b in zip(output, other, strict=True)) < 16


def test_the_first_token_still_matters_at_the_end(tiny):
    tail = list(range(40))
    last = [logits_of(tiny, torch.tensor([first, *tail]))[-1] for first in (100, 200)]
    assert (last[0] - last[1]).norm() > 1e-3 * last[0].norm()


def test_logits_are_fit_for_sampling_and_for_float16(tiny):
    token_ids = torch.randint(1024, (300,), generator=torch.manual_seed(0))
    logits = logits_of(tiny, token_ids)
    assert 2 < logits.std() < 8
    first, second = logits.topk(2).values.unbind(-1)
    assert (first - second).median() > 0.3
    halved = {name: weight.half() for name, weight in _weights(tiny.config).items()}
    half = logits_of(Decoder(tiny.config, halved), token_ids).float()
    assert half.isfinite().all()
    assert (half - logits).norm() < 0.01 * logits.norm()
    assert (half.argmax(-1) == logits.argmax(-1)).float().mean() > 0.95


def test_gpt2_tiny_loads_at_once():
    load_model("random:gpt2-tiny", device=CPU)
    times = []
    for _ in range(5):
        start = time.process_time()
        load_model("random:gpt2-tiny", device=CPU)
        times.append(time.process_time() - start)
    assert min(times) < 0.05
