"""The named workloads are those of the write-ups, and have the floors of the anchors."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
import torch

from asv_bench.errors import Refused
from asv_bench.memory import Bandwidth, GPT2Shape, read_bandwidth, role_bytes
from asv_bench.workloads.named import WORKLOADS, workload_named
from engine.models.registry import RANDOM_CONFIGS
from engine.models.spec import DecoderSpec
from engine.models.weights import parameter_shapes

SHAPES = {  # requests, batch, lengths of the first prompts, new tokens, mean context, waves
    "scheduler": (64, 64, [1, 1], 512, 257.0, 1),
    "streaming": (128, 128, [1, 4], 128, 66.5, 1),
    "streaming-small": (128, 8, [1, 4], 128, 66.5, 16),
    "wide": (256, 256, [128, 128], 256, 256.0, 1),
    "single": (1, 1, [1], 512, 257.0, 1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shape(name: str) -> None:
    requests, batch, lengths, new_tokens, mean_context, waves = SHAPES[name]
    workload = workload_named(name)
    prompts = workload.prompts(50257)
    assert len(prompts) == workload.num_requests == requests
    assert [len(prompt) for prompt in prompts[:2]] == lengths
    assert (workload.batch_size, workload.new_tokens) == (batch, new_tokens)
    assert (workload.mean_context, workload.steps) == (mean_context, waves * new_tokens)
    params = workload.sampling_params()
    assert (params.max_new_tokens, params.ignore_eos, params.temperature) == (new_tokens, True, 0)


def test_prompts_fit_the_vocabulary_never_change_and_differ_where_they_should() -> None:
    for workload in WORKLOADS.values():
        prompts = workload.prompts(64)
        assert all(0 <= token_id < 64 for prompt in prompts for token_id in prompt)
        assert prompts == workload.prompts(64)
    assert len({tuple(prompt[:64]) for prompt in WORKLOADS["wide"].prompts(50257)}) == 256


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_cache_holds_every_resident_sequence_at_full_length(name: str) -> None:
    for workload in (WORKLOADS[name], WORKLOADS[name].quick()):
        config = workload.engine_config("random:gpt2-tiny", decode="eager")
        assert (config.decode, config.prefix_cache, config.admission) == ("eager", False, "fifo")
        assert config.max_batch_size == workload.batch_size
        assert config.num_kv_blocks is not None
        lengths = sorted(map(sum, workload.requests))
        needed = sum(-(-length // config.block_size) for length in lengths[-workload.resident :])
        assert config.num_kv_blocks > needed
        assert config.max_model_len == max(workload.prompt_lengths) + workload.new_tokens


@pytest.mark.parametrize("name", WORKLOADS)
def test_quick_keeps_the_shape(name: str) -> None:
    full, quick = WORKLOADS[name], WORKLOADS[name].quick()
    assert quick.name == f"{name}-quick"
    assert quick.num_requests * quick.new_tokens <= 512
    assert (quick.waves == 1) == (full.waves == 1)
    assert quick.unique_prompts == full.unique_prompts
    assert len(quick.prompt_lengths) == len(full.prompt_lengths)


@pytest.mark.parametrize("sizes", [(10**9, 10**9, None, None), (None, None, 10**9, None)])
def test_what_no_memory_holds_is_refused(sizes: tuple[int | None, ...]) -> None:
    with pytest.raises(Refused, match="at most 100,000,000 can be held"):
        WORKLOADS["scheduler"].shaped(*sizes)


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(Refused, match="no workload 'huge'; there are scheduler, streaming"):
        workload_named("huge")


def test_mixed_is_the_public_benchmark_of_nano_vllm() -> None:
    mixed = WORKLOADS["mixed"]
    drawing = Random(0)
    prompts = [
        [drawing.randint(0, 10000) for _ in range(drawing.randint(100, 1024))] for _ in range(256)
    ]
    new_lengths = [drawing.randint(100, 1024) for _ in range(256)]
    assert [len(prompt) for prompt in mixed.prompts(151_936)] == [*map(len, prompts)]
    submitted = [mixed.sampling_params(index).max_new_tokens for index in range(256)]
    assert submitted == new_lengths
    assert sum(submitted) == 133_966
    # The floor reads what is cached: nothing for a sequence that has ended.
    attended = sum(
        len(prompt) + step
        for prompt, new in zip(prompts, new_lengths, strict=True)
        for step in range(1, new)
    )
    assert mixed.mean_context * 256 * (mixed.steps - 1) == pytest.approx(attended)
    settings = mixed.engine_settings()
    room = settings["num_kv_blocks"] * settings["block_size"]
    assert room < 1.2 * sum(map(sum, mixed.requests))


def test_families_are_measured_with_their_models() -> None:
    large = WORKLOADS["qwen3-8b-256"]
    assert large.default_model("cuda") == "random:qwen3-8b"
    assert large.default_dtype("cuda:1") == "bfloat16"
    assert large.default_model("cpu") == "random:qwen3-tiny"
    assert large.default_dtype("cpu") == "auto"
    assert (large.num_requests, large.prompt_lengths, large.new_tokens) == (256, (128,), 1024)
    assert WORKLOADS["wide"].default_model("cuda") == "random:gpt2"


@pytest.mark.parametrize(
    "config",
    [
        *RANDOM_CONFIGS.values(),
        replace(RANDOM_CONFIGS["llama-tiny"], attention_in_bias=True),
        replace(RANDOM_CONFIGS["qwen3-tiny"], attention_out_bias=True, feed_forward_bias=True),
    ],
    ids=lambda config: f"{config.family}-{config.num_layers}-{config.hidden_size}",
)
def test_weights_are_those_of_a_model_without_its_embedding_lookups(config: DecoderSpec) -> None:
    lookups = {"position_embedding.weight"}
    if not config.tied_head:
        lookups.add("token_embedding.weight")
    read = [shape for name, shape in parameter_shapes(config).items() if name not in lookups]
    found = role_bytes(config, dtype="float16", batch_size=1, mean_context=0.0)
    assert sum(found.values()) == 2 * sum(map(math.prod, read))
    # In eight bits a weight of a layer's linear map is one byte, whether stored so or rounded.
    of_maps = [
        math.prod(shape)
        for name, shape in parameter_shapes(config).items()
        if name.startswith("blocks.") and len(shape) == 2
    ]
    rounded = {"quantization": "fp8", "kv_cache_dtype": "auto"}
    smaller = role_bytes(config, dtype="float16", batch_size=1, mean_context=0.0, options=rounded)
    assert sum(found.values()) - sum(smaller.values()) == sum(of_maps) > 0


def test_layers_with_a_window_read_no_more_than_it() -> None:
    config, each = RANDOM_CONFIGS["gemma-3-1b"], {"dtype": "bfloat16", "batch_size": 1}
    short, window, long = (
        sum(role_bytes(config, mean_context=context, **each).values())
        for context in (0.0, 512.0, 5120.0)
    )
    of_all = window - short
    assert long - short == pytest.approx(of_all * (22 + 4 * 10) / 26)


def test_keys_and_values_in_eight_bits_are_half_of_those_in_sixteen() -> None:
    config, sizes = RANDOM_CONFIGS["qwen3-tiny"], {"batch_size": 3, "mean_context": 50.0}
    of_cache = [
        role_bytes(config, dtype="bfloat16", **sizes, options=options)
        for options in ({}, {"kv_cache_dtype": "fp8"})
    ]
    saved = 3 * 50 * 2 * config.num_layers * config.num_kv_heads * config.head_dim
    assert sum(of_cache[0].values()) - sum(of_cache[1].values()) == saved


H200, H100 = 4.42e12, 3.06e12
"""Bytes a second that were measured on the hosts of the anchors."""


ANCHORS = {
    H200: {"scheduler": 0.19, "streaming": 0.13, "wide": 0.60, "single": 0.06},
    H100: {
        **{"llama-3.2-1b-1": 0.81, "llama-3.2-1b-64": 0.98, "llama-3.2-1b-256": 1.51},
        **{"qwen3-8b-1": 4.95, "qwen3-8b-64": 6.9, "qwen3-8b-256": 12.8},
        **{"qwen3-0.6b-1": 0.39, "qwen3-0.6b-64": 1.0},
    },
}


@pytest.mark.parametrize("speed", ANCHORS)
def test_floors_are_the_anchors(speed: float) -> None:
    for name, anchor in ANCHORS[speed].items():
        workload = WORKLOADS[name]
        model = workload.default_model("cuda").removeprefix("random:")
        sizes = GPT2Shape() if model == "gpt2" else RANDOM_CONFIGS[model]
        found = workload.floor_ms(sizes, "float16", Bandwidth(speed, 1, [1.0]), {})
        tolerance = 0.005 if speed == H200 else 0.03 * anchor
        assert found == pytest.approx(anchor, abs=tolerance), name


def test_what_has_no_floor_is_refused() -> None:
    with pytest.raises(Refused, match="float32, float16, bfloat16"):
        role_bytes(GPT2Shape(), dtype="int8", batch_size=8, mean_context=10.0)
    assert read_bandwidth("cpu") is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_bandwidth_of_a_gpu_is_believable() -> None:
    measured = read_bandwidth("cuda")
    assert measured is not None
    assert 1e11 < measured.bytes_per_second < 2e13
    assert len(measured.pass_ms) >= 20
