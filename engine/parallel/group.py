"""What ranks say to each other about tensors: sums, and what each of them has.

Every rank calls the same methods in the same order, with tensors of the same shape. What comes back
is the same on all of them, bit for bit, but for sums where a device's own library adds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for another that neither answers nor ends."""

_NO_TOKEN = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where ranks find each other.

    Attributes
    ----------
    folder
        Of a file that they share; nobody else may write there.
    rank, size
        Which of how many this is.
    devices
        Of all ranks, in their order.
    """

    folder: Path
    rank: int
    size: int
    devices: tuple[torch.device, ...]

    @property
    def device(self) -> torch.device:
        """This rank's."""
        return self.devices[self.rank]

    def store(self) -> Store:
        """What the ranks tell each other their addresses by."""
        from torch._C._distributed_c10d import FileStore

        return FileStore(str(self.folder / "store"), self.size)


class Group(ABC):
    """The ranks of an engine, as one of them sees them.

    On CUDA all methods but `connect` and `broadcast` can be captured in a graph.

    Attributes
    ----------
    rank, size
        Which of how many this is.
    """

    def __init__(self, meeting: Meeting) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        self._meeting = meeting
        self._is_muted = False

    @abstractmethod
    def connect(self) -> None:
        """Meet the other ranks, which must do the same."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x; x is lost, and the sum is valid until the next call."""
        return x if self._is_muted else self._sum(x)

    def all_gather(self, x: Tensor) -> Tensor:
        """Every rank's x, [size, *x.shape]."""
        return torch.stack([x] * self.size) if self._is_muted else self._gather(x.contiguous())

    def broadcast(self, x: Tensor) -> None:
        """Give x the values that it has on rank 0."""
        if not self._is_muted:
            self._share(x)

    def room(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """Memory [rows, width] for the part that `add_up` takes next."""
        return torch.empty(rows, width, dtype=dtype, device=self._meeting.device)

    def add_up(self, part: Tensor, x: Tensor, x_stats: Tensor | None) -> None:
        """x += the sum of all ranks' `part`, which is lost; all are [rows, width], of one dtype.

        For kernels: `x_stats` are as `kernels.step.residual.add_to_rows` has them.
        """
        from kernels.step.residual import add_to_rows

        add_to_rows(self.all_reduce(part), x, x_stats)

    def best(self, best: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Every rank's best logit of each row and which token has it, both [N, size].

        Parameters
        ----------
        best, token
            This rank's, float [N] and int [N]; NaN where a logit is.
        """
        # float32 holds every id below 2**24 as it is.
        both = self.all_gather(torch.stack((best.float(), token.float()), 1))
        maxima, tokens = both.unbind(2)
        return maxima.t().contiguous(), tokens.t().to(torch.int32).contiguous()

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Let results be of the right shape and worthless, and other ranks hear nothing."""
        self._is_muted = True
        try:
            yield
        finally:
            self._is_muted = False

    def release(self) -> None:  # noqa: B027 (most groups need not)
        """Where a rank is gone, let what waits for it on the device go on, with worthless results.

        Called from another thread, again and again until the engine has ended.
        """

    def settle(self) -> None:  # noqa: B027 (most groups need not)
        """Wait for what the device has to do, before what it uses is given back."""

    @abstractmethod
    def close(self) -> None:
        """Leave; other ranks that wait for this one see that it is gone."""

    @abstractmethod
    def _sum(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _gather(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _share(self, x: Tensor) -> None: ...


def make_group(meeting: Meeting) -> Group:
    """A group for the devices that meet, not connected yet."""
    if meeting.device.type == "cpu":
        from engine.parallel.gloo import GlooGroup

        return GlooGroup(meeting)
    from engine.parallel.symmetric import SymmetricGroup, have_symmetric_memory

    if have_symmetric_memory(meeting.devices):
        return SymmetricGroup(meeting)
    from engine.parallel.nccl import NcclGroup

    return NcclGroup(meeting)


def lowest_best(best: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row of `best` [N, T], NaN where one is, and the least of the `tokens`
    [N, T] that have it: [N] each."""
    most = best.amax(1)
    token = torch.where(best == most[:, None], tokens, _NO_TOKEN).amin(1)
    # No logit equals NaN; such a row has any token.
    return most, token.clamp(max=(1 << 24) - 1)
