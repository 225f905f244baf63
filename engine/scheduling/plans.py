"""What a prefill and a decode step are to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from engine.kv.blocks import BatchAppend, BlockCopy
from engine.kv.integrity import IndexArray, Int32Array
from engine.requests.request import Request
from engine.scheduling.rows import RowIndex, RowPlace, Rows, place_of


class PrefillChunk(NamedTuple):
    """Tokens `start` to `end` (exclusive) of a request's known tokens, to be computed."""

    request: Request
    start: int
    end: int

    @property
    def completes_prompt(self) -> bool:
        """Whether the request's next token is sampled after this chunk."""
        return self.end == self.request.num_known_tokens


class FedRows(NamedTuple):
    """Running rows whose last tokens, which the device alone may know, a prefill feeds.

    `rows` ascending; of each the token's place in its sequence, `positions` int32, and its row of
    the block table, `block_tables` int32 [rows, columns]. `is_drawn` where some of them sample,
    `shaped` those that ask more of their logits, None where none does. `drafts` are tokens that may
    come next, of each row, and are fed behind its last; a token is then sampled after each of them.
    """

    rows: RowIndex
    positions: Int32Array
    block_tables: Int32Array
    is_drawn: bool
    shaped: RowIndex | None
    drafts: list[list[int]] | None = None

    @property
    def counts(self) -> Int32Array:
        """Tokens that are fed of each row, int32."""
        if self.drafts is None:
            return np.ones(len(self.rows), np.int32)
        return np.array([1 + len(draft) for draft in self.drafts], np.int32)

    @classmethod
    def of(cls, step: DecodePlan, rows: Rows) -> FedRows | None:
        """Those of a step that has been planned; None where it feeds known tokens."""
        if len(step.sampling) < len(step.rows):
            return None
        fed = step.rows
        positions = rows.length[fed] - 1
        return cls(fed, positions, rows.block_table[fed], step.is_sampled, step.shaped)


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """Chunks to compute together, and the block copies that must come before them.

    `entering` are admitted requests of which so little is left to compute that decode steps do it.
    `fed` are running rows that take a step in the same launch.
    """

    chunks: list[PrefillChunk]
    entering: list[Request]
    copies: list[BlockCopy]
    fed: FedRows | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of all chunks, and of the rows that are fed."""
        return sum(chunk.end - chunk.start for chunk in self.chunks) + self.num_fed_tokens

    @property
    def num_fed(self) -> int:
        """Rows that are fed."""
        return 0 if self.fed is None else len(self.fed.rows)

    @property
    def num_fed_tokens(self) -> int:
        """Tokens of these rows, and of their drafts."""
        if self.fed is None or self.fed.drafts is None:
            return self.num_fed
        return self.num_fed + sum(map(len, self.fed.drafts))

    @property
    def num_sampled(self) -> int:
        """Tokens that are sampled after it: of completed prompts, and of rows that are fed."""
        return len(self.completed) + self.num_fed_tokens

    @property
    def completed(self) -> list[Request]:
        """The requests whose next token is sampled after it."""
        return [chunk.request for chunk in self.chunks if chunk.completes_prompt]


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Rows that take a decode step, ascending, and the block copies that must come before.

    `sampling` are those of the rows whose step makes a token; the others' feeds a known one.
    `shaped` are those of them that ask more of their logits; None where none does.
    """

    rows: RowIndex
    sampling: RowIndex
    copies: list[BlockCopy]
    is_sampled: bool
    shaped: RowIndex | None = None

    @property
    def num_rows(self) -> int:
        """Rows 0 to `num_rows - 1` cover all that run."""
        return int(self.rows[-1]) + 1


@dataclass(slots=True)
class AlikeSteps:
    """Steps that follow a planned one and differ from it in nothing but one token more a row.

    `place` is where the plan's rows are, `sampling` where those are of them that make a token, and
    `last_blocks` those that have room for their tokens. As long as no row begins to decode or is
    given back, none that feeds known tokens comes to their last, no budget ends and every last
    block has room, the same rows run, in the same blocks. Then the last plan serves again.
    """

    plan: DecodePlan
    place: RowPlace
    sampling: RowPlace
    last_blocks: IndexArray
    changes: int
    num_left: int

    @classmethod
    def after(
        cls, plan: DecodePlan, rows: Rows, append: BatchAppend, block_size: int
    ) -> AlikeSteps | None:
        """Those after `plan`, which has been counted in `rows` and `append`ed; None if none."""
        room = block_size - 1 - int(append.position.max())
        left = int((rows.budget[plan.rows] - rows.launched[plan.rows]).min())
        place = sampling = place_of(plan.rows)
        if len(plan.sampling) < len(plan.rows):
            sampling = plan.sampling
            until_known = rows.known_len[plan.rows] - rows.length[plan.rows]
            # The step that feeds the last known token samples.
            left = min(left, int(until_known[until_known > 0].min()) - 1)
        num_left = min(room, left)
        if num_left == 0:
            return None
        # Its copies are made once.
        alike = replace(plan, copies=[]) if plan.copies else plan
        last_blocks = append.block_index.astype(np.intp)
        return cls(alike, place, sampling, last_blocks, rows.changes, num_left)

    def is_left(self, rows: Rows) -> bool:
        """Whether another such step may follow."""
        return self.num_left > 0 and self.changes == rows.changes

    def take(self) -> DecodePlan:
        """The next one."""
        self.num_left -= 1
        return self.plan
