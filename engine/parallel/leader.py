"""Rank 0's worker: what it launches the others are told to launch, too."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.config import EngineConfig
from engine.kv.blocks import BlockCopy
from engine.models.decoder import Decoder
from engine.parallel.ranks import Ranks
from engine.scheduling.plans import DecodePlan, PrefillPlan
from engine.scheduling.rows import Rows
from engine.transport.token_slots import TokenSlots
from engine.worker.runner import ComputedPrompts, draws_any
from engine.worker.worker import Worker, shaped_prompts

_PAUSE_S = 20e-6
"""Between two looks at whether tokens have arrived and the ranks are there."""


class LeadingWorker(Worker):
    """A worker that the workers of other ranks follow.

    Parameters
    ----------
    ranks
        The others.
    """

    def __init__(
        self,
        ranks: Ranks,
        config: EngineConfig,
        model: Decoder,
        rows: Rows,
        *,
        num_kv_blocks: int,
        max_prefill_tokens: int,
        use_graphs: bool,
    ) -> None:
        self._ranks = ranks
        with ranks.attending():
            ranks.build(num_kv_blocks=num_kv_blocks, max_prefill_tokens=max_prefill_tokens)
            ranks.group.connect()
            super().__init__(
                config,
                model,
                rows,
                num_kv_blocks=num_kv_blocks,
                max_prefill_tokens=max_prefill_tokens,
                use_graphs=use_graphs,
            )
            ranks.await_built()
        self.token_slots = _AttendedSlots(self.token_slots, ranks)
        ranks.drop_graphs = self.drop_graphs

    def copy_blocks(self, copies: list[BlockCopy]) -> None:
        """Copy blocks of the cache, in their order."""
        with self._ranks.attending():
            self._ranks.tell("copy_blocks", copies)
            super().copy_blocks(copies)

    def send_rows(self) -> None:
        """Send what changed in the host's rows."""
        changes = self.rows.take_changes()
        if changes is not None:
            with self._ranks.attending():
                self._ranks.tell("change_rows", *changes)
                self.rows.apply(*changes)

    def compute(self, plan: PrefillPlan) -> ComputedPrompts:
        """Compute the plan's chunks; `sample_prompts` takes what this returns."""
        prompts = self.prefiller.pack(plan)
        with self._ranks.attending():
            self._ranks.tell("compute", prompts)
            return self.prefiller.launch(prompts)

    def sample_prompts(self, plan: PrefillPlan, computed: ComputedPrompts) -> bool:
        """As `ModelRunner.sample_prompts`."""
        count, is_drawn = plan.num_sampled, draws_any(plan)
        if not count:
            return False
        with self._ranks.attending():
            self._ranks.tell("sample", count, is_drawn)
            self.runner.sample(computed, count, is_drawn=is_drawn)
        return True

    def decode(self, plan: DecodePlan) -> torch.Tensor:
        """A step of the plan's rows, and of those between them, which keep their state."""
        # Of the rows the others need no more than the last.
        brief = DecodePlan(plan.rows[-1:], plan.rows[:0], [], plan.is_sampled)
        with self._ranks.attending():
            self._ranks.tell("decode", brief, plan.shaped)
            states = super().decode(plan)
            if plan.shaped is not None:
                self._agree(plan.shaped)
            return states

    def shape_prompts(self, plan: PrefillPlan, computed: ComputedPrompts) -> None:
        """After `sample_prompts`, choose again for the prompts that ask more of their logits."""
        rows, places = shaped_prompts(plan)
        if len(rows):
            with self._ranks.attending():
                self._ranks.tell("shape", rows, places)
                super().shape_prompts(plan, computed)
                self._agree(rows)

    def _agree(self, rows: npt.NDArray[np.intp]) -> None:
        """Give the other ranks the tokens that were chosen here for `rows`."""
        places = self.to_device(rows.astype(np.int64))
        self._ranks.group.broadcast(self.rows.fields.last_token[places])


class _AttendedSlots(TokenSlots):
    """Token slots whose tokens are awaited only as long as all ranks are there."""

    def __init__(self, slots: TokenSlots, ranks: Ranks) -> None:
        vars(self).update(vars(slots))
        self._ranks = ranks

    def receive(
        self, ticket: int, rows: npt.NDArray[np.intp], positions: npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.int32]:
        """As `TokenSlots.receive`; raises `RankError` where a rank has ended."""
        with self._ranks.attending():
            while not self.has_arrived(ticket):
                self._ranks.check()
                time.sleep(_PAUSE_S)
            tokens = super().receive(ticket, rows, positions)
            self._ranks.check()
            return tokens
