"""What torch is asked to do: operators, and the tensors that they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asv_bench.lab.counters.pretend_cuda import PretendTensor


class OperatorLedger(TorchDispatchMode):
    """Counts the aten operators that are dispatched inside its block, and changes nothing.

    New tensors are results in memory that no argument lies in; new bytes are those of that memory.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = 0
        self.by_name: Counter[str] = Counter()
        self.new_tensors = 0
        self.new_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Count one operator and run it."""
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        self.operators += 1
        self.by_name[str(func.overloadpacket).replace(".", "::", 1)] += 1
        held = {_memory(one) for one in _tensors((args, kwargs))}
        for made in _tensors(outputs):
            if _memory(made) not in held:
                held.add(_memory(made))
                self.new_tensors += 1
                self.new_bytes += _stand_in(made).untyped_storage().nbytes()
        return outputs


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.stand_in if isinstance(tensor, PretendTensor) else tensor


def _memory(tensor: torch.Tensor) -> int:
    """What names a tensor's memory; views of one another have one name."""
    return int(_stand_in(tensor).untyped_storage()._cdata)
