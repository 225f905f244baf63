"""Where the KV cache keeps keys and values, and how it copies blocks."""

from __future__ import annotations

import torch

from asv_bench.lab.pretend_cuda import pretended_cuda
from engine.kv.blocks import BlockCopy
from engine.kv.memory import KVCache
from engine.transport.staging import StagingBuffers
from kernels.backend import slot_stride

CPU = torch.device("cpu")


def _cache(device: torch.device) -> KVCache:
    return KVCache(2, 5, 3, 16, 8, device=device, dtype=torch.float16)


def test_values_stand_behind_their_keys_on_a_gpu() -> None:
    with pretended_cuda():
        cache = _cache(torch.device("cuda"))
        keys, values = cache.keys[1], cache.values[1]
        assert keys.shape == values.shape == (5, 3, 16, 8)
        assert slot_stride(keys) == slot_stride(values) == 16
        assert values.data_ptr() == keys.data_ptr() + 8 * keys.element_size()


def test_values_stand_apart_from_their_keys_on_a_cpu() -> None:
    cache = _cache(CPU)
    assert cache.keys.is_contiguous()
    assert cache.values.is_contiguous()


def test_blocks_are_copied_in_every_layer_and_nothing_else_is() -> None:
    cache = _cache(CPU)
    assert not cache.keys.any()
    assert not cache.values.any()
    numbers = torch.arange(cache.keys.numel()).view(cache.keys.shape) % 1999
    cache.keys.copy_(numbers)
    cache.values.copy_(-numbers)
    cache.copy_blocks([BlockCopy(1, 4), BlockCopy(3, 0)], StagingBuffers(CPU))
    expected = numbers.half()[:, [3, 1, 2, 3, 1]]
    assert torch.equal(cache.keys, expected)
    assert torch.equal(cache.values, -expected)
