"""Ranks on CUDA devices that reach each other's memory: torch's symmetric memory for small sums.

What decode steps sum is small: NCCL takes several times as long for it as one kernel in which every
rank reads what the others wrote. Fused steps have such a kernel of their own
(`kernels.step.residual.add_ranks_to_rows`); other sums are torch's. Large sums, gathers and
broadcasts are NCCL's. NVLink multicast is never used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import permutations

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    PrefixStore,
    ProcessGroup,
    _register_process_group,
    _SymmetricMemory,
    _unregister_process_group,
)
from torch.distributed.distributed_c10d import GroupName

from engine.parallel.nccl import NcclGroup
from engine.parallel.numbered_store import NumberedStore

_MEMORY_BYTES = 8 << 20
"""Of a rank, for what is summed: a step of 512 rows, or a prefill of as many tokens."""

_ONE_SHOT_BYTES = 256 << 10
"""Up to this every rank reads all of the others' memory; above it adds up a part, and reads the
other parts from those who added them up."""

_GATHERED_BYTES = 64 << 10
"""Up to this a gather is a sum of what ranks have, each in a place where the others have zeros."""

_PART_BYTES = 2 << 20
"""Of each of a rank's two parts that fused steps add up in turns."""

_MOST_ROWS = 512
"""Of such a part."""

_SIZES = (2, 4, 8)
"""Numbers of ranks for which torch has kernels."""

_ALIGNMENT = 16
"""Bytes that a kernel reads at once."""


def have_symmetric_memory(devices: Sequence[torch.device]) -> bool:
    """Whether torch has kernels for so many ranks, and each device reaches the others' memory."""
    has_kernels = hasattr(torch.ops.symm_mem, "one_shot_all_reduce") and len(devices) in _SIZES
    return has_kernels and all(
        torch.cuda.can_device_access_peer(one, other) for one, other in permutations(devices, 2)
    )


class SymmetricGroup(NcclGroup):
    """Ranks that read each other's memory over NVLink or PCIe."""

    def connect(self) -> None:
        """Meet the other ranks, which must do the same."""
        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        super().connect()
        self._name = GroupName(f"kvtrail-{self._meeting.folder.name}")
        # What torch finds the ranks by; it keeps no more than the name, and C++ no Python store.
        self._numbers = NumberedStore(PrefixStore("symmetric", self._store))
        self._named = ProcessGroup(self._numbers, self.rank, self.size)
        _register_process_group(self._name, self._named)
        self._memory = self._shared(_MEMORY_BYTES)
        self._handle = _SymmetricMemory.rendezvous(self._memory, self._name)
        flag_bytes = 4 * _MOST_ROWS * self.size
        parts = self._shared(2 * _PART_BYTES + flag_bytes)
        self._of_parts = _SymmetricMemory.rendezvous(parts, self._name)
        self._parts = parts[: 2 * _PART_BYTES].view(2, _PART_BYTES)
        # The others wait for flags that are zero.
        parts[2 * _PART_BYTES :].zero_()
        first = torch.tensor(self._of_parts.buffer_ptrs, dtype=torch.int64, device=parts.device)
        self._addresses = [first, first + _PART_BYTES]
        self._flags = first + 2 * _PART_BYTES
        self._turn = 0
        torch.cuda.synchronize(parts.device)
        self._nccl.allreduce([torch.zeros(1, device=parts.device)]).wait()

    def _shared(self, num_bytes: int) -> Tensor:
        device = self._meeting.device
        return _SymmetricMemory.empty_strided_p2p((num_bytes,), (1,), torch.uint8, device)

    def close(self) -> None:
        """Leave; other ranks that wait for this one see that it is gone."""
        super().close()
        if vars(self).pop("_named", None) is not None:
            _unregister_process_group(self._name)

    def release(self) -> None:
        """Where a rank is gone, let what waits for it on the device go on.

        A kernel waits until the others have set their words in its rank's memory, and taken those
        that it set in theirs.
        """
        super().release()
        device = self._meeting.device
        # A side stream: the engine's waits.
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            for rank in range(self.size):
                words, first = (_MOST_ROWS * self.size,), 2 * _PART_BYTES // 4
                flags = self._of_parts.get_buffer(rank, words, torch.int32, first)
                for signals in (self._handle.get_signal_pad(rank, dtype=torch.int32), flags):
                    signals.fill_(int(rank == self.rank))

    def room(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """Memory [rows, width] for the part that `add_up` takes next."""
        if self._is_muted or not self._is_part(rows, width * dtype.itemsize):
            return super().room(rows, width, dtype)
        self._turn = 1 - self._turn
        part = self._parts[self._turn, : rows * width * dtype.itemsize]
        return part.view(dtype).view(rows, width)

    def add_up(self, part: Tensor, x: Tensor, x_stats: Tensor | None) -> None:
        """x += the sum of all ranks' `part`, which is lost; all are [rows, width], of one dtype."""
        if self._is_muted or not self._is_part(len(part), part.nbytes // len(part)):
            super().add_up(part, x, x_stats)
            return
        from kernels.step.residual import add_ranks_to_rows

        add_ranks_to_rows(self._addresses[self._turn], self._flags, self.rank, x, x_stats)

    def _is_part(self, rows: int, row_bytes: int) -> bool:
        return rows <= _MOST_ROWS and rows * row_bytes <= _PART_BYTES

    def _takes(self, count: int, dtype: torch.dtype) -> bool:
        """Whether so many numbers are summed in symmetric memory."""
        num_bytes = count * dtype.itemsize
        is_even = num_bytes % (_ALIGNMENT * self.size) == 0
        is_known = dtype in (torch.bfloat16, torch.float32)
        return is_known and is_even and num_bytes <= _MEMORY_BYTES

    def _view(self, count: int, dtype: torch.dtype) -> Tensor:
        return self._memory[: count * dtype.itemsize].view(dtype)

    def _sum(self, x: Tensor) -> Tensor:
        if not self._takes(x.numel(), x.dtype):
            return super()._sum(x)
        shared = self._view(x.numel(), x.dtype)
        if x.data_ptr() != shared.data_ptr():
            shared.copy_(x.reshape(-1))
        if shared.nbytes <= _ONE_SHOT_BYTES:
            reduce = torch.ops.symm_mem.one_shot_all_reduce
        else:
            reduce = torch.ops.symm_mem.two_shot_all_reduce_
        total: Tensor = reduce(shared, "sum", self._name)
        return total.view(x.shape)

    def _gather(self, x: Tensor) -> Tensor:
        count = self.size * x.numel()
        padded = -(-count // (4 * self.size)) * 4 * self.size
        if x.dtype != torch.float32 or padded * x.dtype.itemsize > _GATHERED_BYTES:
            return super()._gather(x)
        # Adding zero changes no number.
        places = self._view(padded, x.dtype).zero_()
        places[self.rank * x.numel() : (self.rank + 1) * x.numel()] = x.view(-1)
        return self._sum(places)[:count].view(self.size, *x.shape)
