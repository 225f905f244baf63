"""Tokens that arrived together, in columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.requests.request import FinishReason, TokenEvent, TokenLogprobs
from engine.worker.sampler import INVALID_TOKEN


class TokenNote(NamedTuple):
    """What a token comes with where its request asked: see `TokenEvent`."""

    text: str | None
    logprobs: TokenLogprobs | None


_NOTHING = TokenNote(None, None)


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """Tokens, at most one of a request, that the host saw at the same moment; N of them.

    Attributes
    ----------
    request_ids
        int64 [N], read-only: batches for the same requests share it.
    token_ids
        int32 [N]; -1 where a request ends without a token: an abort, or an error.
    indices
        int32 [N]; each counts its request's output tokens from 0.
    time_s
        `time.perf_counter()` when the host saw them.
    finish_reasons
        Those of the requests that end here, by their place in the columns.
    id_list
        `request_ids` as Python integers, where they have been made already.
    notes
        What tokens come with besides, by their place in the columns; None where none was asked.
    """

    request_ids: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int32]
    indices: npt.NDArray[np.int32]
    time_s: float
    finish_reasons: Mapping[int, FinishReason]
    id_list: list[int] | None = None
    notes: Mapping[int, TokenNote] | None = None

    @classmethod
    def of_end(
        cls,
        request_id: int,
        index: int,
        time_s: float,
        reason: FinishReason,
        text: str | None = None,
    ) -> TokenBatch:
        """The end, without a token, of a request that has generated `index` tokens."""
        return cls(
            np.array([request_id], np.int64),
            np.array([INVALID_TOKEN], np.int32),
            np.array([index], np.int32),
            time_s,
            {0: reason},
            notes=None if text is None else {0: TokenNote(text, None)},
        )

    def __len__(self) -> int:
        return len(self.request_ids)

    def events(self) -> list[TokenEvent]:
        """An object for each token, in order."""
        token_ids: list[int | None] = self.token_ids.tolist()
        reasons: Iterable[FinishReason | None] = repeat(None)
        if self.finish_reasons:
            reasons = [self.finish_reasons.get(place) for place in range(len(token_ids))]
            for place in self.finish_reasons:
                if token_ids[place] == INVALID_TOKEN:
                    token_ids[place] = None
        notes: Sequence[Iterable[object]] = ()
        if self.notes:
            each = [self.notes.get(place, _NOTHING) for place in range(len(token_ids))]
            notes = [[one.text for one in each], [one.logprobs for one in each]]
        return list(
            map(
                TokenEvent,
                self.ids,
                token_ids,
                self.indices.tolist(),
                repeat(self.time_s),
                reasons,
                *notes,
            )
        )

    @property
    def ids(self) -> list[int]:
        """`request_ids` as Python integers."""
        return self.request_ids.tolist() if self.id_list is None else self.id_list

    @property
    def ended_ids(self) -> list[int]:
        """Ids of the requests that end here."""
        return [int(self.request_ids[place]) for place in self.finish_reasons]

    def only(self, is_wanted: npt.NDArray[np.bool_]) -> TokenBatch:
        """Those that are wanted, bool [N]."""
        new_places = np.cumsum(is_wanted) - 1
        reasons = {
            int(new_places[place]): reason
            for place, reason in self.finish_reasons.items()
            if is_wanted[place]
        }
        notes = {
            int(new_places[place]): note
            for place, note in (self.notes or {}).items()
            if is_wanted[place]
        }
        return TokenBatch(
            self.request_ids[is_wanted],
            self.token_ids[is_wanted],
            self.indices[is_wanted],
            self.time_s,
            reasons,
            notes=notes,
        )
