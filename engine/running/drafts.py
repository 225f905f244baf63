"""Drafts of what comes next: where the last tokens of a sequence stood before, what followed them.

Whoever edits code or answers out of a text copies much of it. A launch that computes the drafted
tokens beside the last one tells for each what the model would have chosen, and the draft is right
as far as that is the same (Saxena, "Prompt Lookup Decoding", 2023). Weights are read once for all.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from engine.kv.integrity import Int32Array
from engine.scheduling.rows import RowIndex, Rows
from engine.transport.token_slots import NUM_SLOTS

MOST_DRAFTED = NUM_SLOTS - 1
"""Tokens of a draft: with the one after it, as many as the slots of a row take of one launch."""
_GRAM = 3
"""Tokens that must have stood before."""
_BITS = 21
"""Of a token id in a key of so many."""
_WINDOW = 4
"""Steps without drafts whose time is measured together."""
_WEIGHT = 0.25
"""Of the newest of the times that are averaged."""
_MOST_LOST = 0.005
"""Of the time of steps without drafts, which looking for drafts and wrong ones may cost."""
_AT_FIRST, _MOST_SAVED, _MOST_OWED = 4, 16, 2
"""Steps whose time may be lost before any was saved; of what was saved; and of what is to be made
up for, so that one look at a very long text does not end all drafts."""


class Lookup:
    """What followed the last few tokens of one sequence when they stood there before."""

    def __init__(self, known: Int32Array) -> None:
        self._tokens: list[int] = known.tolist()
        ids = known.astype(np.int64)
        keys = np.zeros(max(len(ids) - _GRAM, 0), np.int64)
        for place in range(_GRAM):
            keys = (keys << _BITS) + ids[place : place + len(keys)]
        # Of equal ones the last.
        self._next = dict(zip(keys.tolist(), range(_GRAM, len(ids)), strict=True))

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, tokens: Iterable[int]) -> None:
        """The sequence goes on with these."""
        for token in tokens:
            if len(self._tokens) >= _GRAM:
                self._next[self._last()] = len(self._tokens)
            self._tokens.append(token)

    def draft(self, most: int) -> list[int]:
        """Up to so many tokens that may come next."""
        if len(self._tokens) < _GRAM:
            return []
        first = self._next.get(self._last())
        return [] if first is None else self._tokens[first : first + most]

    def _last(self) -> int:
        key = 0
        for token in self._tokens[-_GRAM:]:
            key = (key << _BITS) + token
        return key


class Worth:
    """Whether to look for drafts, by what launches with and without them took of late.

    What drafts save may be lost again, and a small share of the time of steps without them. So a
    text that repeats nothing costs next to nothing, and so does one that goes on otherwise.
    """

    def __init__(self) -> None:
        self._step_s, self._left_s = 0.0, 0.0
        # Of the steps whose time is being measured.
        self._began_s, self._num_seen = 0.0, -1

    def allows(self) -> bool:
        """Whether to look for drafts before the next step."""
        return self._step_s > 0 and self._left_s >= 0

    def saw_step(self, now_s: float) -> None:
        """The tokens of a step without drafts have come."""
        self._save(_MOST_LOST * self._step_s)
        self._num_seen += 1
        if self._num_seen == 0:
            self._began_s = now_s
        elif self._num_seen == _WINDOW:
            mean = (now_s - self._began_s) / _WINDOW
            if not self._step_s:
                self._step_s, self._left_s = mean, _AT_FIRST * mean
            self._step_s += _WEIGHT * (mean - self._step_s)
            self._began_s, self._num_seen = now_s, 0

    def interrupt(self) -> None:
        """Something else is launched between steps."""
        self._num_seen = -1

    def saw_none(self, seconds: float) -> None:
        """There was nothing to draft, which took so long to see."""
        self._save(-seconds)

    def saw_drafts(self, seconds: float, tokens_a_row: float) -> None:
        """A launch with drafts took so long, and brought so many tokens."""
        self._save(tokens_a_row * self._step_s - seconds)

    def _save(self, seconds: float) -> None:
        left, step = self._left_s + seconds, self._step_s
        self._left_s = max(min(left, _MOST_SAVED * step), -_MOST_OWED * step)


class Drafts:
    """The drafts of an engine's rows, and whether they are worth it."""

    def __init__(self) -> None:
        self.worth = Worth()
        self._lookups: dict[int, Lookup] = {}

    def of(self, rows: RowIndex, held: Rows, most: Iterable[int]) -> list[list[int]]:
        """A draft for each of the rows, of so many tokens at most, by the tokens seen so far."""
        known, self._lookups = self._lookups, {}
        drafts = []
        for row, limit in zip(rows.tolist(), most, strict=True):
            request = held.holder(row)
            lookup = known.get(request.request_id) or Lookup(request.prompt)
            self._lookups[request.request_id] = lookup
            seen = len(lookup) - len(request.prompt)
            lookup.append(held.tokens[row, seen : held.received[row]].tolist())
            drafts.append(lookup.draft(limit))
        return drafts


def share(drafts: list[list[int]], most: int) -> list[list[int]]:
    """The drafts, the longest of them cut until they have no more than `most` tokens together.

    Where one token each is still too many, the last have none.
    """
    longest, left, shared = max(map(len, drafts), default=0), most, []
    while longest > 1 and sum(min(len(draft), longest) for draft in drafts) > most:
        longest -= 1
    for draft in drafts:
        shared.append(draft[: min(longest, left)])
        left -= len(shared[-1])
    return shared


def num_right(drafts: list[list[int]], chosen: list[npt.NDArray[np.int32]]) -> Int32Array:
    """How many tokens of each draft the model would have chosen as well, from the first on, int32.

    `chosen` has of each draft what follows its last known token, and then what follows each of its
    own.
    """
    return np.array(
        [
            next((n for n, token in enumerate(draft) if token != own[n]), len(draft))
            for draft, own in zip(drafts, chosen, strict=True)
        ],
        np.int32,
    )
