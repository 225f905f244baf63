"""Host buffers through which small arrays reach the device without a wait.

An asynchronous copy reads its pinned source at some later time, so a source must not be rewritten
before that copy has run. The buffers are used in turn, each guarded by the event of its last copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_NUM_BUFFERS = 8


class StagingBuffers:
    """A ring of pinned buffers, for copies on the current stream.

    Parameters
    ----------
    device
        Where copies go. To the CPU they are plain copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_cuda = device.type == "cuda"
        self._buffers: list[torch.Tensor | None] = [None] * _NUM_BUFFERS
        self._copied: list[torch.cuda.Event | None] = [None] * _NUM_BUFFERS
        self._next = 0

    def to_device(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """A copy of `array` on the device, same shape and dtype, in stream order."""
        on_device = torch.empty(
            array.shape, dtype=torch.from_numpy(array[:0]).dtype, device=self._device
        )
        self.copy(array, on_device)
        return on_device

    def copy(self, array: npt.NDArray[Any], on_device: torch.Tensor) -> None:
        """Overwrite `on_device`, of the shape and dtype of `array`, in stream order."""
        if not self._on_cuda:
            on_device.copy_(torch.from_numpy(array))
            return
        source = self._pinned(array.nbytes)
        source.numpy()[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        on_device.copy_(source.view(on_device.dtype).view(array.shape), non_blocking=True)
        copied = self._copied[self._next]
        if copied is None:
            copied = self._copied[self._next] = torch.cuda.Event()
        copied.record()
        self._next = (self._next + 1) % _NUM_BUFFERS

    def _pinned(self, num_bytes: int) -> torch.Tensor:
        copied = self._copied[self._next]
        if copied is not None:
            copied.synchronize()
        buffer = self._buffers[self._next]
        if buffer is None or buffer.numel() < num_bytes:
            capacity = max(4096, 1 << (num_bytes - 1).bit_length())
            buffer = torch.empty(capacity, dtype=torch.uint8, pin_memory=True)
            self._buffers[self._next] = buffer
        return buffer[:num_bytes]
