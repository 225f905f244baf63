"""Ranks on GPUs: captured graphs, symmetric memory, half precision, and a rank that is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from engine_cases import GREEDY
from gpt2_checkpoints import logits_of

from engine import Engine, EngineConfig, RankError, SamplingParams
from engine.models.decoder import Decoder
from engine.models.random_weights import random_weights
from engine.models.registry import random_config

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two CUDA GPUs: run `nox -s kernels` there"
)

MODELS = ["random:gpt2-tiny", "random:llama-tiny", "random:qwen3-tiny"]
LONG = SamplingParams(max_new_tokens=64, ignore_eos=True)
SAMPLED = SamplingParams(max_new_tokens=20, ignore_eos=True, temperature=0.9, top_p=0.9, seed=3)


def _engine(ranks: int, **options: object) -> Engine:
    return Engine(EngineConfig(device="cuda", tensor_parallel_size=ranks, **options))


@pytest.mark.parametrize("decode", ["graph", "eager"])
@pytest.mark.parametrize("model", MODELS)
def test_tokens_are_those_of_one_gpu(model, decode, prompts):
    options = {"model": model, "dtype": "float32", "decode": decode, "block_size": 16}
    params = [(GREEDY, SAMPLED)[place % 2] for place in range(len(prompts))]
    found = []
    for ranks in (1, 2):
        engine = _engine(ranks, **options)
        found.append([one.token_ids for one in engine.generate(prompts, params)])
        engine.check_integrity()
        engine.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", MODELS)
def test_as_many_tokens_are_the_likeliest_as_on_one_gpu(model, dtype, prompts):
    """By the same weights in float32, given the same tokens before."""
    shares = []
    for ranks in (1, 2):
        engine = _engine(ranks, model=model, dtype=dtype)
        assert engine._loop.worker.runner.fused is not None
        found = [one.token_ids for one in engine.generate(prompts, LONG)]
        # Captured draws, and twice the same.
        drawn = [engine.generate(prompts, SAMPLED) for _ in range(2)]
        assert [one.token_ids for one in drawn[0]] == [one.token_ids for one in drawn[1]]
        engine.close()
        shares.append(_share_of_likeliest(model, dtype, prompts, found))
    assert shares[1] > shares[0] - 0.03
    assert shares[0] > 0.7


def _share_of_likeliest(
    model: str, dtype: str, prompts: list[list[int]], found: list[list[int]]
) -> float:
    spec, device = random_config(model), torch.device("cuda")
    weights = random_weights(spec, seed=0, device=device, dtype=getattr(torch, dtype))
    exact = Decoder(spec, {name: one.float() for name, one in weights.items()})
    hits, count = 0, 0
    with torch.inference_mode():
        for prompt, tokens in zip(prompts, found, strict=True):
            fed = torch.tensor(prompt + tokens[:-1], device="cuda")
            likeliest = logits_of(exact, fed)[len(prompt) - 1 :].argmax(-1).tolist()
            hits += sum(one == other for one, other in zip(likeliest, tokens, strict=True))
            count += len(tokens)
    return hits / count


def test_a_rank_that_is_killed_ends_the_engine_and_frees_the_gpu(prompts):
    engine = _engine(2, model="random:llama-tiny")
    process = engine.rank_memory()[1].process

    def kill() -> None:
        time.sleep(0.5)
        os.kill(process, signal.SIGKILL)

    threading.Thread(target=kill).start()
    began = time.monotonic()
    with pytest.raises(RankError, match=rf"Rank 1 \(process {process}\) was killed by signal 9"):
        engine.generate(prompts * 500, LONG)
    assert time.monotonic() - began < 60
    del engine
    # The device waits for nobody any more.
    torch.cuda.synchronize()
    again = _engine(2, model="random:llama-tiny")
    assert len(again.generate(prompts, GREEDY)) == len(prompts)
    again.close()


LEAVING = """
from engine import Engine, EngineConfig, SamplingParams
engine = Engine(EngineConfig(model="random:llama-tiny", device="cuda", tensor_parallel_size=2))
engine.generate([[1, 2, 3]], SamplingParams(max_new_tokens=40, ignore_eos=True))
"""


def test_a_program_that_does_not_close_its_engine_ends():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", LEAVING], env=environment, timeout=90, check=True)


def test_each_gpu_holds_its_part():
    engine = _engine(2, model="random:qwen3-0.6b", max_model_len=1024)
    first, second = engine.rank_memory()
    assert (first.device, second.device) == ("cuda:0", "cuda:1")
    assert first.cache == second.cache
    assert second.peak >= second.cache + second.weights
    engine.close()
