"""A cache of eight bits in the engine: its scales, what it computes, and what it finds again."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import GREEDY, tokens_of
from fp8_checkpoints import save_fp8
from safetensors.torch import load_file, save_file
from threaded_ranks import on_ranks

from engine import Completion, ConfigError, DeviceError, Engine, EngineConfig, SamplingParams
from engine.kv.blocks import BlockCopy
from engine.kv.memory import KVCache
from engine.models.decoder import Decoder
from engine.models.layers import Attend
from engine.models.random_weights import random_weights
from engine.models.registry import load_model, random_config
from engine.models.share import WHOLE, Share
from engine.parallel.group import Group
from engine.transport.staging import StagingBuffers
from engine.worker.cache_scales import cache_scales
from kernels.attention.eight_bits import rounded
from kernels.linear.fp8 import FP8, LARGEST

CPU = torch.device("cpu")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODELS = ("gpt2-tiny", "llama-tiny", "qwen3-tiny", "gemma-tiny")
PROMPT = [(37 * place) % 200 for place in range(150)]


def _model(name: str, share: Share = WHOLE, group: Group | None = None) -> Decoder:
    spec = random_config("random:" + name)
    weights = random_weights(spec, seed=0, device=CPU, dtype=torch.float32, share=share)
    return Decoder(share.spec(spec), weights, group)


def _engine(**options: Any) -> Engine:
    made = {"device": DEVICE, "dtype": "float32", "kv_cache_dtype": "fp8", "block_size": 16}
    return Engine(EngineConfig(**(made | options)))


def _attending(model: Decoder, change: Any) -> Attend:
    """Dense causal attention over keys and values that `change` has made of the model's own."""
    config = model.config

    def attend(
        layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        heads = (query, change(layer, 0, key), change(layer, 1, value))
        seen = torch.ones(len(query), len(key), dtype=torch.bool, device=query.device).tril()
        attended = F.scaled_dot_product_attention(
            *(one.transpose(0, 1)[None] for one in heads),
            attn_mask=seen.triu(1 - (config.window(layer) or len(key))),
            scale=config.attention_scale(layer),
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)

    return attend


def _logits(model: Decoder, change: Any) -> torch.Tensor:
    tokens, positions = torch.tensor(PROMPT), torch.arange(len(PROMPT))
    with torch.inference_mode():
        return model.logits(model.forward(tokens, positions, _attending(model, change)))


def _error(logits: torch.Tensor, exact: torch.Tensor) -> float:
    return float((logits - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", MODELS)
def test_scales_are_powers_of_two_with_room_and_always_the_same(name: str) -> None:
    model = _model(name)
    with torch.inference_mode():
        scales = cache_scales(model)
        assert torch.equal(cache_scales(model), scales)
    config = model.config
    assert scales.shape == (config.num_layers, 2, config.num_kv_heads)
    assert torch.equal(scales.log2(), scales.log2().round())
    largest = torch.zeros(scales.shape)

    def note(layer: int, place: int, heads: torch.Tensor) -> torch.Tensor:
        largest[layer, place] = heads.abs().amax((0, 2))
        return heads

    _logits(model, note)
    # Tokens that nothing was measured with fit, too.
    assert (2 * largest < scales * LARGEST).all()
    assert (16 * largest > scales * LARGEST).all()


@pytest.mark.parametrize("name", MODELS)
def test_ranks_measure_their_own_heads(name: str) -> None:
    with torch.inference_mode():
        whole = cache_scales(_model(name))

    def on_rank(group: Group) -> torch.Tensor:
        return cache_scales(_model(name, Share(group.rank, 2), group))

    assert torch.equal(torch.cat(on_ranks(2, on_rank), dim=2), whole)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_rounded_keys_and_values(name: str) -> None:
    """To the last bits, and no further from exact ones than noise of that size takes them."""
    model = _model(name)
    with torch.inference_mode():
        scales = cache_scales(model)

    def round_(layer: int, place: int, heads: torch.Tensor) -> torch.Tensor:
        of_heads = scales[layer, place]
        return rounded(heads, of_heads).float() * of_heads[:, None]

    def add_noise(layer: int, place: int, heads: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(2 * layer + place)
        size = (round_(layer, place, heads) - heads).square().mean().sqrt()
        return heads + size * torch.randn(heads.shape, generator=generator)

    exact = _logits(model, lambda layer, place, heads: heads)
    expected = _logits(model, round_)
    assert 0 < _error(expected, exact) < 1.5 * _error(_logits(model, add_noise), exact)
    # A prefill of the prompt but its last tokens, and a step for each of those.
    params = SamplingParams(max_new_tokens=1, logprobs=8, ignore_eos=True)
    with closing(_engine(model="random:" + name, device="cpu", max_batch_size=4)) as engine:
        for length in (1, 40, len(PROMPT)):
            completion = engine.generate([PROMPT[:length]], params)[0]
            assert completion.logprobs is not None
            tokens, logprobs = zip(*completion.logprobs[0].top, strict=True)
            wanted = expected[length - 1].log_softmax(0)
            found = torch.tensor(logprobs)
            torch.testing.assert_close(found, wanted[list(tokens)], rtol=0, atol=2e-3)
            torch.testing.assert_close(found, wanted.topk(8).values, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", MODELS)
def test_steps_chunks_and_cached_prefixes_give_the_tokens_of_a_whole_prefill(name: str) -> None:
    """What a prefill has written it reads as it is stored, so that it does not matter when."""
    prompts = [PROMPT[: 70 + 5 * place] for place in range(6)]
    shape: dict[str, Any] = {"model": "random:" + name, "max_batch_size": 4}
    params = replace(GREEDY, logprobs=2)
    with closing(_engine(**shape, prefix_cache=False)) as whole:
        expected = whole.generate(prompts, params)
        # The tokens of steps become part of a prompt.
        known = expected[0].token_ids[:9]
        _assert_same_until_a_tie(tokens_of(whole, [prompts[0] + known])[0], expected[0], after=9)
    with closing(_engine(**shape, prefill_max_tokens=24)) as engine:
        for _ in range(2):
            for found, one in zip(tokens_of(engine, prompts), expected, strict=True):
                _assert_same_until_a_tie(found, one)
        assert engine.load.num_cached_tokens > 0
        engine.check_integrity()


def _assert_same_until_a_tie(found: list[int], expected: Completion, after: int = 0) -> None:
    """Sums of another order may round a key to the other side, and so part tokens that tie."""
    for token, other, logprobs in zip(
        found, expected.token_ids[after:], expected.logprobs[after:], strict=False
    ):
        if token != other:
            (_, best), (_, second) = logprobs.top
            assert best - second < 0.02
            return


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fuse", [True, False])
def test_captured_steps_give_the_tokens_of_eager_ones(name: str, fuse: bool) -> None:
    """Fused and not, behind prefills of a captured size: others compute more rows at once."""
    prompts = [PROMPT[:64], PROMPT[64:128]]
    made: list[list[Completion]] = []
    for decode in ("eager", "graph"):
        options = {"dtype": "bfloat16", "decode": decode, "fuse": fuse, "block_size": 64}
        with closing(_engine(model="random:" + name, max_batch_size=2, **options)) as engine:
            params = replace(GREEDY, logprobs=2)
            made.append([engine.generate([prompt], params)[0] for prompt in prompts])
            engine.check_integrity()
    for eager, replayed in zip(*made, strict=True):
        _assert_same_until_a_tie(replayed.token_ids, eager)


def test_the_same_bytes_hold_twice_the_blocks_of_16_bits() -> None:
    shape: dict[str, Any] = {"model": "random:llama-tiny", "dtype": "bfloat16", "device": "cpu"}
    blocks = []
    for kind in ("auto", "fp8"):
        with closing(_engine(**shape, max_batch_size=512, kv_cache_dtype=kind)) as engine:
            blocks.append(engine.num_kv_blocks)
    assert blocks[1] == 2 * blocks[0]
    plain, eight = (
        KVCache(2, 5, 3, 16, 8, device=CPU, dtype=torch.float16, scales=scales)
        for scales in (None, torch.ones(2, 2, 3))
    )
    assert plain.num_bytes == 2 * eight.num_bytes
    assert plain.scales is None
    assert (eight.keys.dtype, eight.layer(1)[2].shape) == (FP8, (2, 3))


def test_blocks_are_copied_bit_for_bit() -> None:
    device = torch.device(DEVICE)
    scales = torch.ones(2, 2, 3, device=device)
    cache = KVCache(2, 5, 3, 16, 8, device=device, dtype=torch.float16, scales=scales)
    numbers = (torch.arange(cache.keys.numel()) % 251).to(torch.uint8).view(cache.keys.shape)
    cache.keys.view(torch.uint8).copy_(numbers)
    cache.values.view(torch.uint8).copy_(numbers + 3)
    cache.copy_blocks([BlockCopy(1, 4), BlockCopy(3, 0)], StagingBuffers(device))
    expected = numbers[:, [3, 1, 2, 3, 1]]
    assert torch.equal(cache.keys.view(torch.uint8).cpu(), expected)
    assert torch.equal(cache.values.view(torch.uint8).cpu(), expected + 3)


def test_answers_of_one_prompt_share_its_blocks_until_they_write(make_engine: Any) -> None:
    """`n` answers begin in a block that they share, of which each then has a copy."""
    params = SamplingParams(max_new_tokens=12, temperature=1.0, seed=3, n=3, ignore_eos=True)
    answers = []
    for prefix_cache in (True, False):
        options = {"kv_cache_dtype": "fp8", "prefix_cache": prefix_cache}
        engine = make_engine(model="random:llama-tiny", **options)
        answers.append([one.token_ids for one in engine.generate([PROMPT[:40]], params)])
        assert len({tuple(tokens) for tokens in answers[0]}) == 3
        engine.check_integrity()
    assert answers[0] == answers[1]


def test_values_beyond_the_scales_saturate() -> None:
    """A model whose keys and values are far larger than those measured goes on with finite ones."""
    name = "llama-tiny"
    model = _model(name)
    with torch.inference_mode():
        scales = cache_scales(model) / 1024
    with closing(_engine(model="random:" + name, device="cpu")) as engine:
        cache = engine._loop.worker.runner.cache
        assert cache.scales is not None
        with torch.inference_mode():
            cache.scales.copy_(scales)
        params = replace(GREEDY, logprobs=1)
        completion = engine.generate([PROMPT], params)[0]
        assert completion.finish_reason == "length"
        held = cache.keys.float()
        assert held.isfinite().all()
        assert float(held.abs().max()) == LARGEST


SCALES = {
    "compressed-tensors": ("self_attn.k_scale", "self_attn.v_scale"),
    "ModelOpt": ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    "older": ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
}


def _save_scales(directory: Path, names: tuple[str, str], scales: list[torch.Tensor]) -> None:
    """A checkpoint whose layers have these scales of keys and of values, times their number."""
    save_fp8(directory, "llama", "compressed channel")
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for layer in range(2):
        for name, scale in zip(names, scales, strict=True):
            tensors[f"model.layers.{layer}.{name}"] = scale * (layer + 1)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("spelling", SCALES)
@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_a_checkpoints_scales_are_taken(
    tmp_path: Path, spelling: str, shape: tuple[int, ...]
) -> None:
    scales = [torch.full(shape, 0.011), torch.full(shape, 0.3).bfloat16()]
    _save_scales(tmp_path, SCALES[spelling], scales)
    loaded = load_model(tmp_path, device=CPU).model.cache_scales
    assert loaded is not None
    of_first = torch.stack([scale.float().reshape(1).expand(2) for scale in scales])
    torch.testing.assert_close(loaded, torch.stack([of_first, 2 * of_first]), rtol=1e-2, atol=0)
    with closing(_engine(model=str(tmp_path), device="cpu")) as engine:
        assert torch.equal(engine._loop.worker.runner.cache.scales, loaded)
        assert len(tokens_of(engine, [PROMPT[:30]])[0]) == 20
    with closing(_engine(model=str(tmp_path), device="cpu", kv_cache_dtype="auto")) as engine:
        assert engine._loop.worker.runner.cache.keys.dtype == torch.float32


def test_each_rank_takes_the_scales_of_its_heads(tmp_path: Path) -> None:
    _save_scales(tmp_path, SCALES["ModelOpt"], [torch.tensor([0.1, 0.2]), torch.tensor(0.4)])
    for rank, scale in enumerate((0.1, 0.2)):
        loaded = load_model(tmp_path, device=CPU, share=Share(rank, 2), group=None)
        expected = torch.tensor([[scale], [0.4]])
        torch.testing.assert_close(loaded.model.cache_scales[0], expected)


@pytest.mark.parametrize(
    "scale",
    [torch.tensor(0.0), torch.tensor(-1.0), torch.tensor(float("nan")), torch.ones(5)],
    ids=["zero", "negative", "NaN", "five"],
)
def test_scales_that_cannot_be_are_measured_instead(tmp_path: Path, scale: torch.Tensor) -> None:
    _save_scales(tmp_path, SCALES["compressed-tensors"], [torch.tensor(0.1), scale])
    model = load_model(tmp_path, device=CPU).model
    assert model.cache_scales is None
    with torch.inference_mode():
        measured = cache_scales(model)
    assert torch.equal(measured.log2(), measured.log2().round())


# A model that finds one token again: each "needle" has a key and an answer, and a question has a
# key. Its one layer looks for the needle with the question's key and says its answer.
KEYS, ANSWERS, FILLERS = 16, 8, 112
NEEDLES, QUESTIONS = 0, KEYS * ANSWERS
FIRST_ANSWER = QUESTIONS + KEYS
VOCAB = FIRST_ANSWER + ANSWERS + FILLERS
LENGTH = 16384 if DEVICE == "cuda" else 4096


def _save_finder(directory: Path) -> None:
    """A Llama of one layer, two heads of queries and one of keys, by hand."""
    generator = torch.Generator().manual_seed(4)

    def codes(count: int, width: int) -> torch.Tensor:
        return torch.randn(count, width, generator=generator)

    dim, hidden = 64, 128
    key_codes, answer_codes = codes(KEYS, 32), codes(ANSWERS, 64)
    embedding = torch.zeros(VOCAB, hidden)
    for key in range(KEYS):
        embedding[QUESTIONS + key, 32:64] = key_codes[key]
        for answer in range(ANSWERS):
            embedding[NEEDLES + key * ANSWERS + answer, :32] = key_codes[key]
            embedding[NEEDLES + key * ANSWERS + answer, 64:] = answer_codes[answer]
    # Noise that looks like keys and answers.
    embedding[FIRST_ANSWER:, :32] = 0.5 * codes(ANSWERS + FILLERS, 32)
    embedding[FIRST_ANSWER:, 64:] = codes(ANSWERS + FILLERS, 64)
    # Pairs (i, i + 32) turn; the last 16 of them hardly do, at the base below.
    slow = torch.cat((torch.arange(16, 32), torch.arange(48, 64)))
    query, key = torch.zeros(2 * dim, hidden), torch.zeros(dim, hidden)
    value, out = torch.zeros(dim, hidden), torch.zeros(hidden, 2 * dim)
    for head in range(2):
        query[head * dim + slow, torch.arange(32, 64)] = 1.5
    key[slow, torch.arange(32)] = 1.5
    value[:, 64:] = torch.eye(dim)
    out[64:, :dim] = out[64:, dim:] = 2 * torch.eye(dim)
    head = torch.zeros(VOCAB, hidden)
    head[FIRST_ANSWER : FIRST_ANSWER + ANSWERS, 64:] = answer_codes
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": embedding,
        layer + "input_layernorm.weight": torch.ones(hidden),
        layer + "self_attn.q_proj.weight": query,
        layer + "self_attn.k_proj.weight": key,
        layer + "self_attn.v_proj.weight": value,
        layer + "self_attn.o_proj.weight": out,
        layer + "post_attention_layernorm.weight": torch.ones(hidden),
        layer + "mlp.gate_proj.weight": torch.zeros(64, hidden),
        layer + "mlp.up_proj.weight": torch.zeros(64, hidden),
        layer + "mlp.down_proj.weight": torch.zeros(hidden, 64),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": head,
    }
    save_file(
        {name: one.contiguous() for name, one in tensors.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": dim,
        "max_position_embeddings": LENGTH + 64,
        "rope_theta": 1e14,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config))


def test_a_token_from_far_back_is_found_as_with_a_cache_of_16_bits(tmp_path: Path) -> None:
    """Sixteen needles that differ in their keys, and a question for each."""
    _save_finder(tmp_path)
    generator = torch.Generator().manual_seed(9)
    context = torch.randint(FIRST_ANSWER, VOCAB, (LENGTH,), generator=generator).tolist()
    answers = torch.randint(ANSWERS, (KEYS,), generator=generator).tolist()
    for key, answer in enumerate(answers):
        context[7 + key * (LENGTH // KEYS)] = NEEDLES + key * ANSWERS + answer
    questions = [[*context, QUESTIONS + key] for key in range(KEYS)]
    found = {}
    for kind in ("auto", "fp8"):
        options = {"dtype": "bfloat16", "kv_cache_dtype": kind, "block_size": 64}
        with closing(
            _engine(model=str(tmp_path), max_batch_size=2, num_kv_blocks=LENGTH // 32, **options)
        ) as engine:
            found[kind] = tokens_of(engine, questions, replace(GREEDY, max_new_tokens=2))
    expected = [FIRST_ANSWER + answer for answer in answers]
    assert [tokens[0] for tokens in found["auto"]] == expected
    assert [tokens[0] for tokens in found["fp8"]] == expected


def test_other_words_for_the_option_are_refused() -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype is 'int8'; it must be one of auto, fp8"):
        EngineConfig(kv_cache_dtype="int8")
    with pytest.raises(ConfigError, match="kv_cache_dtype is None"):
        EngineConfig(kv_cache_dtype=None)


def test_gpus_that_cannot_round_to_eight_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.running.build.resolve_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(DeviceError, match=r"cuda:0 has the compute capability 8\.0.* use 'auto'"):
        Engine(EngineConfig(kv_cache_dtype="fp8"))
