"""What is set aside for steps holds what they take, and leaves room for the cache that it must."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import engine.kv.memory as kv_memory
from engine.errors import ConfigError
from engine.fused.weights import fused_blocks, fused_head
from engine.kv.memory import KVCache, choose_num_blocks
from engine.models.decoder import Decoder
from engine.models.random_weights import random_weights
from engine.models.registry import RANDOM_CONFIGS
from engine.models.weights import parameter_shapes
from engine.worker.decode_graphs import bucket_sizes
from engine.worker.working_memory import (
    _ROWS_A_BUCKET,
    _SMALL_BUCKETS,
    WorkingMemory,
    working_memory,
)

GIB = 1 << 30
CUDA, CPU = torch.device("cuda"), torch.device("cpu")
TOKENS = 512


class _LiveBytes(TorchDispatchMode):
    """The most bytes that tensors made within held at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # What comes from outside is no scratch, though an operation in place returns it.
        self._add(args, counts=False)
        result = func(*args, **(kwargs or {}))
        self._add(result)
        return result

    def _add(self, tensors: Any, *, counts: bool = True) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._add_storage(storage, storage.nbytes() if counts else 0)

    def _add_storage(self, storage: torch.UntypedStorage, size: int) -> None:
        place = storage.data_ptr()
        if not storage.nbytes() or place in self._known:
            return
        self._known.add(place)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, place, size)

    def _drop(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.live -= size


def _memory(name: str, **changes: Any) -> WorkingMemory:
    settings = {
        "dtype": torch.bfloat16,
        "max_batch_size": 256,
        "max_model_len": 1152,
        "prefill_max_tokens": 8192,
        "uses_graphs": True,
        "fuses": True,
    }
    return working_memory(RANDOM_CONFIGS[name], **(settings | changes))


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "qwen3-tiny", "gemma-tiny"])
def test_the_layers_hold_no_more_than_is_set_aside(name: str) -> None:
    spec = RANDOM_CONFIGS[name]
    model = Decoder(spec, random_weights(spec, seed=0, device=CPU, dtype=torch.float32))
    tokens = torch.zeros(TOKENS, dtype=torch.int32)
    with torch.inference_mode(False), torch.no_grad(), _LiveBytes() as held:
        model.forward(tokens, tokens, lambda layer, q, k, v: q.new_empty(q.shape))
    aside = _memory(
        name,
        dtype=torch.float32,
        max_batch_size=1,
        max_model_len=TOKENS,
        prefill_max_tokens=TOKENS,
        uses_graphs=False,
        fuses=False,
    )
    assert held.peak < aside.activations < 4 * held.peak


@pytest.mark.parametrize("name", ["qwen3-8b", "llama-3.1-8b"])
def test_an_8b_model_serves_256_sequences_of_1152_tokens_in_80_gb(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RANDOM_CONFIGS[name]
    weights = 2 * sum(map(math.prod, parameter_shapes(spec).values()))
    # A H100 of 80 GB has 79.1 GiB, of which the driver and the context take about one.
    monkeypatch.setattr(kv_memory, "available_bytes", lambda device: 78 * GIB - weights)
    blocks = choose_num_blocks(
        bytes_per_block=64 * 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * 2,
        blocks_per_sequence=18,
        max_batch_size=256,
        device=CUDA,
        reserved_bytes=_memory(name).total,
    )
    assert blocks >= 256 * 18


def test_a_cache_that_does_not_fit_beside_the_rest_is_refused_with_what_to_lower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_memory, "available_bytes", lambda device: 8 * GIB)

    def blocks(reserved: int) -> int:
        return choose_num_blocks(
            bytes_per_block=GIB,
            blocks_per_sequence=2,
            max_batch_size=4,
            device=CUDA,
            reserved_bytes=reserved,
        )

    assert blocks(0) == 7
    assert blocks(4 * GIB) == 3
    with pytest.raises(ConfigError, match=r"beside 6\.0 GiB for activations.*prefill_max_tokens"):
        blocks(6 * GIB)
    with pytest.raises(ConfigError, match="has room for 0"):
        blocks(9 * GIB)


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "qwen3-tiny"])
def test_folding_takes_no_more_than_is_set_aside(name: str) -> None:
    spec = RANDOM_CONFIGS[name]
    model = Decoder(spec, random_weights(spec, seed=0, device=CPU, dtype=torch.float16))
    cache = KVCache(
        spec.num_layers, 1, spec.num_kv_heads, 16, spec.head_dim, device=CPU, dtype=torch.float16
    )
    with torch.inference_mode(False), torch.no_grad(), _LiveBytes() as held:
        folded = fused_blocks(model, cache), fused_head(model)
    assert folded
    aside = _memory(name, dtype=torch.float16).folding
    # Biases and sums of columns are small, but not beside a tiny model.
    assert held.peak < 1.2 * aside
    assert aside < 3 * held.peak


def test_there_are_no_more_graphs_of_steps_than_are_counted() -> None:
    for rows in (*range(1, 70), 255, 256, 257):
        assert len(bucket_sizes(rows)) <= rows // _ROWS_A_BUCKET + _SMALL_BUCKETS


def test_logits_are_counted_for_every_row_of_the_vocabulary() -> None:
    few, many = _memory("qwen3-0.6b", max_batch_size=64), _memory("qwen3-0.6b")
    assert many.logits == 4 * few.logits
    assert many.logits > 256 * 151_936 * (2 + 4)
    assert _memory("qwen3-0.6b", uses_graphs=False).graphs == 0
