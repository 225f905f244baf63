"""Ranks on CUDA devices, which speak NCCL."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from engine.parallel.group import PATIENCE, Group


class NcclGroup(Group):
    """Ranks that are processes of one machine, each with a device of its own."""

    def connect(self) -> None:
        """Meet the other ranks, which must do the same."""
        # A program that uses NVLink multicast can put a host's GPUs out of service.
        os.environ["NCCL_NVLS_ENABLE"] = "0"
        # All ranks are on one machine: nothing need listen on a network.
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        nccl: Any = dist.ProcessGroupNCCL  # torch's stubs lack much of it
        options = nccl.Options()
        options._timeout = PATIENCE
        self._store = self._meeting.store()
        store = PrefixStore("nccl", self._store)
        self._nccl = nccl(store, self.rank, self.size, options)
        # The first call makes the communicator, which must not happen in a capture.
        self._nccl.allreduce([torch.zeros(1, device=self._meeting.device)]).wait()
        torch.cuda.synchronize(self._meeting.device)

    def release(self) -> None:
        """Where a rank is gone, let what waits for it on the device go on."""
        self.close()

    def close(self) -> None:
        """Leave; other ranks that wait for this one see that it is gone.

        It would wait for ever while there is a graph that has captured a call.
        """
        left = vars(self).pop("_nccl", None)
        if left is not None:
            left.abort()

    def _sum(self, x: Tensor) -> Tensor:
        self._nccl.allreduce([x]).wait()
        return x

    def _gather(self, x: Tensor) -> Tensor:
        gathered = x.new_empty(self.size, *x.shape)
        self._nccl._allgather_base(gathered.view(-1), x.view(-1)).wait()
        return gathered

    def _share(self, x: Tensor) -> None:
        self._nccl.broadcast(x, 0).wait()
