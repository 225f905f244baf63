"""The device's rows, one for each running sequence; the host's are `engine.scheduling.rows`.

A row holds everything that a decode step reads about its sequence: last token, position, remaining
budget, block table, sampling parameters. A step advances `last_token`, `position` and `remaining`
there by itself. The host sends what the device cannot know: which sequence started or stopped in a
row, and which block was added.

All fields live in one int32 tensor, so that any set of changes is one list of (offset, value)
pairs, applied by one scatter. Without changes nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.requests.params import SamplingParams
from engine.transport.word_changes import WordChanges

IntArray = npt.NDArray[np.int32]

_STARTED_FIELDS = ("position", "remaining", "known_len", "top_k", "top_p", "temperature")
"""What every sequence brings that takes a row; they stand one after another."""
_SCALAR_FIELDS = ("last_token", *_STARTED_FIELDS)

_BOTH_HALVES = np.arange(2)
"""The words of a 64-bit field."""

NO_TOKENS: IntArray = np.empty(0, np.int32)

KNOWN_TAIL = 8
"""Known tokens that a row can be given to feed to its first decode steps, one a step.

A prefill of a few tokens costs the running sequences several steps; a step that feeds them serves
the others too.
"""

_FROM_THE_END = np.arange(KNOWN_TAIL, 0, -1)
"""Of each place of a row's tail."""


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


class RowStarts(NamedTuple):
    """N sequences that start in `rows`, in columns, each row at most once.

    `num_blocks` counts the blocks that stand in the host's block table. Of the `known_len` known
    tokens of each, `uncomputed` are those from `positions` on, int32, at most `KNOWN_TAIL`, to be
    fed by decode steps. Without any the sequence has been prefilled, which leaves its last token on
    the device.
    """

    rows: npt.NDArray[np.intp]
    positions: Sequence[int] | IntArray
    remaining: Sequence[int] | IntArray
    seeds: Sequence[int]
    params: Sequence[SamplingParams]
    num_blocks: Sequence[int] | IntArray
    known_len: Sequence[int] | IntArray
    uncomputed: Sequence[IntArray]


class DeviceRows:
    """Rows on the device, and the host's changes that have not been sent.

    Parameters
    ----------
    block_table
        The host's, int32 [R, C]: blocks of each row's sequence. It is read when changes are sent.
    device
        Where the rows live.

    Attributes
    ----------
    fields
        Views of the rows on the device.
    """

    def __init__(self, block_table: IntArray, device: torch.device) -> None:
        num_rows, num_columns = block_table.shape
        self.num_rows = num_rows
        self.num_columns = num_columns
        self.device = device
        # The 64-bit field comes first, where it is aligned whatever the number of rows.
        self._offsets = {"seed": 0}
        for index, name in enumerate(_SCALAR_FIELDS):
            self._offsets[name] = (2 + index) * num_rows
        self._offsets["known_tail"] = (2 + len(_SCALAR_FIELDS)) * num_rows
        table_offset = self._offsets["known_tail"] + num_rows * KNOWN_TAIL
        self._offsets["block_table"] = table_offset
        self._words = torch.zeros(table_offset + block_table.size, dtype=torch.int32, device=device)
        self._scatter = WordChanges(self._words)
        self._host_words = np.zeros(table_offset, np.int32)
        self._host_table = block_table.reshape(-1)
        # Where words changed: the offset of an array of the host's, that array, and places in it.
        self._changed: list[tuple[int, IntArray, npt.NDArray[np.int64]]] = []
        self._started_places = np.arange(len(_STARTED_FIELDS)) * num_rows
        self.fields = self._views()

    def start(self, starts: RowStarts) -> None:
        """Let sequences start, all columns at a time."""
        rows = starts.rows.astype(np.int64)
        count = len(rows)
        if not count:
            return
        params = starts.params
        # All fields at once, in their order: the device waits where a batch begins, so as few calls
        # of numpy as possible.
        words = np.empty((len(_STARTED_FIELDS), count), np.int32)
        words[:4] = (
            starts.positions,
            starts.remaining,
            starts.known_len,
            [one.top_k for one in params],
        )
        words[4:].view(np.float32)[:] = (
            [one.top_p for one in params],
            [one.temperature for one in params],
        )
        self._change(_STARTED_FIELDS[0], self._started_places[:, None] + rows, words)
        seeds = np.array(starts.seeds, np.int64).view(np.int32).reshape(count, 2)
        self._change("seed", 2 * rows[:, None] + _BOTH_HALVES, seeds)
        num_blocks = np.asarray(starts.num_blocks)
        if num_blocks.any():
            self._note_blocks(_consecutive(rows * self.num_columns, num_blocks))
        self._change_uncomputed(rows, starts.uncomputed)

    def stop(self, rows: npt.NDArray[np.intp]) -> None:
        """Take `rows` [N] out of the steps launched from now on."""
        if len(rows):
            self._change("remaining", rows.astype(np.int64), np.zeros(len(rows), np.int32))

    def go_on(
        self, rows: npt.NDArray[np.intp], positions: IntArray, remaining: IntArray, tokens: IntArray
    ) -> None:
        """Let `rows` [N] feed these last tokens at these positions next, with such budgets."""
        places = rows.astype(np.int64)
        self._change("position", places, positions)
        self._change("remaining", places, remaining)
        self._change("last_token", places, tokens)

    def note_blocks(self, rows: npt.NDArray[np.intp], columns: IntArray) -> None:
        """Note that the host's block table has changed in `rows` at `columns`, both [N]."""
        self._note_blocks(rows.astype(np.int64) * self.num_columns + columns)

    def send(self) -> int:
        """Apply all changes, in stream order; returns the number of words sent."""
        changes = self.take_changes()
        if changes is None:
            return 0
        self.apply(*changes)
        return len(changes[0])

    def take_changes(self) -> tuple[npt.NDArray[np.int64], IntArray] | None:
        """The places and values of the words that `apply` is to change; None where none is."""
        if not self._changed:
            return None
        # A word changed twice is sent twice, both times with its newest value.
        offsets = np.concatenate([first + places for first, _, places in self._changed])
        words = np.concatenate([source[places] for _, source, places in self._changed])
        self._changed.clear()
        return offsets, words

    def apply(self, offsets: npt.NDArray[np.int64], words: IntArray) -> None:
        """Put `words` [N] at `offsets` [N] of the rows, in stream order."""
        self._scatter.send(offsets, words)

    def _change_uncomputed(
        self, rows: npt.NDArray[np.int64], uncomputed: Sequence[IntArray]
    ) -> None:
        """The tokens that decode steps feed: the first at once, all of them from the tail."""
        lengths = np.array([len(tokens) for tokens in uncomputed])
        fed = lengths.nonzero()[0]
        if not len(fed):
            return
        rows, lengths = rows[fed], lengths[fed]
        tokens = np.concatenate(uncomputed)
        self._change("last_token", rows, tokens[np.cumsum(lengths) - lengths])
        is_filled = lengths[:, None] >= _FROM_THE_END
        self._change(
            "known_tail", ((rows + 1)[:, None] * KNOWN_TAIL - _FROM_THE_END)[is_filled], tokens
        )

    def _change(self, field: str, places: npt.NDArray[np.int64], words: IntArray) -> None:
        """Put `words` at `places` of a field, or beyond it in those behind; both of one shape."""
        offsets = self._offsets[field] + places
        self._host_words[offsets] = words
        self._changed.append((0, self._host_words, offsets.reshape(-1)))

    def _note_blocks(self, places: npt.NDArray[np.int64]) -> None:
        self._changed.append((self._offsets["block_table"], self._host_table, places))

    def _views(self) -> RowFields:
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


def _consecutive(
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """`lengths` consecutive numbers from each of `starts`, one range after another."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())
