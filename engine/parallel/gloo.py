"""Ranks on CPUs, which speak gloo over the loopback."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.parallel.group import PATIENCE, Group


class GlooGroup(Group):
    """Ranks that are processes of one machine.

    Sums are in the order of the ranks, whatever the shape: what a row comes to does not depend on
    its neighbours.
    """

    def connect(self) -> None:
        """Meet the other ranks, which must do the same."""
        gloo: Any = dist.ProcessGroupGloo  # torch's stubs lack much of it
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = PATIENCE
        self._gloo = gloo(self._meeting.store(), self.rank, self.size, options)

    def close(self) -> None:
        """Leave; other ranks that wait for this one see that it is gone."""
        vars(self).pop("_gloo", None)

    def _sum(self, x: Tensor) -> Tensor:
        first, *others = self._gather(x.contiguous()).unbind(0)
        total = first.float()
        for other in others:
            total = total + other
        return total.to(x.dtype)

    def _gather(self, x: Tensor) -> Tensor:
        gathered = torch.empty(self.size, *x.shape, dtype=x.dtype)
        self._gloo.allgather([list(gathered.unbind(0))], [x]).wait()
        return gathered

    def _share(self, x: Tensor) -> None:
        self._gloo.broadcast(x, 0).wait()
