"""Which caches the kernels for Hopper take, by how their slots lie: on any machine."""

from __future__ import annotations

import torch
from paged_cases import side_by_side

from kernels.backend import slot_stride


def test_slots_that_lie_evenly() -> None:
    cache = torch.empty(6, 3, 16, 8)
    assert slot_stride(cache) == 8
    keys, values = side_by_side(cache, cache)
    assert slot_stride(keys) == slot_stride(values) == 16
    layers = torch.empty(2, 6, 3, 16, 2, 8)
    assert slot_stride(layers[1, ..., 0, :]) == 16


def test_slots_that_do_not() -> None:
    cache = torch.empty(6, 3, 16, 8)
    assert slot_stride(cache[:, :2]) is None, "blocks of three heads, of which two are there"
    assert slot_stride(cache[:, :, :8]) is None, "pages of 16 slots, of which half are there"
    assert slot_stride(cache.transpose(0, 1)) is None
    assert slot_stride(cache.transpose(2, 3)) is None
    assert slot_stride(cache[:1, :1, :1].expand(6, 3, 16, 8)) is None, "all slots are one"
