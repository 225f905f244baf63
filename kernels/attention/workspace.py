"""Scratch memory of split decode attention, at addresses that captured graphs may keep.

Programs that share one context leave partial results in a workspace, and the last to arrive
combines them. A CUDA graph captures the workspace's address, so memory that was ever handed out
stays allocated and valid for the life of the process: a workspace grows by taking new buffers and
keeps the old ones. Arrival counters are zero between launches; each launch leaves them so.

Two launches in flight at once must not share a workspace. Outside capture each CUDA stream has
its own. All graphs of a device share one more: replay them one after another, or give graphs that
replay at the same time workspaces of their own with :func:`own_workspace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch

from kernels.errors import KernelArgumentError

_GRAPH_STREAM = -1


@dataclass(slots=True)
class DecodeWorkspace:
    """Partial results and arrival counters on one device.

    Attributes
    ----------
    partials : torch.Tensor
        float32; each split's weighted values, maximum and sum.
    counters : torch.Tensor
        int32; how many splits of a (sequence, KV head) pair have arrived. All zero between
        launches.
    """

    device: torch.device
    partials: torch.Tensor = field(init=False)
    counters: torch.Tensor = field(init=False)
    _retired: list[torch.Tensor] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.partials = torch.empty(0, dtype=torch.float32, device=self.device)
        self.counters = torch.zeros(0, dtype=torch.int32, device=self.device)

    def fits(self, partials: int, counters: int) -> bool:
        """Whether that many elements are already there."""
        return self.partials.numel() >= partials and self.counters.numel() >= counters

    def reserve(self, partials: int, counters: int) -> None:
        """Grow to at least that many elements. Must not run during graph capture."""
        if self.partials.numel() < partials:
            self._retired.append(self.partials)
            size = max(partials, 2 * self.partials.numel())
            self.partials = torch.empty(size, dtype=torch.float32, device=self.device)
        if self.counters.numel() < counters:
            self._retired.append(self.counters)
            size = max(counters, 2 * self.counters.numel())
            self.counters = torch.zeros(size, dtype=torch.int32, device=self.device)


_workspaces: dict[tuple[torch.device, int], DecodeWorkspace] = {}
_own: ContextVar[DecodeWorkspace | None] = ContextVar("kvtrail_own_workspace", default=None)


@contextmanager
def own_workspace(workspace: DecodeWorkspace) -> Iterator[DecodeWorkspace]:
    """Use `workspace` for decode attention inside this block, capture included.

    A graph captured inside holds the workspace's addresses only: keep the workspace for as long
    as the graph may be replayed.
    """
    token = _own.set(workspace)
    try:
        yield workspace
    finally:
        _own.reset(token)


def reserved_workspace(device: torch.device, partials: int, counters: int) -> DecodeWorkspace:
    """The workspace for a launch on `device` now, large enough for it.

    Raises
    ------
    KernelArgumentError
        During graph capture, when no call outside capture has needed as much before: memory
        allocated inside a capture would be zeroed by every replay and before none.
    """
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    workspace = _own.get()
    if workspace is not None:
        if workspace.device != device:
            raise KernelArgumentError(
                f"the workspace must be on k_cache's device, {device}, but is on {workspace.device}"
            )
    elif capturing:
        workspace = _workspace(device, _GRAPH_STREAM)
    else:
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        workspace = _workspace(device, stream)
    if workspace.fits(partials, counters):
        return workspace
    if capturing:
        raise KernelArgumentError(
            "attention must run once outside graph capture with these shapes, or larger ones, "
            "before it is captured: its workspace cannot grow during capture"
        )
    workspace.reserve(partials, counters)
    if _own.get() is None:
        _workspace(device, _GRAPH_STREAM).reserve(partials, counters)
    return workspace


def _workspace(device: torch.device, stream: int) -> DecodeWorkspace:
    workspace = _workspaces.get((device, stream))
    if workspace is None:
        workspace = _workspaces[device, stream] = DecodeWorkspace(device)
    return workspace
