"""The host's rows, one for each running sequence; the device's are `engine.transport.device_rows`.

The decode loop reads and advances these with whole-batch numpy operations; Python touches single
rows only when a sequence takes or leaves one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.errors import IntegrityError
from engine.kv.integrity import Int32Array
from engine.kv.pool import EMPTY
from engine.requests.request import Request
from engine.transport.device_rows import RowStarts

RowIndex: TypeAlias = npt.NDArray[np.intp]
RowPlace: TypeAlias = RowIndex | slice
"""Rows to index arrays by; what is read by a slice is a view."""

_NO_STOP = -2
"""Fills unused places of `stop_ids`; neither a token id nor `INVALID_TOKEN`."""


def place_of(rows: RowIndex) -> RowPlace:
    """`rows`, at least one, ascending, as numpy finds them fastest: 0 to N - 1 as a slice."""
    return slice(0, len(rows)) if rows[-1] == len(rows) - 1 else rows


class Rows:
    """Counters and block tables of R rows.

    Parameters
    ----------
    num_rows
        Sequences that can run at once.
    max_model_len
        Tokens of the longest sequence.
    block_size
        Tokens per KV block.

    Attributes
    ----------
    num_shaped, num_noted
        Rows in use whose requests are `is_shaped`, and `is_noted`.
    changes
        Counts up whenever a row begins to decode, is released, or changes hands.
    requests
        Who holds each row, or None.
    request_ids
        int64 [R], their ids.
    serial
        int64 [R], changes whenever a row changes hands: a token that arrives late belongs to the
        row's present request only if the serial is still that of its launch.
    decoding
        bool [R], runs in decode steps until its output is launched in full or has ended.
    length
        int32 [R], tokens that have a place in the KV cache.
    known_len
        int32 [R], tokens known when the row was taken; the rest are sampled.
    block_table
        int32 [R, C], the blocks of these tokens, once the row decodes; C is that of the longest
        sequence. What stands behind them means nothing.
    last_block
        int32 [R], the last of these blocks.
    launched, received, budget
        int32 [R], output tokens asked of the device, seen by the host, and allowed.
    is_sampled
        bool [R], temperature above 0, and drawn from the logits as they are.
    is_shaped
        bool [R], asks more of its logits, see `engine.worker.shaper`.
    is_noted
        bool [R], its tokens come with text or logprobs.
    num_stops
        int32 [R], how many ids end the row's request.
    stop_ids
        int32 [R, S], these ids; S is that of the request with most of them, at least 1.
    tokens, token_times
        int32 and float64 [R, max_model_len], the output seen so far.
    """

    def __init__(self, num_rows: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.changes = 0
        self.requests: list[Request | None] = [None] * num_rows
        self.request_ids = np.full(num_rows, -1, np.int64)
        self.serial = np.zeros(num_rows, np.int64)
        self.decoding = np.zeros(num_rows, np.bool_)
        self.length = np.zeros(num_rows, np.int32)
        self.known_len = np.zeros(num_rows, np.int32)
        num_columns = -(-max_model_len // block_size)
        self.block_table = np.zeros((num_rows, num_columns), np.int32)
        self.last_block = np.full(num_rows, -1, np.int32)
        self.launched = np.zeros(num_rows, np.int32)
        self.received = np.zeros(num_rows, np.int32)
        self.budget = np.zeros(num_rows, np.int32)
        self.is_sampled = np.zeros(num_rows, np.bool_)
        self.is_shaped = np.zeros(num_rows, np.bool_)
        self.is_noted = np.zeros(num_rows, np.bool_)
        self.num_shaped = self.num_noted = 0
        self.num_stops = np.zeros(num_rows, np.int32)
        self.stop_ids = np.full((num_rows, 1), _NO_STOP, np.int32)
        self._has_stops = False
        self.tokens = np.empty((num_rows, max_model_len), np.int32)
        self.token_times = np.empty((num_rows, max_model_len), np.float64)
        self._free = list(range(num_rows))

    @property
    def num_taken(self) -> int:
        """Rows in use."""
        return len(self.requests) - len(self._free)

    def take(self, requests: Sequence[Request]) -> None:
        """Give each request one of the lowest free rows, and its earlier output a place there.

        The lowest goes to the request with most tokens to come, and among equals to the longest,
        which enters with most tokens to feed: steps are narrow as soon as the others have ended.

        Raises
        ------
        IntegrityError
            If fewer rows are free than are asked for; nothing has changed then.
        """
        # Without this check numpy would give a single free row to all of them.
        if len(requests) > len(self._free):
            raise IntegrityError(
                f"{len(requests)} requests should take a row each, but {len(self._free)} are free."
            )
        num_generated = np.array([len(request.generated) for request in requests], np.int32)
        known_len = np.array([request.num_known_tokens for request in requests], np.int32)
        budget = np.array([request.params.max_new_tokens for request in requests], np.int32)
        rows = np.empty(len(requests), np.intp)
        by_length = np.lexsort((-known_len, num_generated - budget))
        # Lowest row first: a graph covers rows 0 to the highest in use.
        self._free.sort()
        rows[by_length] = self._free[: len(requests)]
        del self._free[: len(requests)]
        for request, row in zip(requests, rows.tolist(), strict=True):
            request.row = row
            self.requests[row] = request
        for place in num_generated.nonzero()[0].tolist():
            row, request, count = rows[place], requests[place], num_generated[place]
            self.tokens[row, :count] = request.generated
            self.token_times[row, :count] = request.token_times
        self.request_ids[rows] = [request.request_id for request in requests]
        self.serial[rows] += 1
        self.decoding[rows] = False
        self.known_len[rows] = known_len
        self.launched[rows] = self.received[rows] = num_generated
        self.budget[rows] = budget
        self.is_sampled[rows] = [
            request.params.temperature > 0
            and (request.shaping is None or not request.shaping.adjusts)
            for request in requests
        ]
        self.is_shaped[rows] = [request.shaping is not None for request in requests]
        self.is_noted[rows] = [request.is_noted for request in requests]
        self._count_asking()
        self._set_stop_ids(rows, [request.stop_ids for request in requests])

    def start_decoding(self, requests: Sequence[Request], rows: RowIndex) -> None:
        """Let requests run in the decode steps to come, from what they have computed on.

        Their blocks, which hold what they have computed, are the row's from now on.
        """
        self.changes += 1
        self.length[rows] = [request.num_computed for request in requests]
        self.decoding[rows] = True
        for row, request in zip(rows.tolist(), requests, strict=True):
            ids = request.block_ids
            self.block_table[row, : len(ids)] = ids
            self.last_block[row] = ids[-1] if ids else EMPTY
            request.block_ids = []

    def starts(self, rows: RowIndex, uncomputed: Sequence[Int32Array]) -> RowStarts:
        """What the device must know of the sequences that start in `rows` [N]."""
        requests = [self.holder(row) for row in rows.tolist()]
        return RowStarts(
            rows=rows,
            positions=self.length[rows],
            remaining=self.budget[rows] - self.launched[rows],
            seeds=[request.seed for request in requests],
            params=[request.params for request in requests],
            num_blocks=self.num_blocks(rows),
            known_len=self.known_len[rows],
            uncomputed=uncomputed,
        )

    def num_blocks(self, rows: RowIndex) -> Int32Array:
        """Blocks that the tokens of decoding `rows` [N] take, int32 [N]."""
        return -(-self.length[rows] // self.block_size)

    def blocks(self, rows: RowIndex) -> list[Int32Array]:
        """The blocks of each of the decoding `rows`; copies."""
        counts = self.num_blocks(rows).tolist()
        return [
            self.block_table[row, :count].copy()
            for row, count in zip(rows.tolist(), counts, strict=True)
        ]

    def running(self) -> RowIndex:
        """Rows that have output left to launch, ascending, intp [N]."""
        return (self.decoding & (self.launched < self.budget)).nonzero()[0]

    def free(self) -> RowIndex:
        """Rows that nobody holds, ascending, intp [N]."""
        return np.sort(np.array(self._free, np.intp))

    def are_stops(self, rows: RowIndex, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of the `tokens` [N] end the requests of the `rows` [N] that they are for."""
        if not self._has_stops:
            return np.zeros(len(rows), np.bool_)
        ends: npt.NDArray[np.bool_] = (tokens[:, None] == self.stop_ids[rows]).any(axis=1)
        return ends

    def holder(self, row: int) -> Request:
        """The request that holds the row, which must be taken."""
        request = self.requests[row]
        if request is None:
            raise IntegrityError(f"Row {row} should be held by a request, but is free.")
        return request

    def move(self, sources: RowIndex, targets: RowIndex) -> None:
        """Give those who hold `sources` [N] the `targets` [N] instead, which must be free."""
        self.changes += 1
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            request, received = self.holder(source), self.received[source]
            self.requests[source], self.requests[target] = None, request
            request.row = target
            self.tokens[target, :received] = self.tokens[source, :received]
            self.token_times[target, :received] = self.token_times[source, :received]
        for column in (
            self.request_ids,
            self.decoding,
            self.length,
            self.known_len,
            self.block_table,
            self.last_block,
            self.launched,
            self.received,
            self.budget,
            self.is_sampled,
            self.is_shaped,
            self.is_noted,
            self.num_stops,
            self.stop_ids,
        ):
            column[targets] = column[sources]
        self.serial[sources] += 1
        self.serial[targets] += 1
        self.decoding[sources] = False
        self.num_stops[sources] = 0
        self.is_shaped[sources] = self.is_noted[sources] = False
        self._free = [*set(self._free).difference(targets.tolist()), *sources.tolist()]

    def release(self, rows: RowIndex) -> None:
        """Take the rows, each at most once, from their requests, which keep the output seen."""
        self.changes += 1
        for row, received in zip(rows.tolist(), self.received[rows].tolist(), strict=True):
            request = self.holder(row)
            # A copy for each: a view would keep the output of all rows alive.
            request.generated = self.tokens[row, :received].copy()
            request.token_times = self.token_times[row, :received].copy()
            request.num_known_tokens = len(request.prompt) + received
            request.row = None
            self.requests[row] = None
        self._free += rows.tolist()
        self.serial[rows] += 1
        self.decoding[rows] = False
        if self.num_shaped or self.num_noted:
            self.is_shaped[rows] = self.is_noted[rows] = False
            self._count_asking()
        if self.stop_ids.shape[1] > 1:
            self._forget_stop_ids(rows)

    def _count_asking(self) -> None:
        self.num_shaped = int(np.count_nonzero(self.is_shaped))
        self.num_noted = int(np.count_nonzero(self.is_noted))

    def _set_stop_ids(self, rows: RowIndex, stop_ids: Sequence[tuple[int, ...]]) -> None:
        counts = [*map(len, stop_ids)]
        most = max(counts, default=0)
        if not most and not self._has_stops:
            return
        self.num_stops[rows] = counts
        missing = most - self.stop_ids.shape[1]
        if missing > 0:
            self.stop_ids = np.pad(self.stop_ids, ((0, 0), (0, missing)), constant_values=_NO_STOP)
        self.stop_ids[rows] = _NO_STOP
        for row, ids in zip(rows.tolist(), stop_ids, strict=True):
            if ids:
                self.stop_ids[row, : len(ids)] = ids
        # Stop ids of a released row still count until another request takes it, which is harmless.
        self._has_stops = bool(np.count_nonzero(self.num_stops))

    def _forget_stop_ids(self, rows: RowIndex) -> None:
        """Make `stop_ids` as narrow again as the remaining requests allow."""
        self.num_stops[rows] = 0
        most = max(1, int(self.num_stops.max()))
        if most < self.stop_ids.shape[1]:
            self.stop_ids = self.stop_ids[:, :most].copy()
