"""Which device and which dtype an engine runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from engine.errors import DeviceError

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def resolve_device(name: str) -> torch.device:
    """The device that "auto", "cpu", "cuda" or "cuda:N" means on this machine.

    Raises
    ------
    DeviceError
        When `name` is none of these, or CUDA, or that CUDA device, is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    kind, colon, number = name.partition(":")
    if kind != "cuda" or (colon and not number.isdecimal()):
        raise DeviceError(f"{name!r} names no device: use 'auto', 'cpu', 'cuda' or 'cuda:N'.")
    if not torch.cuda.is_available():
        reason = (
            "this torch was built without CUDA"
            if torch.version.cuda is None
            else "torch finds no CUDA device"
        )
        raise DeviceError(f"The device {name!r} was asked for, but {reason}: use 'cpu' or 'auto'.")
    # Not read by torch.device, which takes 'cuda:300' for 'cuda:44'.
    index = int(number) if colon else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        raise DeviceError(
            f"The device {name!r} was asked for, but this machine has CUDA devices 0 to "
            f"{torch.cuda.device_count() - 1}."
        )
    return torch.device("cuda", index)


def resolve_devices(first: torch.device, count: int) -> tuple[torch.device, ...]:
    """The devices of so many ranks: the first, and on CUDA those after it.

    Raises
    ------
    DeviceError
        This machine has fewer.
    """
    if first.type == "cpu":
        return (first,) * count
    left = torch.cuda.device_count() - first.index
    if count > left:
        behind = f" from {first} on" if first.index else ""
        raise DeviceError(
            f"tensor_parallel_size is {count}, but this machine has {left} CUDA devices{behind}: "
            f"use at most {left}, or name an earlier device."
        )
    return tuple(torch.device("cuda", first.index + place) for place in range(count))


def resolve_dtype(name: str) -> torch.dtype | None:
    """The dtype that `name` names; None for "auto", which leaves the choice to the model."""
    return None if name == "auto" else _DTYPES[name]


def require_eight_bits(device: torch.device) -> None:
    """Do nothing where kernels on `device` can round to e4m3.

    Raises
    ------
    DeviceError
        They cannot: it is a GPU from before compute capability 8.9.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        major, minor = torch.cuda.get_device_capability(device)
        raise DeviceError(
            f"kv_cache_dtype is 'fp8', but {device} has the compute capability {major}.{minor}, "
            "and GPUs round to e4m3 from 8.9 on: use 'auto'."
        )


@contextmanager
def device_scope(device: torch.device) -> Iterator[None]:
    """Make `device` and the engine's stream on it the current ones, and record no gradients.

    Whatever was current is so again afterwards.
    """
    with torch.inference_mode():
        if device.type != "cuda":
            yield
            return
        with torch.cuda.device(device):
            before = torch.cuda.current_stream()
            # Not torch's own context manager, which asks twice as often what is current.
            torch.cuda.set_stream(engine_stream(device))
            try:
                yield
            finally:
                torch.cuda.set_stream(before)


@cache
def engine_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a CUDA device on which engines launch, whichever one their caller uses.

    All engines of a process share it: what one of them frees serves the next, and captured graphs,
    which share scratch, never run beside each other.
    """
    return torch.cuda.Stream(device)
