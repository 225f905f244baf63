"""How the attention of a single row with its linear map is cut into programs. Torch only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

CHUNK = 256
"""Of a row of weights, what a warp reads at once: must divide the row."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How one KV head and its query heads are cut.

    Attributes
    ----------
    cluster : int
        Programs that share them: each makes as many of every head's dimensions.
    warps : int
        Of a program: no more than those dimensions.
    tile : int
        Tokens that a program takes at once; must divide a page.
    registers : int
        Of a thread, at most.
    most_features : int
        Of a row: the weights of longer ones do not fit the registers.
    """

    cluster: int
    warps: int
    tile: int
    registers: int
    most_features: int

    def merges(self, group: int, head_dim: int) -> bool:
        """Whether a program's warps combine their parts of a context before they send them.

        They do where a group has a dimension for every thread: so less is sent.
        """
        return group * head_dim >= 32 * self.warps


_OWN_HEADS = RowPlan(cluster=8, warps=4, tile=64, registers=200, most_features=1280)
_WIDE_HEADS = RowPlan(cluster=8, warps=8, tile=32, registers=255, most_features=1024)
_PLANS = {(1, 64): _OWN_HEADS, (2, 128): _WIDE_HEADS}
"""By query heads of a KV head, and dimensions of a head."""


def row_plan(group: int, head_dim: int, in_features: int, dtype: torch.dtype) -> RowPlan | None:
    """The plan for `group` query heads a KV head and rows of so many features; None: there is none.

    A thread has as few registers as leave other programs room on a multiprocessor, if none is
    spilled: in bfloat16, and with longer rows, heads of 64 spill fewer than 200.
    """
    plan = _PLANS.get((group, head_dim))
    if plan is None or in_features % CHUNK or not 0 < in_features <= plan.most_features:
        return None
    if plan is _OWN_HEADS and dtype == torch.float16 and in_features <= 768:
        return replace(plan, registers=168)
    return plan
