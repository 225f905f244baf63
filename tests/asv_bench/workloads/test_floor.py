"""Floors against the anchors, and weights against a real model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.memory.bandwidth import Bandwidth, read_bandwidth, require_bandwidth
from asv_bench.memory.floor import GPT2Shape, ModelConfig, step_bytes
from asv_bench.workloads.named import WORKLOADS
from engine.models.registry import RANDOM_CONFIGS
from engine.models.spec import DecoderSpec
from engine.models.weights import parameter_shapes


def read_bytes(config: ModelConfig, tokens: float = 0.0) -> float:
    """Of a step of one sequence in half precision: the weights, and those of cached tokens."""
    return step_bytes(config, dtype="float16", batch_size=1, mean_context=tokens)


def test_bytes_of_gpt2_in_half_precision() -> None:
    weights = read_bytes(GPT2Shape())
    assert weights == pytest.approx(247e6, rel=0.002)
    assert read_bytes(GPT2Shape(), 1.0) - weights == 36_864
    # Of heads that queries share, the cache holds one.
    qwen = RANDOM_CONFIGS["qwen3-8b"]
    assert read_bytes(qwen, 1.0) - read_bytes(qwen) == 2 * 36 * 2 * 8 * 128


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
    assert read_bytes(config) == 2 * sum(map(math.prod, read))


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
        found = workload.floor_ms(sizes, "float16", Bandwidth(speed, 1, [1.0]))
        tolerance = 0.005 if speed == H200 else 0.03 * anchor
        assert found == pytest.approx(anchor, abs=tolerance), name


def test_type_doubles_the_bytes_and_an_unknown_one_is_refused() -> None:
    def read(dtype: str) -> float:
        return step_bytes(GPT2Shape(), dtype=dtype, batch_size=8, mean_context=10.0)

    assert read("float32") == 2 * read("bfloat16")
    with pytest.raises(Refused, match="float32, float16, bfloat16"):
        read("int8")


def test_no_bandwidth_is_claimed_on_a_cpu() -> None:
    assert read_bandwidth("cpu") is None
    with pytest.raises(MeasurementFailed, match="must be a CUDA device"):
        require_bandwidth("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_bandwidth_of_a_gpu_is_believable() -> None:
    measured = read_bandwidth("cuda")
    assert measured is not None
    assert 1e11 < measured.bytes_per_second < 2e13
    assert len(measured.pass_ms) >= 20
