"""The rows of the running sequences, on the device, changed by small staged diffs.

A running sequence keeps one row for life. Everything a decode step reads about it stands in that
row on the device: last token, position, remaining budget, block table, sampling parameters. A
decode step advances `last_token`, `position` and `remaining` there by itself; the host only says
what the device cannot know: a row that was taken or given back, and a block that was added.

All fields live in one int32 tensor, so that any set of changes is one list of (offset, value)
pairs, copied once and applied by one scatter. Without changes nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling_params import SamplingParams
from engine.staging import StagingBuffers

IntArray = npt.NDArray[np.int32]

_SCALAR_FIELDS = (
    "last_token",
    "position",
    "remaining",
    "known_len",
    "top_k",
    "top_p",
    "temperature",
)

KNOWN_TAIL = 8
"""Known tokens that a row can be given to feed to its first decode steps, one a step.

A prefill of a few tokens is over a hundred launches, 3 to 5 ms for whatever is running; a replayed
step takes 0.2 to 1 ms and serves the others too.
"""


@dataclass(frozen=True, slots=True)
class RowFields:
    """Views of the rows on the device; R rows, C block-table columns.

    `seed` int64 [R]; `last_token` int32 [R], the token the next step feeds; `position` int32 [R],
    where it stands in its sequence (so also the number of cached tokens before it); `remaining`
    int32 [R], tokens left to sample, 0 for a row that does not run; `known_len` int32 [R], tokens
    that were known when the row was taken: a step before the last of them feeds the next instead
    of sampling; `top_k` int32 [R]; `top_p` and `temperature` float32 [R]; `known_tail` int32
    [R, KNOWN_TAIL], the last known tokens, those at the end up to `known_len`; `block_table`
    int32 [R, C].
    """

    seed: torch.Tensor
    last_token: torch.Tensor
    position: torch.Tensor
    remaining: torch.Tensor
    known_len: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    temperature: torch.Tensor
    known_tail: torch.Tensor
    block_table: torch.Tensor


class DecodeState:
    """The device's rows and the host's staged changes to them.

    Parameters
    ----------
    num_rows
        Sequences that can run at once.
    num_columns
        Blocks of the longest sequence.
    device
        Where the rows live.
    staging
        The pinned buffers through which changes travel.
    """

    def __init__(
        self, num_rows: int, num_columns: int, device: torch.device, staging: StagingBuffers
    ) -> None:
        self.num_rows = num_rows
        self.num_columns = num_columns
        # The 64-bit field comes first, where it is aligned whatever the number of rows.
        self._offsets = {"seed": 0}
        for index, name in enumerate(_SCALAR_FIELDS):
            self._offsets[name] = (2 + index) * num_rows
        self._offsets["known_tail"] = (2 + len(_SCALAR_FIELDS)) * num_rows
        table_offset = self._offsets["known_tail"] + num_rows * KNOWN_TAIL
        self._offsets["block_table"] = table_offset
        size = table_offset + num_rows * num_columns
        self._words = torch.zeros(size, dtype=torch.int32, device=device)
        self._staged_words = np.zeros(size, np.int32)
        self._changed: list[npt.NDArray[np.int64]] = []
        self._staging = staging
        self.device_rows = self._device_views()
        self.block_table: IntArray = self._staged_words[table_offset:].reshape(
            num_rows, num_columns
        )

    def stage_row(
        self,
        row: int,
        *,
        position: int,
        remaining: int,
        seed: int,
        params: SamplingParams,
        block_ids: list[int],
        known_len: int,
        uncomputed: IntArray | None = None,
    ) -> None:
        """Give `row` to a sequence of `known_len` known tokens.

        `uncomputed` are those from `position` on, at most `KNOWN_TAIL`, to be fed by decode steps.
        Without any the sequence has been prefilled, which leaves its last token on the device.
        """
        self._stage_words("seed", 2 * row, np.array([seed], np.int64).view(np.int32))
        self._stage_words("position", row, np.array([position], np.int32))
        self._stage_words("remaining", row, np.array([remaining], np.int32))
        self._stage_words("known_len", row, np.array([known_len], np.int32))
        if uncomputed is not None:
            self._stage_words("last_token", row, uncomputed[:1])
            start = (row + 1) * KNOWN_TAIL - len(uncomputed)
            self._stage_words("known_tail", start, uncomputed)
        self._stage_words("top_k", row, np.array([params.top_k], np.int32))
        self._stage_words("top_p", row, np.array([params.top_p], np.float32).view(np.int32))
        self._stage_words(
            "temperature", row, np.array([params.temperature], np.float32).view(np.int32)
        )
        self._stage_words("block_table", row * self.num_columns, np.array(block_ids, np.int32))

    def stage_stop(self, row: int) -> None:
        """Take `row` out of the steps launched from now on."""
        self._stage_words("remaining", row, np.zeros(1, np.int32))

    def stage_blocks(self, rows: npt.NDArray[np.intp], columns: IntArray, blocks: IntArray) -> None:
        """Put `blocks` into the block tables of `rows` at `columns`, all [N]."""
        self.block_table[rows, columns] = blocks
        self._changed.append(
            self._offsets["block_table"] + rows.astype(np.int64) * self.num_columns + columns
        )

    def flush(self) -> int:
        """Apply what was staged, in stream order; returns the number of words copied."""
        if not self._changed:
            return 0
        # A word staged twice is sent once, with its newest value: scatter leaves the order of
        # duplicates open.
        offsets = np.unique(np.concatenate(self._changed))
        self._changed.clear()
        count = len(offsets)
        # Offsets of 64 bits, and behind them words of 32: one copy, and nothing to convert.
        sent = np.zeros(count + (count + 1) // 2, np.int64)
        sent[:count] = offsets
        sent[count:].view(np.int32)[:count] = self._staged_words[offsets]
        on_device = self._staging.to_device(sent)
        words = on_device[count:].view(torch.int32)[:count]
        self._words.scatter_(0, on_device[:count], words)
        return count

    def _stage_words(self, field: str, index: int, words: IntArray) -> None:
        start = self._offsets[field] + index
        self._staged_words[start : start + len(words)] = words
        self._changed.append(np.arange(start, start + len(words), dtype=np.int64))

    def _device_views(self) -> RowFields:
        rows = self.num_rows

        def field(name: str) -> torch.Tensor:
            return self._words[self._offsets[name] : self._offsets[name] + rows]

        return RowFields(
            seed=self._words[: 2 * rows].view(torch.int64),
            last_token=field("last_token"),
            position=field("position"),
            remaining=field("remaining"),
            known_len=field("known_len"),
            top_k=field("top_k"),
            top_p=field("top_p").view(torch.float32),
            temperature=field("temperature").view(torch.float32),
            known_tail=self._words[self._offsets["known_tail"] : self._offsets["block_table"]].view(
                rows, KNOWN_TAIL
            ),
            block_table=self._words[self._offsets["block_table"] :].view(rows, self.num_columns),
        )
