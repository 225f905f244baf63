"""Capturing launches in CUDA graphs: what all captures need of the host around them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from engine.errors import DeviceError

Result = TypeVar("Result")


class GraphPool:
    """Graphs that share memory: they must not run beside each other.

    The largest should be captured first, so that the others find room in what it left.
    """

    def __init__(self) -> None:
        self._handle = torch.cuda.graph_pool_handle()

    def capture(self, launch: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """What `launch` launches, without a wait, as a graph; and what it returns, its outputs.

        It is called twice. The eager run compiles and loads every kernel, which must not happen
        inside a capture.
        """
        launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._handle):
            result = launch()
        return graph, result


@contextmanager
def capturing(what: str, remedy: str) -> Iterator[None]:
    """Surround captures, before and after which the device is at rest.

    Raises
    ------
    DeviceError
        The GPU has too little memory; the sentence names `what` was captured and the `remedy`.
    """
    torch.cuda.synchronize()
    try:
        with _resting_collector():
            yield
    except torch.cuda.OutOfMemoryError as error:
        raise DeviceError(
            f"The GPU has too little memory to capture the {what}: {remedy}, or set decode='eager'."
        ) from error
    finally:
        torch.cuda.synchronize()


@contextmanager
def _resting_collector() -> Iterator[None]:
    """Collect garbage now and not again within: what an earlier engine held on the device or in
    pinned memory must not be freed during a capture, which that would invalidate."""
    was_collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()
