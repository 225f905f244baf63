"""The loop of a step: schedule, launch, and take in the tokens that have arrived."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat

import numpy as np
import numpy.typing as npt
import torch

from engine.config import EngineConfig
from engine.kv.blocks import KVBlockManager
from engine.models.decoder import Decoder
from engine.parallel.leader import LeadingWorker
from engine.parallel.ranks import Ranks
from engine.requests.request import FinishReason, Request
from engine.requests.token_batch import TokenBatch, TokenNote
from engine.running.drafts import MOST_DRAFTED, Drafts, num_right, share
from engine.running.recipients import Recipients
from engine.scheduling.plans import DecodePlan, FedRows, PrefillPlan
from engine.scheduling.rows import RowIndex, Rows
from engine.scheduling.scheduler import Scheduler, most_drafted_tokens, most_prefill_tokens
from engine.worker.ranges import span
from engine.worker.sampler import INVALID_TOKEN
from engine.worker.worker import Worker, shared_tokens

_STEPS_IN_FLIGHT_ON_CUDA = 3
"""Launches whose tokens the host has not seen, by default: enough that the device does not wait
when the host pauses for a moment."""

_FEW_ROWS = 16
"""With more rows than these requests end so often that waiting for the next prompt costs more time
of the device than it saves."""


def most_in_flight(config: EngineConfig, device_type: str, *, are_shared: bool) -> int:
    """Launches whose tokens the host need not have seen, as the configuration or the default says.

    Where prompts and steps share launches, `are_shared`, a single one: a newcomer waits for all
    that have been launched, and while others' prompts are computed each of these takes as long as a
    piece.
    """
    if config.steps_in_flight is not None:
        return config.steps_in_flight
    if device_type != "cuda":
        return 0
    return 1 if are_shared else _STEPS_IN_FLIGHT_ON_CUDA


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch whose tokens are on their way: for whom, and where in their sequences.

    Of one with drafts, each place of the drafts is a launch of its own.
    """

    ticket: int
    recipients: Recipients
    positions: npt.NDArray[np.int32]
    is_drafted: bool = False


class StepLoop:
    """Moves requests from the queue through the device to their ends.

    Parameters
    ----------
    config
        Limits and policies.
    model
        On its device, in its dtype.
    max_model_len
        Longest sequence, in tokens.
    num_kv_blocks
        Blocks of the KV cache.
    use_graphs
        Replay captured CUDA graphs for decode steps and prefills.
    ranks
        The others, which have a part of the model each. None: the model is whole.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: Decoder,
        *,
        max_model_len: int,
        num_kv_blocks: int,
        use_graphs: bool,
        ranks: Ranks | None = None,
    ) -> None:
        device, num_rows = model.device, config.max_batch_size
        self._decode_first = config.decode_first
        self._mixed_tokens = shared_tokens(config, model)
        are_shared = self._mixed_tokens > 0
        self._steps_in_flight = most_in_flight(config, device.type, are_shared=are_shared)
        self.rows = Rows(num_rows, max_model_len, config.block_size)
        make = Worker if ranks is None else partial(LeadingWorker, ranks)
        self.worker: Worker = make(
            config,
            model,
            self.rows,
            num_kv_blocks=num_kv_blocks,
            max_prefill_tokens=min(most_prefill_tokens(config), num_rows * max_model_len),
            use_graphs=use_graphs,
        )
        self.blocks = KVBlockManager(num_kv_blocks, config.block_size)
        self.scheduler = Scheduler(
            config,
            self.blocks,
            self.rows,
            self.worker.rows,
            self._drain,
            enter_limit=self.worker.runner.enter_limit,
        )
        self._expects_prompts = False
        self._drafts = None if config.speculative is None else Drafts()
        self._most_drafted = most_drafted_tokens(config)
        self._in_flight: deque[_Launch] = deque()
        self._recipients: Recipients | None = None
        self.unfinished: dict[int, Request] = {}
        self.arrived: list[TokenBatch] = []

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.unfinished[request.request_id] = request
        self.scheduler.waiting.append(request)

    def advance(self) -> None:
        """Launch what can run and take in what has come; `arrived` grows.

        When there is nothing to launch, waits for what is still on its way. So it does once where
        an answer has just ended, prompts share launches with steps, and none is left to compute:
        whoever got the answer often sends the next prompt, which then need not wait for one step
        more.
        """
        if self._expects_prompts:
            self._expects_prompts = False
            if self._in_flight and not self.scheduler.has_prompts:
                self._receive(self._in_flight.popleft())
                return
        if self._drafts is not None and self._drafts.worth.allows() and self._launch_drafts():
            return
        launched = self._launch()
        allowed = self._steps_in_flight if launched else 0
        while self._in_flight and (
            len(self._in_flight) > allowed
            or self.worker.token_slots.has_arrived(self._in_flight[0].ticket)
        ):
            self._receive(self._in_flight.popleft())

    def withdraw(self, request: Request) -> None:
        """End an unfinished request now, and give back what it holds."""
        self._give_back(request, "abort")

    def abort(self, request: Request) -> None:
        """`withdraw` it, and let whoever reads its tokens know."""
        self._end_early(request, "abort")

    def take_arrived(self) -> list[TokenBatch]:
        """What has arrived since the last call, in order."""
        arrived, self.arrived = self.arrived, []
        return arrived

    def _launch(self) -> bool:
        """Launch a prefill and a decode step, where there is work; returns whether any was."""
        scheduler = self.scheduler
        if self._mixed_tokens and scheduler.has_prompts:
            return self._launch_mixed()
        if self._decode_first:
            return self._launch_decode() | self._launch_prefill()
        return self._launch_prefill() | self._launch_decode()

    def _launch_mixed(self) -> bool:
        """Launch a decode step with a part of the prompts, or each by itself where that must be."""
        with span("schedule"):
            step = self.scheduler.plan_decode()
            fed = None if step is None else FedRows.of(step, self.rows)
            most, num_fed = self.scheduler.prefill_max_tokens, 0 if fed is None else len(fed.rows)
            room = most - num_fed
            # Without a step nobody waits for the prompts but those that come behind them.
            wanted = self._mixed_tokens if step is not None else 2 * self._mixed_tokens
            wanted = max(wanted - num_fed, wanted // 2, 1)
            if self.scheduler.num_prompt_tokens(most) >= most:
                # In pieces so many prompts would keep most rows from running for a long time.
                wanted = room
            plan = self.scheduler.plan_prefill(min(wanted, room) if room > 0 else None)
        if step is not None and fed is not None and room > 0 and plan is not None and plan.chunks:
            return self._launch_prefill(replace(plan, fed=fed), step)
        if step is not None and not self._launch_decode(step):
            if plan is not None:
                # It may share blocks that the step was to compute.
                self._fail(self._given_up(plan, with_entering=True))
            return False
        return (plan is not None and self._launch_prefill(plan)) | (step is not None)

    def _launch_prefill(
        self, plan: PrefillPlan | None = None, step: DecodePlan | None = None
    ) -> bool:
        """Launch a prefill, planned here unless it has been; it may feed the rows of a step."""
        if plan is None:
            with span("schedule"):
                plan = self.scheduler.plan_prefill()
            if plan is None:
                return False
        if self._drafts is not None:
            self._drafts.worth.interrupt()
        stepping: npt.NDArray[np.intp] = np.empty(0, np.intp) if step is None else step.rows
        try:
            if step is not None:
                if step.copies:
                    self.worker.copy_blocks(step.copies)
                self.worker.send_rows()
            if plan.copies:
                self.worker.copy_blocks(plan.copies)
            # The device begins before the host has staged the rows, which only sampling reads.
            computed = self.worker.compute(plan) if plan.num_tokens else None
        except torch.OutOfMemoryError:
            # Those that only enter may want the copies, or share what the step was to compute.
            with_entering = bool(plan.copies) or step is not None
            failed = self._given_up(plan, with_entering=with_entering)
            self._fail([*failed, *map(self.rows.holder, stepping.tolist())])
            if step is not None:
                self.scheduler.forget_prefixes()
            return False
        with span("schedule"):
            self.scheduler.commit(plan)
        if computed is None:
            # Rows that only enter are sent with what the decode step changes.
            return False
        self.worker.send_rows()
        try:
            is_sampled = self.worker.sample_prompts(plan, computed)
            if self.rows.num_shaped:
                self.worker.shape_prompts(plan, computed)
        except torch.OutOfMemoryError:
            failed = [chunk.request for chunk in plan.chunks]
            self._fail([*failed, *map(self.rows.holder, stepping.tolist())])
            return False
        if is_sampled:
            rows = [request.row for request in plan.completed]
            self._track(np.concatenate((np.array(rows, np.intp), stepping)))
        return True

    def _launch_decode(self, plan: DecodePlan | None = None) -> bool:
        if plan is None:
            with span("schedule"):
                plan = self.scheduler.plan_decode()
            if plan is None:
                return False
        try:
            if plan.copies:
                self.worker.copy_blocks(plan.copies)
            self.worker.send_rows()
            self.worker.decode(plan)
        except torch.OutOfMemoryError:
            self._fail([self.rows.holder(row) for row in plan.rows.tolist()])
            self.scheduler.forget_prefixes()
            return False
        self._track(plan.sampling)
        return True

    def _launch_drafts(self) -> bool:
        """Launch a step that is fed what may come next as well, and take in what is right of it.

        Returns whether anything was launched: what drafts are made of is looked at first while
        launches are on their way, as waiting for those costs time.
        """
        drafts, held, scheduler = self._drafts, self.rows, self.scheduler
        assert drafts is not None
        if scheduler.has_prompts or held.num_shaped:
            return False
        began = time.perf_counter()
        running = held.running()
        if not any(drafts.of(running, held, repeat(1, len(running)))):
            drafts.worth.saw_none(time.perf_counter() - began)
            return False
        self._drain()
        drafts.worth.interrupt()
        if scheduler.has_prompts:
            return False
        began = time.perf_counter()
        step = scheduler.plan_decode()
        fed = None if step is None else FedRows.of(step, held)
        if step is None or fed is None:
            return step is not None and self._launch_decode(step)
        rooms = np.minimum(scheduler.room_for_drafts(fed.rows), MOST_DRAFTED)
        found = share(drafts.of(fed.rows, held, rooms.tolist()), self._room_for_drafts(fed))
        if not any(found):
            drafts.worth.saw_none(time.perf_counter() - began)
            return self._launch_decode(step)
        fed = fed._replace(drafts=found)
        if self._launch_prefill(PrefillPlan([], [], step.copies, fed), step):
            brought = self._take_drafted(fed)
            drafts.worth.saw_drafts(time.perf_counter() - began, brought)
        return True

    def _room_for_drafts(self, fed: FedRows) -> int:
        """Tokens that a launch takes beside the last ones of these rows."""
        return min(self._most_drafted, self.scheduler.prefill_max_tokens - len(fed.rows))

    def _take_drafted(self, fed: FedRows) -> float:
        """Take in the tokens of rows that were fed drafts; returns how many came of each."""
        held, rows, drafts = self.rows, fed.rows, fed.drafts
        assert drafts is not None
        launch = self._in_flight.pop()
        counts = fed.counts
        places = np.arange(counts.sum(), dtype=np.int32)
        places -= np.repeat(counts.cumsum(dtype=np.int32) - counts, counts)
        first = fed.positions + 1
        chosen = self.worker.token_slots.receive(
            launch.ticket, np.repeat(rows, counts), np.repeat(first, counts) + places
        )
        each = np.split(chosen, counts.cumsum()[:-1])
        right = num_right(drafts, each)
        self.scheduler.take_drafted(rows, right)
        recipients = Recipients.of(rows, held)
        for place in range(int(right.max()) + 1):
            have = right >= place
            to = recipients if have.all() else recipients.only(have)
            positions = first[have] + np.int32(place)
            self._receive(_Launch(launch.ticket, to, positions, is_drafted=True))
        # The device has not moved these rows, nor stopped those that have ended.
        goes_on = held.serial[rows] == recipients.serials
        self.worker.rows.stop(rows[~goes_on])
        still = rows[goes_on]
        last = [each[place][right[place]] for place in goes_on.nonzero()[0].tolist()]
        self.worker.rows.go_on(
            still,
            held.length[still],
            held.budget[still] - held.launched[still],
            np.array(last, np.int32),
        )
        return 1 + float(right.mean())

    def _given_up(self, plan: PrefillPlan, *, with_entering: bool) -> list[Request]:
        """The requests of a prefill that is not launched; those that only enter go on, or not."""
        self.scheduler.commit(replace(plan, chunks=[]))
        return [chunk.request for chunk in plan.chunks] + (plan.entering if with_entering else [])

    def _fail(self, requests: Collection[Request]) -> None:
        """End the requests of a launch for which the device has too little memory.

        Without them there may be enough for the others, so the engine goes on.
        """
        # Rows whose last token this launch was to make still run on the device: stop them too.
        self.worker.rows.stop(np.array([request.row for request in requests], np.intp))
        self._drain()
        for request in requests:
            if request.request_id in self.unfinished:
                self._end_early(request, "error")

    def _end_early(self, request: Request, reason: FinishReason) -> None:
        """End an unfinished request without a token, and let whoever reads its tokens know."""
        self._give_back(request, reason)
        text = None if request.written is None else request.written.finish()
        self.arrived.append(
            TokenBatch.of_end(
                request.request_id, len(request.generated), time.perf_counter(), reason, text
            )
        )

    def _give_back(self, request: Request, reason: FinishReason) -> None:
        request.finish_reason = reason
        self.scheduler.withdraw(request)
        del self.unfinished[request.request_id]

    def _track(self, rows: RowIndex) -> None:
        ticket, held = self.worker.token_slots.send(), self.rows
        # Steps that are alike share their recipients.
        if self._recipients is None or not self._recipients.are(rows, held):
            self._recipients = Recipients.of(rows, held)
        self._in_flight.append(_Launch(ticket, self._recipients, held.length[rows]))

    def _drain(self) -> None:
        while self._in_flight:
            self._receive(self._in_flight.popleft())

    def _receive(self, launch: _Launch) -> None:
        """Take in a launch's tokens and end the requests that they complete.

        Tokens of a row that has changed hands since, or whose request overran its end while its
        last token was on its way, are dropped.
        """
        to, held = launch.recipients, self.rows
        with span("readback"):
            tokens = self.worker.token_slots.receive(launch.ticket, to.rows, launch.positions)
        now = time.perf_counter()
        if self._drafts is not None and not launch.is_drafted:
            self._drafts.worth.saw_step(now)
        is_wanted = to.still_hold(held)
        positions = launch.positions
        if is_wanted is not None:
            to, tokens, positions = to.only(is_wanted), tokens[is_wanted], positions[is_wanted]
        index = held.received[to.rows]
        is_token = tokens != INVALID_TOKEN
        received = index + is_token
        held.tokens[to.rows, index] = tokens
        held.token_times[to.rows, index] = now
        held.received[to.rows] = received
        is_stop = held.are_stops(to.rows, tokens)
        noted = None
        if held.num_noted:
            noted = self._noted(to.rows, positions, tokens, is_stop)
        ended = np.flatnonzero(is_stop | ~is_token | (received == held.budget[to.rows]))
        reasons: dict[int, FinishReason] = {
            place: "stop" if is_stop[place] else "length" if is_token[place] else "error"
            for place in ended.tolist()
        }
        if len(to.rows):
            self.arrived.append(
                TokenBatch(to.request_ids, tokens, index, now, reasons, to.id_list, noted)
            )
        if reasons:
            self._finish(to.rows[ended], reasons.values())

    def _noted(
        self,
        rows: RowIndex,
        positions: npt.NDArray[np.int32],
        tokens: npt.NDArray[np.int32],
        is_stop: npt.NDArray[np.bool_],
    ) -> dict[int, TokenNote]:
        """What the tokens come with, by place, where something was asked; N tokens.

        Where a stop string has come, `is_stop` becomes true.
        """
        held, notes = self.rows, {}
        places = held.is_noted[rows].nonzero()[0]
        reported = self.worker.shaper.reported(rows[places], positions[places])
        for place, logprobs in zip(places.tolist(), reported, strict=True):
            row, token = rows[place], int(tokens[place])
            request, text = held.holder(row), None
            if token == INVALID_TOKEN:
                logprobs = None
            elif logprobs is not None:
                request.logprobs.append(logprobs)
            written = request.written
            if written is not None:
                text = "" if token == INVALID_TOKEN else written.push(token)
                is_stop[place] |= written.has_stopped
                is_last = held.received[row] == held.budget[row] or token == INVALID_TOKEN
                if is_last or is_stop[place]:
                    text += written.finish()
                    # Bytes that were held back may complete a stop string, too.
                    is_stop[place] |= written.has_stopped and token != INVALID_TOKEN
            notes[place] = TokenNote(text, logprobs)
        return notes

    def _finish(self, ended: RowIndex, reasons: Collection[FinishReason]) -> None:
        """End the requests of the rows `ended`, one reason for each."""
        requests = [self.rows.holder(row) for row in ended.tolist()]
        for request, reason in zip(requests, reasons, strict=True):
            request.finish_reason = reason
            del self.unfinished[request.request_id]
        self.scheduler.finish(requests)
        self._expects_prompts = bool(self._mixed_tokens) and self.rows.num_taken <= _FEW_ROWS
