"""Greedy output equals transformers' `generate`, id for id."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

NEW_TOKENS = 64
PARAMS = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def reference() -> GPT2LMHeadModel:
    """A model whose greedy output varies: a default-initialised one repeats a token for ever."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(5)
    config = GPT2Config(
        vocab_size=211, n_positions=320, n_embd=64, n_layer=3, n_head=4, eos_token_id=210
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln_" not in name:
                parameter.normal_(std=0.25)
    return model


@pytest.fixture(scope="module")
def directory(reference: GPT2LMHeadModel, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gpt2")
    reference.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    random = np.random.default_rng(2)
    lengths = [1, 3, 16, 17, 40, 63, 64, 65, 100, 128, 177, 200]
    prompts = [random.integers(0, 210, length).tolist() for length in lengths]
    # Two that share all but the end, for the prefix cache to find.
    prompts += [[*prompts[-1][:150], 1, 2, 3], prompts[-1][:128]]
    return prompts


@pytest.fixture(scope="module")
def expected(reference: GPT2LMHeadModel, prompts) -> list[list[int]]:
    return [_continued(reference, prompt, NEW_TOKENS) for prompt in prompts]


def _continued(reference: GPT2LMHeadModel, prompt: list[int], new_tokens: int) -> list[int]:
    output = reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


def _engine(directory: Path, **options: object) -> Engine:
    return Engine(
        EngineConfig(**({"model": str(directory), "device": "cpu", "block_size": 16} | options))
    )


def test_the_reference_is_worth_comparing_with(expected):
    assert min(len(set(output)) for output in expected) > 15
    assert len({tuple(output) for output in expected}) == len(expected)


@pytest.mark.parametrize("max_batch_size", [16, 3])
def test_a_batch_of_mixed_prompts(directory, prompts, expected, max_batch_size):
    engine = _engine(directory, prefix_cache=False, max_batch_size=max_batch_size)
    assert [completion.token_ids for completion in engine.generate(prompts, PARAMS)] == expected


def test_prompts_found_in_the_prefix_cache(directory, prompts, expected):
    engine = _engine(directory, max_batch_size=16)
    for _ in range(2):
        assert [completion.token_ids for completion in engine.generate(prompts, PARAMS)] == expected
    engine.check_integrity()


@pytest.mark.parametrize("prefix_cache", [True, False], ids=["prefix-cache", "no-prefix-cache"])
def test_admitted_at_different_times(directory, prompts, expected, prefix_cache):
    engine = _engine(directory, prefix_cache=prefix_cache, max_batch_size=6, prefill_max_tokens=48)
    outputs: list[list[int]] = [[] for _ in prompts]
    places: dict[int, int] = {}
    step = 0
    while len(places) < len(prompts) or engine.has_unfinished:
        if step % 5 == 0 and len(places) < len(prompts):
            place = len(places)
            places[engine.submit(prompts[place], PARAMS)] = place
        for event in engine.step():
            outputs[places[event.request_id]].append(event.token_id)
        step += 1
    assert outputs == expected


def test_when_the_cache_is_too_small_for_all(directory, prompts, expected):
    engine = _engine(directory, num_kv_blocks=18, max_batch_size=8)
    outputs = [completion.token_ids for completion in engine.generate(prompts, PARAMS)]
    assert outputs == expected


def test_the_default_block_size(directory, prompts, expected):
    engine = _engine(directory, block_size=64)
    outputs = [completion.token_ids for completion in engine.generate(prompts, PARAMS)]
    assert outputs == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_kv_blocks": 20},
        {"num_kv_blocks": 20, "prefix_cache": False},
        {"prefill_max_tokens": 100},
        {"block_size": 7},
    ],
    ids=str,
)
def test_sequences_that_fill_every_position_of_the_model(directory, reference, prompts, options):
    """The last new token needs no position: one may follow a prompt of the model's length."""
    longest = reference.config.n_positions
    whole = (prompts[-3] + prompts[-4])[:longest]
    assert len(whole) == longest
    engine = _engine(directory, max_batch_size=4, **options)
    for missing in (0, 1, 5):
        prompt = whole[: longest - missing]
        params = SamplingParams(max_new_tokens=missing + 1, ignore_eos=True)
        expected = _continued(reference, prompt, missing + 1)
        # The second finds the first in the prefix cache, where there is one.
        for _ in range(2):
            (completion,) = engine.generate([prompt], params)
            assert completion.token_ids == expected
            engine.check_integrity()
    both = engine.generate([whole, prompts[0]], [SamplingParams(max_new_tokens=1), PARAMS])
    assert both[0].token_ids == _continued(reference, whole, 1)
    assert both[1].token_ids == _continued(reference, prompts[0], NEW_TOKENS)
