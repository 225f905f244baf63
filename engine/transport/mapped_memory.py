"""Memory of the host that the device reads and writes where it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.errors import DeviceError

_MOST_PASSED_OVER = 64


def mapped_memory(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """A piece of the host's memory, zeros, as a tensor on the CPU and as one on `device`.

    What the device writes is there for the host once an event recorded behind it has come about.
    On the CPU both are the same tensor.

    Raises
    ------
    DeviceError
        When the driver gives only memory that belongs to another device.
    """
    if device.type != "cuda":
        on_host = torch.zeros(tuple(shape), dtype=dtype)
        return on_host, on_host
    wanted = torch.device(
        "cuda", torch.cuda.current_device() if device.index is None else device.index
    )
    # Pinned memory that was freed is handed out again, and says it belongs to the device that it
    # was first made for. Held until the end, it is not handed out twice.
    passed_over = []
    for _ in range(_MOST_PASSED_OVER):
        on_host = torch.zeros(tuple(shape), dtype=dtype, pin_memory=True)
        on_device = torch.as_tensor(_DeviceArray(on_host))
        if on_device.device == wanted:
            return on_host, on_device
        passed_over.append(on_host)
    raise DeviceError(
        f"Pinned memory for {wanted} was asked for {_MOST_PASSED_OVER} times, but what came "
        f"belongs to {on_device.device}: free what that device pinned, or use it alone."
    )


class _DeviceArray:
    """Pinned memory, described the way in which CUDA libraries exchange arrays.

    The interface: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
    """

    def __init__(self, pinned: torch.Tensor) -> None:
        self.pinned = pinned
        self.__cuda_array_interface__ = {
            "shape": tuple(pinned.shape),
            "typestr": pinned.numpy().dtype.str,
            "data": (pinned.data_ptr(), False),
            "version": 3,
        }
