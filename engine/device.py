"""Which device and which dtype an engine runs on, and memory that host and device share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from engine.errors import DeviceError

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

_MOST_PASSED_OVER = 64


def resolve_device(name: str) -> torch.device:
    """The device that "auto", "cpu", "cuda" or "cuda:N" means on this machine.

    Raises
    ------
    DeviceError
        When CUDA, or that CUDA device, is asked for and not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        reason = (
            "this torch was built without CUDA"
            if torch.version.cuda is None
            else "torch finds no CUDA device"
        )
        raise DeviceError(f"The device {name!r} was asked for, but {reason}: use 'cpu' or 'auto'.")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(
            f"{name!r} names no device: use 'auto', 'cpu', 'cuda' or 'cuda:N'."
        ) from None
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise DeviceError(
            f"The device {name!r} was asked for, but this machine has CUDA devices 0 to "
            f"{torch.cuda.device_count() - 1}."
        )
    return torch.device("cuda", index)


def resolve_dtype(name: str) -> torch.dtype | None:
    """The dtype that `name` names; None for "auto", which leaves the choice to the model."""
    return None if name == "auto" else _DTYPES[name]


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


@contextmanager
def device_scope(device: torch.device) -> Iterator[None]:
    """Make `device` the current one, for streams and events, and record no gradients."""
    with torch.inference_mode():
        if device.type == "cuda":
            with torch.cuda.device(device):
                yield
        else:
            yield
