"""Who runs in the next step, and with which KV blocks.

Sequences join and leave between steps. All block needs are settled here, before anything is
launched: a new block at a boundary, copy-on-write of a shared last block, and, when the pool is
empty, first eviction from the prefix cache, then preemption of the youngest sequence, whose blocks
are freed and which is computed again later. Nothing is lost, and a full cache is never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice

import numpy as np

from engine.config import EngineConfig
from engine.errors import IntegrityError
from engine.kv.blocks import BlockCopy, KVBlockManager
from engine.kv.integrity import Int32Array
from engine.kv.prefix_cache import PrefixCache
from engine.requests.request import Request
from engine.scheduling.admission import make_admission
from engine.scheduling.compaction import (
    LEAST_STEPS_TO_MOVE_FOR,
    LEAST_WIDTH_TO_LEAVE,
    move_to_lowest_rows,
)
from engine.scheduling.plans import AlikeSteps, DecodePlan, PrefillChunk, PrefillPlan
from engine.scheduling.rows import RowIndex, Rows
from engine.scheduling.waiting import BlockedRequests, WaitingQueue
from engine.transport.device_rows import DeviceRows

DEFAULT_PREFILL_MAX_TOKENS = 8192
"""Bounds a prefill's activations; a longer prompt is computed in chunks."""

_MOST_DRAFTED_TOKENS = 64

_LEAST_EVICTED_SHARE = 64
"""An eviction frees at least one in so many blocks of the pool: finding the oldest looks at all of
them, and a full cache would otherwise be searched for every new request."""


def most_prefill_tokens(config: EngineConfig) -> int:
    """Tokens of a prefill at most, as the configuration or the default says."""
    return config.prefill_max_tokens or DEFAULT_PREFILL_MAX_TOKENS


def most_drafted_tokens(config: EngineConfig) -> int:
    """Drafted tokens of a launch at most; 0 where none are drafted."""
    return 0 if config.speculative is None else _MOST_DRAFTED_TOKENS


class Scheduler:
    """Queues, rows and KV blocks of all unfinished requests.

    Parameters
    ----------
    config
        Limits and admission policy.
    blocks
        The pool of KV blocks.
    rows, device_rows
        The host's and the device's side of the running sequences.
    drain
        Waits until all launched tokens have been seen. Called before a preemption, because the
        preempted sequence's tokens must be known to compute it again, and before sequences move to
        lower rows.
    enter_limit
        A request with at most so many tokens left to compute enters the decode steps at once,
        which then compute them one a step.

    Attributes
    ----------
    prefill_max_tokens
        Tokens of one prefill at most.
    num_asked, num_found
        Tokens of all requests that were admitted, and those of them that the prefix cache had.
    """

    def __init__(
        self,
        config: EngineConfig,
        blocks: KVBlockManager,
        rows: Rows,
        device_rows: DeviceRows,
        drain: Callable[[], None],
        *,
        enter_limit: int = 1,
    ) -> None:
        self._enter_limit = enter_limit
        self.blocks = blocks
        self.prefix_cache = PrefixCache(blocks) if config.prefix_cache else None
        self.waiting = WaitingQueue()
        self._prefilling: list[Request] = []
        self._rows = rows
        self._device_rows = device_rows
        self._drain = drain
        self._admission = make_admission(config)
        self.prefill_max_tokens = most_prefill_tokens(config)
        self._prefill_max_batch_size = config.prefill_max_batch_size or config.max_batch_size
        self._max_active = min(
            config.max_active_requests or config.max_batch_size, config.max_batch_size
        )
        self._num_admitted = 0
        self.num_asked = self.num_found = 0
        # Blocks that this round's admitted requests need and have not taken: prefills take theirs
        # together when the round ends, entering requests take theirs in the next decode step.
        self._num_promised = 0
        self._blocked = BlockedRequests(blocks, self.prefix_cache)
        self._alike: AlikeSteps | None = None

    @property
    def has_prompts(self) -> bool:
        """Whether there are prompts, begun or waiting, that are not computed."""
        return bool(self.waiting or self._prefilling)

    def num_prompt_tokens(self, most: int) -> int:
        """Tokens that are not computed, of begun prompts and of those that wait and find a row,
        counted up to about `most`."""
        count, num_free = 0, self._max_active - self._rows.num_taken
        for request in chain(self._prefilling, islice(self.waiting.values(), num_free)):
            count += request.num_uncomputed
            if count >= most:
                break
        return count

    def plan_prefill(self, budget: int | None = None) -> PrefillPlan | None:
        """Continue begun prompts and admit waiting ones, within a budget of tokens; by default the
        step's."""
        budget = budget or self.prefill_max_tokens
        self._num_promised = 0
        chunks: list[PrefillChunk] = []
        admitted: list[Request] = []
        entering: list[Request] = []
        prefilled: list[Request] = []
        copies: list[BlockCopy] = []
        # Another answer of such a prompt finds whole blocks of it, once they are computed.
        begun: set[int] = set()
        for request in self._prefilling[: self._prefill_max_batch_size]:
            begun.add(id(request.prompt))
            if budget:
                chunks.append(self._chunk(request, budget))
                budget -= chunks[-1].end - chunks[-1].start
        self._admission.start_round()
        num_taken, waiting = self._rows.num_taken, self.waiting
        room = min(self._prefill_max_batch_size - len(chunks), self._max_active - num_taken)
        while budget and waiting and len(admitted) < room:
            is_first = not chunks and not entering
            candidates = waiting.first(self._admission.lookahead)
            index = self._admission.choose(candidates, budget, is_first=is_first)
            if index is None:
                break
            request = candidates[index]
            if self.prefix_cache is not None and id(request.prompt) in begun:
                break
            attached = self._attach_prefix(request, is_alone=not num_taken and not admitted)
            if attached is None:
                break
            copies += attached
            waiting.remove(request)
            admitted.append(request)
            request.admission_order = self._num_admitted
            self._num_admitted += 1
            self.num_asked += request.num_known_tokens
            self.num_found += request.num_computed
            # Decode steps compute what is left where that is little.
            uncomputed = request.num_uncomputed
            if uncomputed <= self._enter_limit:
                entering.append(request)
                budget -= min(budget, uncomputed)
                continue
            prefilled.append(request)
            if uncomputed > self.blocks.block_size:
                begun.add(id(request.prompt))
            chunks.append(self._chunk(request, budget))
            budget -= chunks[-1].end - chunks[-1].start
        if admitted:
            self._rows.take(admitted)
        if prefilled:
            self._prefilling += prefilled
            copies += self.blocks.extend_batch(
                [request.block_ids for request in prefilled],
                [request.num_uncomputed for request in prefilled],
            )
        return PrefillPlan(chunks, entering, copies) if chunks or entering else None

    def commit(self, plan: PrefillPlan) -> None:
        """Account for a launched prefill: what it completes and what enters decodes from now on.

        What completed prompts sample next is read from the device's rows, so they must be sent
        before it is launched.
        """
        completed = []
        for chunk in plan.chunks:
            request = chunk.request
            request.num_computed = chunk.end
            if chunk.completes_prompt:
                completed.append(request)
                self._prefilling.remove(request)
                self._offer_prefix(request, request.block_ids)
        starting, held = completed + plan.entering, self._rows
        rows = _rows_of(starting)
        # A prefill samples the first token itself.
        held.launched[rows[: len(completed)]] += 1
        uncomputed = [one.known_tokens[one.num_computed :] for one in starting]
        held.start_decoding(starting, rows)
        self._device_rows.start(held.starts(rows, uncomputed))

    def plan_decode(self) -> DecodePlan | None:
        """Give every running row a place for one more token, preempting where none is left."""
        rows = self._rows
        alike = self._alike
        if alike is not None and alike.is_left(rows):
            self.blocks.append_in_place(alike.last_blocks)
            rows.length[alike.place] += 1
            rows.launched[alike.sampling] += 1
            return alike.take()
        # Where all sequences begin their blocks together, this runs once in block_size steps and is
        # in no cache of the CPU by then: so it calls little that other steps do not.
        running = self._running_with_room()
        # Only where that makes steps half as wide: then requests move no more often than they end.
        if len(running) and running[-1] + 1 >= 2 * (len(running) + len(self._prefilling)):
            running = self._moved_to_lowest_rows(running)
        if not len(running):
            return None
        append = self.blocks.append_to_last_blocks(rows.last_block[running])
        # A row gets a new last block at a block boundary or by copy-on-write.
        changed = (append.block_index != rows.last_block[running]).nonzero()[0]
        if len(changed):
            changed_rows = running[changed]
            columns = rows.length[changed_rows] // self.blocks.block_size
            rows.block_table[changed_rows, columns] = append.block_index[changed]
            rows.last_block[changed_rows] = append.block_index[changed]
            self._device_rows.note_blocks(changed_rows, columns)
        length = rows.length[running] + 1
        rows.length[running] = length
        beyond_known = length - rows.known_len[running]
        sampling = running[beyond_known >= 0]
        rows.launched[sampling] += 1
        if self.prefix_cache is not None:
            # Rows that entered with tokens to compute and feed the last of them in this step.
            completed = running[beyond_known == 0]
            for row, block_ids in zip(completed.tolist(), rows.blocks(completed), strict=True):
                self._offer_prefix(rows.holder(row), block_ids.tolist())
        is_sampled = bool(np.count_nonzero(rows.is_sampled[running]))
        shaped = None
        if rows.num_shaped and rows.is_shaped[sampling].any():
            shaped = sampling[rows.is_shaped[sampling]]
        plan = DecodePlan(running, sampling, append.copies, is_sampled, shaped)
        self._alike = AlikeSteps.after(plan, rows, append, self.blocks.block_size)
        return plan

    def take_drafted(self, rows: RowIndex, counts: Int32Array) -> None:
        """A step of these rows made so many tokens more, where their last blocks had room."""
        held = self._rows
        held.length[rows] += counts
        held.launched[rows] += counts
        self.blocks.append_in_place(held.last_block[rows].astype(np.intp), counts)
        # No step that was planned before is like the next one.
        held.changes += 1

    def room_for_drafts(self, rows: RowIndex) -> Int32Array:
        """Tokens beyond those of the step just planned for which last blocks and budgets have room,
        int32 [N]."""
        held = self._rows
        in_block = -held.length[rows] % self.blocks.block_size
        left: Int32Array = held.budget[rows] - held.launched[rows]
        return np.minimum(in_block, left, out=left)

    @property
    def num_blocks_held(self) -> int:
        """Blocks that unfinished requests hold; the prefix cache alone holds none for them."""
        evictable = 0 if self.prefix_cache is None else self.prefix_cache.num_evictable
        return self.blocks.num_blocks - self.blocks.num_free_blocks - evictable

    def withdraw(self, request: Request) -> None:
        """Give back what a request holds that ends early: running, prefilling or waiting."""
        if request.row is None:
            self.waiting.remove(request)
        else:
            self._send_away(request)

    def finish(self, requests: Sequence[Request]) -> None:
        """Give back what running requests hold, leaving their blocks to the prefix cache.

        Their `finish_reason` is set. A whole batch often ends in one step: so as much as possible
        is done for all at once.
        """
        rows = _rows_of(requests)
        block_ids = self._rows.blocks(rows)
        self._vacate(requests, rows)
        if self.prefix_cache is not None:
            for request, held in zip(requests, block_ids, strict=True):
                if request.finish_reason in ("length", "stop"):
                    # The last token is left out: it is in the KV cache only where another step was
                    # launched before the end was seen.
                    self.prefix_cache.insert(request.known_tokens[:-1], held.tolist())
        self.blocks.free_blocks(np.concatenate(block_ids))

    def forget_prefixes(self) -> None:
        """Empty the prefix cache: it may hold blocks that a failed step did not compute."""
        if self.prefix_cache is not None:
            self.prefix_cache.clear()

    def check_integrity(self) -> None:
        """Hold the block pool against all who hold blocks.

        Raises
        ------
        IntegrityError
            Naming the block that is wrong.
        """
        holders: list[list[int]] = []
        lengths: list[int | None] = []
        for row, request in enumerate(self._rows.requests):
            if request is None:
                continue
            if request in self._prefilling:
                holders.append(request.block_ids)
                lengths.append(request.num_known_tokens)
            else:
                holders.append(self._rows.blocks(np.array([row]))[0].tolist())
                lengths.append(int(self._rows.length[row]))
        if self.prefix_cache is not None:
            holders.append(self.prefix_cache.held_blocks())
            lengths.append(None)
        self.blocks.check_integrity(holders, lengths)

    def _offer_prefix(self, request: Request, block_ids: list[int]) -> None:
        """Let others reuse the known tokens' whole blocks; the last may still be written to."""
        num_blocks = request.num_known_tokens // self.blocks.block_size
        if self.prefix_cache is not None and num_blocks:
            tokens = request.known_tokens[: num_blocks * self.blocks.block_size]
            self.prefix_cache.insert(tokens, block_ids[:num_blocks])

    def _chunk(self, request: Request, budget: int) -> PrefillChunk:
        start = request.num_computed
        return PrefillChunk(request, start, min(start + budget, request.num_known_tokens))

    def _attach_prefix(self, request: Request, *, is_alone: bool) -> list[BlockCopy] | None:
        """Give `request` the blocks of its cached prefix, and promise it those of its other tokens.

        Returns the copies to make first, or None where the pool has no room for all known tokens
        now.
        """
        if not is_alone and self._blocked.includes(request, self._num_promised):
            return None
        if self.prefix_cache is not None:
            match = self.prefix_cache.match(request.known_tokens)
            block_ids = list(match.block_ids)
            if self._promise_blocks(request, block_ids, match.num_tokens):
                return list(match.copies)
            self.blocks.free_blocks(block_ids)
        # Reuse pins blocks. Where nothing runs that could free any, it must give way, or the
        # request would wait for ever.
        if self.prefix_cache is None or is_alone:
            if self._promise_blocks(request, [], 0):
                return []
            if is_alone:
                raise IntegrityError(
                    f"Request {request.request_id} fits the whole cache, nothing runs, and yet "
                    f"{request.num_known_tokens} tokens find no room."
                )
        self._blocked.note(request, self._num_promised)
        return None

    def _promise_blocks(self, request: Request, block_ids: list[int], num_cached: int) -> bool:
        """Let `request` have `block_ids` and what its other tokens need, where that is free."""
        num_missing = request.num_known_tokens - num_cached
        needed = self.blocks.blocks_needed_to_extend(block_ids, num_missing)
        if not self._make_room(self._num_promised + needed):
            return False
        self._num_promised += needed
        request.num_computed = num_cached
        request.block_ids = block_ids
        return True

    def _running_with_room(self) -> RowIndex:
        """The running rows, after preempting as many as it takes to find blocks for the others."""
        running = self._rows.running()
        # A row takes one block at most: where more are free, nothing needs counting.
        while len(running) > self.blocks.num_free_blocks:
            needed = self.blocks.blocks_needed_for_append(self._rows.last_block[running])
            if self._make_room(needed):
                break
            self._preempt_youngest()
            running = self._rows.running()
        return running

    def _moved_to_lowest_rows(self, running: RowIndex) -> RowIndex:
        """The running rows, after moving sequences that run on to the lowest free rows."""
        rows = self._rows
        num_left = (rows.budget[running] - rows.launched[running]).max()
        if running[-1] + 1 < LEAST_WIDTH_TO_LEAVE or num_left < LEAST_STEPS_TO_MOVE_FOR:
            return running
        self._drain()
        move_to_lowest_rows(rows, self._device_rows)
        return rows.running()

    def _make_room(self, num_blocks: int) -> bool:
        """Whether `num_blocks` are free, after evicting cached blocks if that takes it.

        Where even that would not do, nothing is evicted.
        """
        missing = num_blocks - self.blocks.num_free_blocks
        if missing <= 0:
            return True
        if self.prefix_cache is None or missing > self.prefix_cache.num_evictable:
            return False
        self.prefix_cache.evict(max(missing, self.blocks.num_blocks // _LEAST_EVICTED_SHARE))
        return True

    def _preempt_youngest(self) -> None:
        """Send the sequence admitted last back to the head of the queue.

        Where tokens that are still on their way end a request, nobody is preempted.
        """
        changes = self._rows.changes
        self._drain()
        # Free blocks do not tell: a request that ends may leave all its blocks to the prefix cache.
        if self._rows.changes != changes:
            return
        request = max(
            (request for request in self._rows.requests if request is not None),
            key=lambda request: request.admission_order,
        )
        self._send_away(request)
        request.num_computed = 0
        self.waiting.prepend(request)

    def _send_away(self, request: Request) -> None:
        """Take row and blocks from a request that runs or prefills."""
        rows = _rows_of([request])
        if self._rows.decoding[rows[0]]:
            (block_ids,) = self._rows.blocks(rows)
        else:
            block_ids = np.array(request.block_ids, np.int32)
            self._prefilling.remove(request)
        self._vacate([request], rows)
        self.blocks.free_blocks(block_ids)

    def _vacate(self, requests: Sequence[Request], rows: RowIndex) -> None:
        """Take their rows from requests, whose blocks the caller gives back."""
        held = self._rows
        # The device ends a row itself where its budget does.
        is_ended = held.launched[rows] >= held.budget[rows]
        self._device_rows.stop(rows[held.decoding[rows] & ~is_ended])
        held.release(rows)
        for request in requests:
            request.block_ids = []


def _rows_of(requests: Sequence[Request]) -> RowIndex:
    rows = [request.row for request in requests]
    if None in rows:
        request_id = requests[rows.index(None)].request_id
        raise IntegrityError(f"Request {request_id} should have a row, but has none.")
    return np.array(rows, np.intp)
