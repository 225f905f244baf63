"""What operators take memory for, beside their counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from asv_bench.lab.pretend_cuda import OperatorLedger


class MemoryLedger(OperatorLedger):
    """Counts operators, and new tensors: results in memory that no argument lies in.

    New bytes are those of that memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.new_tensors = 0
        self.new_bytes = 0

    @property
    def operators(self) -> int:
        """How many were dispatched."""
        return self.by_name.total()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Count one operator and what it makes, and run it."""
        outputs = super().__torch_dispatch__(func, types, args, kwargs)
        held, made = _memories((args, kwargs or {})), _memories(outputs)
        self.new_tensors += len(made.keys() - held)
        self.new_bytes += sum(made[one] for one in made.keys() - held)
        return outputs


def _memories(tree: Any) -> dict[int, int]:
    """The bytes of the memory in which tensors lie; views of one another share its name."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    stored = [getattr(one, "stand_in", one).untyped_storage() for one in tensors]
    return {one._cdata: one.nbytes() for one in stored}
