"""Ranks as threads of one process, of which one runs at a time: for layers and kernels."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Condition
from typing import TypeVar

import torch
from torch import Tensor

from engine.parallel.group import Group, Meeting

Result = TypeVar("Result")


class _Table:
    """What lies between the ranks: their tensors of the call under way, and whose turn it is."""

    def __init__(self, size: int) -> None:
        self.tensors: list[Tensor | None] = [None] * size
        self.met, self.read = Barrier(size, timeout=60), Barrier(size, timeout=60)
        self.turn, self.is_taken = Condition(), False

    def take(self) -> None:
        with self.turn:
            self.turn.wait_for(lambda: not self.is_taken)
            self.is_taken = True

    def give(self) -> None:
        with self.turn:
            self.is_taken = False
            self.turn.notify()


class ThreadedGroup(Group):
    """A rank that gives its turn to the others where it waits for them."""

    def __init__(self, rank: int, size: int, table: _Table) -> None:
        super().__init__(Meeting(Path(), rank, size, (torch.device("cpu"),) * size))
        self._table = table

    def connect(self) -> None:
        """They have met."""

    def close(self) -> None:
        """Nothing is held."""

    def _gather(self, x: Tensor) -> Tensor:
        table = self._table
        table.tensors[self.rank] = x.clone()
        table.give()
        table.met.wait()
        gathered = torch.stack([one for one in table.tensors if one is not None])
        table.read.wait()
        table.take()
        return gathered

    def _sum(self, x: Tensor) -> Tensor:
        return self._gather(x).sum(0).to(x.dtype)

    def _share(self, x: Tensor) -> None:
        x.copy_(self._gather(x)[0])


def on_ranks(size: int, run: Callable[[Group], Result]) -> list[Result]:
    """What `run` returns on each of the ranks."""
    table = _Table(size)

    def on_one(rank: int) -> Result:
        table.take()
        try:
            with torch.inference_mode():
                return run(ThreadedGroup(rank, size, table))
        except BaseException:
            table.met.abort()
            table.read.abort()
            raise
        finally:
            table.give()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(on_one, range(size)))
