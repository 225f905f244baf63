"""Memory that host and device share, where it belongs to the right device and where not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.errors import DeviceError
from engine.transport.mapped_memory import mapped_memory


def test_pinned_memory_of_another_device_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freed memory comes back first, and belongs to whom it was made for."""
    owners = iter([0, 0, 1, *[0] * 1000])
    pinned: list[torch.Tensor] = []

    def zeros(*shape: Any, pin_memory: bool, **options: Any) -> torch.Tensor:
        assert pin_memory
        pinned.append(plain_zeros(*shape, **options))
        return pinned[-1]

    def as_tensor(described: Any) -> SimpleNamespace:
        place, _ = described.__cuda_array_interface__["data"]
        return SimpleNamespace(device=torch.device("cuda", next(owners)), place=place)

    plain_zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", zeros)
    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    second = torch.device("cuda", 1)
    on_host, on_device = mapped_memory((16, 3), torch.int32, second)
    assert on_host is pinned[2]
    assert on_device.place == on_host.data_ptr()
    with pytest.raises(DeviceError, match=r"Pinned memory for cuda:1 .* belongs to cuda:0"):
        mapped_memory((16, 3), torch.int32, second)
