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
_LEAST_BYTES = 4096


class _Buffer:
    """Pinned bytes, and as many on the device for what has no place there of its own."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self.num_bytes = num_bytes
        self.on_device = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._pinned = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        self._written = self._pinned.numpy()
        self._copied = torch.cuda.Event()

    def send(self, array: npt.NDArray[Any], on_device: torch.Tensor) -> None:
        """Copy the array, which must fit, to a tensor of its shape and dtype."""
        size = array.nbytes
        self._written[:size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        source = self._pinned[:size].view(on_device.dtype).view(array.shape)
        on_device.copy_(source, non_blocking=True)
        self._copied.record()

    def wait(self) -> None:
        """Until the last copy has run."""
        self._copied.synchronize()


class StagingBuffers:
    """Pinned buffers used in turn, for copies on the current stream.

    Parameters
    ----------
    device
        Where copies go. To the CPU they are plain copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_cuda = device.type == "cuda"
        self._buffers: list[_Buffer | None] = [None] * _NUM_BUFFERS
        self._next = 0

    def to_device(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """A copy of `array` on the device, same shape and dtype, in stream order.

        Work that reads it must be launched before the eighth copy after it: the tensors are used
        in turn too, since making one costs the host as much as the copy.
        """
        if not self._on_cuda:
            return torch.from_numpy(array.copy())
        buffer = self._free_buffer(array.nbytes)
        dtype = torch.from_numpy(array[:0]).dtype
        on_device = buffer.on_device[: array.nbytes].view(dtype).view(array.shape)
        buffer.send(array, on_device)
        return on_device

    def copy(self, array: npt.NDArray[Any], on_device: torch.Tensor) -> None:
        """Overwrite `on_device`, of the shape and dtype of `array`, in stream order."""
        if self._on_cuda:
            self._free_buffer(array.nbytes).send(array, on_device)
        else:
            on_device.copy_(torch.from_numpy(array))

    def _free_buffer(self, num_bytes: int) -> _Buffer:
        """The next buffer, of at least so many bytes, once its last copy has run."""
        place = self._next
        self._next = (place + 1) % _NUM_BUFFERS
        buffer = self._buffers[place]
        if buffer is not None:
            buffer.wait()
        if buffer is None or buffer.num_bytes < num_bytes:
            buffer = _Buffer(max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length()), self._device)
            self._buffers[place] = buffer
        return buffer
