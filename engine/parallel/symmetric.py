"""Ranks on CUDA devices that reach each other's memory: torch's symmetric memory for small sums.

What decode steps sum is small: NCCL takes several times as long for it as one kernel in which every
rank reads what the others wrote. Fused steps have such a kernel of their own
(`kernels.step.residual.add_ranks_to_rows`); other sums are torch's. Large sums, gathers and
broadcasts are NCCL's. NVLink multicast is never used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
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

_RELEASES_BEFORE_NCCL = 4000
"""More than the sums of steps in flight, each of which waits for a release of its own."""

_SETTLED_S, _LOOK_S = 20.0, 0.01

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
        words, at = (_MOST_ROWS * self.size,), 2 * _PART_BYTES // 4
        self._words = [
            (rank, signals)
            for rank in range(self.size)
            for signals in (
                self._handle.get_signal_pad(rank, dtype=torch.int32),
                self._of_parts.get_buffer(rank, words, torch.int32, at),
            )
        ]
        # What is launched here for the first time cannot be loaded while kernels wait.
        self._side, self._num_released = torch.cuda.Stream(parts.device), 0
        self._set_words()
        torch.cuda.synchronize(parts.device)
        self._nccl.allreduce([torch.zeros(1, device=parts.device)]).wait()
        # The others wait for words that are zero.
        for rank, signals in self._words:
            if rank == self.rank:
                signals.zero_()
        first = torch.tensor(self._of_parts.buffer_ptrs, dtype=torch.int64, device=parts.device)
        self._addresses = [first, first + _PART_BYTES]
        self._flags = first + 2 * _PART_BYTES
        self._turn = 0
        torch.cuda.synchronize(parts.device)
        self._nccl.allreduce([torch.zeros(1, device=parts.device)]).wait()

    def _shared(self, num_bytes: int) -> Tensor:
        device = self._meeting.device
        return _SymmetricMemory.empty_strided_p2p((num_bytes,), (1,), torch.uint8, device)

    def settle(self) -> None:
        """Wait for what the device has to do, as long as `release` lets it go on.

        NCCL waits for the whole device when it leaves, and keeps others from launching meanwhile.
        """
        until = time.monotonic() + _SETTLED_S
        # A device that has failed has nothing more to do.
        with suppress(RuntimeError):
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._meeting.device))
            while not event.query() and time.monotonic() < until:
                time.sleep(_LOOK_S)

    def close(self) -> None:
        """Leave; other ranks that wait for this one see that it is gone."""
        super().close()
        if vars(self).pop("_named", None) is not None:
            _unregister_process_group(self._name)

    def release(self) -> None:
        """Where a rank is gone, let what waits for it on the device go on.

        A kernel waits until the others have set their words in its rank's memory, and taken those
        that it set in theirs. What waits for long is NCCL's.
        """
        self._set_words()
        self._num_released += 1
        if self._num_released == _RELEASES_BEFORE_NCCL:
            super().release()

    def _set_words(self) -> None:
        """As if the others had set their words here, and taken this rank's, on a side stream."""
        with torch.cuda.device(self._meeting.device), torch.cuda.stream(self._side):
            for rank, signals in self._words:
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
