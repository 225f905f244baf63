"""Fused decoding in the whole engine on a GPU, against unfused decoding and full precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from engine import Engine, EngineConfig, SamplingParams
from engine.models.decoder import Decoder
from engine.models.gpt2 import gpt2
from engine.models.random_weights import random_weights
from engine.models.registry import RANDOM_CONFIGS

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: run `nox -s kernels` on one"
)

NEW_TOKENS = 40
WIDE = replace(
    RANDOM_CONFIGS["qwen3-8b"], vocab_size=2048, max_positions=1024, num_layers=2, tied_head=True
)
GREEDY = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)


def _engine(**options: object) -> Engine:
    defaults = {"device": "cuda", "dtype": "float16", "max_batch_size": 16}
    return Engine(EngineConfig(**(defaults | options)))


def _outputs(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    outputs = [completion.token_ids for completion in engine.generate(prompts, GREEDY)]
    engine.check_integrity()
    return outputs


def _logits(model: Decoder, token_ids: list[int]) -> torch.Tensor:
    """Scores after each of one sequence's tokens, float32 [T, V], computed all at once."""

    def attend(
        layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        heads = (one.transpose(0, 1) for one in (query, key, value))
        scale = model.config.attention_scale(layer)
        attended = F.scaled_dot_product_attention(
            *heads, is_causal=True, scale=scale, enable_gqa=True
        )
        return attended.transpose(0, 1)

    ids = torch.tensor(token_ids, device=model.device)
    positions = torch.arange(len(ids), device=model.device)
    with torch.inference_mode():
        return model.logits(model.forward(ids, positions, attend)).float()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "qwen3-tiny", "wide"])
def test_tokens_differ_only_where_rounding_decides(
    prompts: list[list[int]],
    name: str,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Fused output is the unfused path's, but for near ties; says how many there were.

    The wide model has maps that follow the table's rule for large ones, in every batch.
    """
    monkeypatch.setitem(RANDOM_CONFIGS, "wide", WIDE)
    options = {"model": f"random:{name}", "dtype": dtype}
    fused_engine, plain_engine = _engine(**options), _engine(**options, fuse=False)
    assert fused_engine._loop.worker.runner.fused is not None
    assert plain_engine._loop.worker.runner.fused is None
    fused, plain = _outputs(fused_engine, prompts), _outputs(plain_engine, prompts)
    model = plain_engine.model
    weights = random_weights(model.config, seed=0, device=model.device, dtype=model.dtype)
    exact = Decoder(model.config, {name: one.float() for name, one in weights.items()})
    ties = 0
    for prompt, ours, theirs in zip(prompts, fused, plain, strict=True):
        if ours == theirs:
            continue
        first = next(i for i in range(NEW_TOKENS) if ours[i] != theirs[i])
        ties += 1
        known = prompt + theirs[:first]
        truth = _logits(exact, known)[-1]
        bound = 2 * float((_logits(model, known)[-1] - truth).abs().max())
        assert float(truth.max() - truth[[ours[first], theirs[first]]].min()) <= bound
    if dtype == "float16":
        assert ties <= len(prompts) // 3
    with capsys.disabled():
        parted = f"{ties} of {len(prompts)} sequences part at a near tie; the rest equal"
        print(f"\n{name}, {dtype}: {parted}")


@pytest.mark.parametrize("width", [1024, 1280, 1600])
def test_models_as_wide_as_the_larger_gpt2s_decode_fused(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block of each, in every bucket up to 256 rows: first tokens are those of full precision.

    But where two lie closer than half precision tells apart.
    """
    config = gpt2(
        vocab_size=1000,
        max_positions=128,
        num_layers=1,
        num_heads=width // 64,
        hidden_size=width,
        inner_size=4 * width,
        eos_token_ids=(),
    )
    monkeypatch.setitem(RANDOM_CONFIGS, "wide", config)
    engine = _engine(model="random:wide", max_batch_size=256, num_kv_blocks=600)
    weights = random_weights(config, seed=0, device=engine.device, dtype=torch.float16)
    exact = Decoder(config, {name: one.float() for name, one in weights.items()})
    for rows in (1, 2, 5, 64, 100, 128, 144, 256):
        prompts = [[(7 * row + i) % 999 for i in range(3)] for row in range(rows)]
        for prompt, tokens in zip(prompts, _outputs(engine, prompts), strict=True):
            truth = _logits(exact, prompt)[-1]
            assert float(truth.max() - truth[tokens[0]]) < 0.05, (rows, prompt)


def test_graphs_and_launches_one_by_one_agree(prompts: list[list[int]]) -> None:
    assert _outputs(_engine(decode="graph"), prompts) == _outputs(_engine(decode="eager"), prompts)


def test_runs_repeat(prompts: list[list[int]]) -> None:
    engine = _engine(prefix_cache=False)
    first = _outputs(engine, prompts)
    assert all(_outputs(engine, prompts) == first for _ in range(3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("fuse", [True, False])
def test_a_greedy_requests_tokens_do_not_depend_on_who_samples_beside_it(
    prompts: list[list[int]], dtype: str, fuse: bool
) -> None:
    engine = _engine(dtype=dtype, fuse=fuse, prefix_cache=False)
    alike = _outputs(engine, prompts)
    for others in (0, 1):
        params = [
            SamplingParams(
                max_new_tokens=NEW_TOKENS, temperature=0.9 * (place % 2 == others), ignore_eos=True
            )
            for place in range(len(prompts))
        ]
        mixed = [completion.token_ids for completion in engine.generate(prompts, params)]
        assert mixed[1 - others :: 2] == alike[1 - others :: 2]
        assert mixed[others::2] != alike[others::2]


def test_greedy_rows_among_sampling_ones_give_valid_tokens(prompts: list[list[int]]) -> None:
    """Steps draw or do not, as a sampling request comes and goes."""
    engine = _engine()
    params = [
        SamplingParams(max_new_tokens=5 + 3 * i, temperature=0.8 * (i % 3 == 0), ignore_eos=True)
        for i in range(len(prompts))
    ]
    outputs = engine.generate(prompts, params)
    assert [len(one.token_ids) for one in outputs] == [one.max_new_tokens for one in params]
    engine.check_integrity()


def test_full_precision_and_other_activations_take_the_unfused_path() -> None:
    assert _engine(dtype="float32")._loop.worker.runner.fused is None
