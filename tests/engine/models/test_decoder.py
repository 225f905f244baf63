"""Decoders of every family: fit for a CUDA graph, merged as their checkpoints say, and exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_checkpoints import TINY, save_reference
from gpt2_checkpoints import logits_of
from torch.utils._python_dispatch import TorchDispatchMode

from engine.errors import ModelError
from engine.fused.weights import can_fuse, has_fused_parts
from engine.models.decoder import Decoder
from engine.models.layers import FeedForward, RMSNorm
from engine.models.random_weights import random_weights
from engine.models.registry import RANDOM_CONFIGS, load_model
from engine.models.rotary import Rotary
from engine.models.spec import DecoderSpec
from kernels.attention.rotation import HeadRotation

CPU = torch.device("cpu")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
TINY_MODELS = ("llama-tiny", "qwen3-tiny", "gemma-tiny")


def _decoder(name: str, dtype: torch.dtype = torch.float32) -> Decoder:
    config = RANDOM_CONFIGS[name]
    return Decoder(config, random_weights(config, seed=0, device=CPU, dtype=dtype))


class _Operations(TorchDispatchMode):
    """Collects the operations that reach the device; a cast counts where it changes the device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None):
        kwargs = kwargs or {}
        name = operation.overloadpacket._qualified_op_name
        if name != "aten::_to_copy" or kwargs.get("device") is not None:
            self.names.add(name)
        return operation(*args, **kwargs)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_forward_can_be_captured(name: str) -> None:
    """No value is read back, no tensor comes from the host, no shape hangs on a value."""
    model = _decoder(name, torch.float16)
    token_ids = positions = torch.arange(5, dtype=torch.int32)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        assert q.dtype == k.dtype == v.dtype == torch.float16
        assert q.stride(2) == k.stride(2) == v.stride(2) == 1
        assert k.shape[1] == v.shape[1] == model.config.num_kv_heads
        return q

    with torch.inference_mode(), _Operations() as operations:
        model.logits(model.forward(token_ids, positions, attend))
    assert "aten::embedding" in operations.names
    uncapturable = ("_local_scalar_dense", "lift_fresh", "_to_copy", "scalar_tensor", "nonzero")
    assert not {f"aten::{name}" for name in uncapturable} & operations.names


@pytest.mark.parametrize("name", ["gpt2-tiny", *TINY_MODELS])
def test_kept_states_are_those_of_all_tokens_and_the_last_block_works_for_no_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _decoder(name)
    token_ids, positions = torch.tensor([5, 6, 7, 5, 9]), torch.tensor([0, 1, 2, 0, 1])
    attended: list[int] = []
    mapped: list[int] = []

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        attended.append(len(k))
        return q.cumsum(0)

    def counted(self: FeedForward, x: torch.Tensor) -> torch.Tensor:
        mapped.append(len(x))
        return map_forward(self, x)

    map_forward = FeedForward.__call__
    monkeypatch.setattr(FeedForward, "__call__", counted)
    kept = torch.tensor([4, 2, 4], dtype=torch.int32)
    states = model.forward(token_ids, positions, attend, kept)
    layers = model.config.num_layers
    assert attended == [5] * layers
    assert mapped == [5] * (layers - 1) + [3]
    torch.testing.assert_close(states, model.forward(token_ids, positions, attend)[kept])


@pytest.mark.parametrize("is_folded", [False, True], ids=["apart", "folded"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "gemma3_text"])
def test_half_precision_errs_no_more_than_transformers(
    model_type: str, device: str, dtype: torch.dtype, is_folded: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 6, "head_dim": 32}
    if model_type == "gemma3_text":
        options["sliding_window"] = 20
    reference = save_reference(tmp_path, model_type, **options).to(device)
    token_ids = torch.randint(211, (96,), generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        theirs = reference.to(dtype)(token_ids[None]).logits[0].double()
        exact = save_reference(tmp_path, model_type, **options).double().to(device)
        truth = exact(token_ids[None]).logits[0]
    ours = load_model(tmp_path, device=torch.device(device), dtype=dtype).model
    if is_folded:
        ours.fold_norms()
    error = logits_of(ours, token_ids).double() - truth
    assert error.norm() <= 1.5 * (theirs - truth).norm()


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", TINY_MODELS)
def test_norms_are_folded_in_place_and_once(name: str, is_tied: bool) -> None:
    config = replace(RANDOM_CONFIGS[name], tied_head=is_tied, feed_forward_bias=True)
    weights = random_weights(config, seed=0, device=CPU, dtype=torch.float32)
    model = Decoder(config, weights)
    token_ids = torch.arange(0, 90, 3)
    before = logits_of(model, token_ids)
    for _ in range(2):
        model.fold_norms()
        torch.testing.assert_close(logits_of(model, token_ids), before, rtol=1e-4, atol=1e-4)
    for layer, block in enumerate(model.blocks):
        assert block.attention.norm.weight is None
        assert block.feed_forward.norm.weight is None
        for part, linear in (
            ("attention_in", block.attention.into),
            ("feed_forward_in", block.feed_forward.into),
        ):
            whole = weights[f"blocks.{layer}.{part}.weight"]
            assert linear.weight.data_ptr() == whole.data_ptr()
    assert (model.final_norm.weight is None) == (not is_tied)
    assert torch.equal(model.token_embedding, weights["token_embedding.weight"])


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_parts_of_one_map_lie_one_after_another(model_type: str, tmp_path: Path) -> None:
    reference = save_reference(tmp_path, model_type, head_dim=16)
    model = load_model(tmp_path, device=CPU).model
    layer, block = reference.model.layers[1], model.blocks[1]
    attention, mlp = layer.self_attn, layer.mlp
    qkv = [one.weight for one in (attention.q_proj, attention.k_proj, attention.v_proj)]
    assert torch.equal(block.attention.into.weight, torch.cat(qkv))
    gated = [mlp.gate_proj.weight, mlp.up_proj.weight]
    assert torch.equal(block.feed_forward.into.weight, torch.cat(gated))
    for map_ in (block.attention.into, block.feed_forward.into):
        assert map_.weight.is_contiguous()
        assert map_.bias is None
    assert (block.attention.head_norm is not None) == (model_type == "qwen3")


def test_heads_are_turned_by_their_positions_alone() -> None:
    """Scores of turned queries and keys depend on how far apart they are."""
    table = Rotary(100.0).table(64, 8, CPU)
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 1, 8, generator=generator) for _ in range(2))

    def score(query_at: int, key_at: int) -> torch.Tensor:
        turned = [
            HeadRotation(torch.tensor([place]), table).heads(head.clone())
            for place, head in ((query_at, query), (key_at, key))
        ]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(0, 0), (query * key).sum())
    torch.testing.assert_close(score(9, 4), score(60, 55), rtol=1e-4, atol=1e-5)
    assert not torch.isclose(score(9, 4), score(9, 5), rtol=1e-2)


def test_norms_before_the_first_block_and_after_a_residual_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    x, change, weight = (
        torch.randn(*shape, generator=generator) for shape in ((3, 8), (3, 8), (8,))
    )
    norm = RMSNorm(weight, 1e-5)
    total, normed = norm.after(x, change)
    assert torch.equal(total, x + change)
    torch.testing.assert_close(normed, norm(total))


@pytest.mark.parametrize("name", RANDOM_CONFIGS)
def test_every_built_in_shape_but_gemmas_has_fused_parts(name: str) -> None:
    assert has_fused_parts(RANDOM_CONFIGS[name]) == (not name.startswith("gemma"))


@pytest.mark.parametrize(
    "change",
    [
        {"activation": "relu"},
        {"hidden_size": 96},
        {"inner_size": 96},
        {"head_dim": 24},
        {"head_dim": 512},
        {"sliding_window": 512},
        {"local_rotary": Rotary(100.0)},
        {"output_norms": True},
        {"scaled_embedding": True},
    ],
    ids=str,
)
def test_parts_without_fused_kernels_run_without(change: dict[str, Any]) -> None:
    config = RANDOM_CONFIGS["qwen3-tiny"]
    assert has_fused_parts(replace(config, attention_in_bias=True, feed_forward_bias=True))
    assert not has_fused_parts(replace(config, **change))


def test_families_are_fused_on_a_gpu_only() -> None:
    assert not can_fuse(_decoder("llama-tiny", torch.float16))


def test_head_norms_without_rotary_positions_are_refused() -> None:
    sizes = {name: 2 for name in ("vocab_size", "max_positions", "num_layers", "hidden_size")}
    heads = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 2, "inner_size": 2}
    with pytest.raises(ModelError, match="only before they are turned"):
        DecoderSpec(
            family="llama",
            **sizes,
            **heads,
            norm="rms",
            norm_epsilon=1e-5,
            activation="silu",
            qk_norm=True,
        )


def test_the_cache_holds_heads_of_keys_not_of_queries(tmp_path: Path) -> None:
    from engine import ConfigError, Engine, EngineConfig

    save_reference(tmp_path, "qwen3", head_dim=16)
    blocks, block_size = 10**9, 16
    with pytest.raises(ConfigError) as caught:
        Engine(EngineConfig(model=tmp_path, device="cpu", num_kv_blocks=blocks, block_size=16))
    of_token = 2 * TINY["num_hidden_layers"] * TINY["num_key_value_heads"] * 16 * 4
    tebibytes = blocks * block_size * of_token / 2**40
    assert f"would take {int(tebibytes * 10) / 10} TiB" in str(caught.value)
