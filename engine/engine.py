"""Requests in, tokens out: the public face."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineStoppedError, QueueFullError, RequestError
from engine.kv.blocks import KVBlockManager
from engine.numbers import whole_number
from engine.parallel.memory import RankMemory
from engine.requests.delivery import Delivery
from engine.requests.params import SamplingParams
from engine.requests.request import Completion, Request, Shaping, TokenEvent
from engine.requests.run import Run, TokenStream
from engine.requests.token_batch import TokenBatch
from engine.requests.validation import CheckedPrompt, Intake, Prompt, choices_of
from engine.running.build import build
from engine.running.turn import Turn
from engine.scheduling.load import EngineLoad
from engine.text.chat import Message
from engine.text.stops import WrittenText
from engine.worker.device import device_scope

Note: TypeAlias = Request | Run | int
"""A request to queue, a run whose caller has left, or the id of a request to abort."""


class Engine:
    """A paged-KV inference engine with continuous batching. Not thread-safe.

    One call at a time changes its state. `submit`, `abort` and the `close` of a stream may come in
    the middle of another call, from a signal handler or the garbage collector: they take effect
    when that call ends. A step in the middle of another call raises `EngineBusyError`.

    A step that fails, or that Ctrl-C interrupts, stops the engine: its requests are half moved, and
    the device may be a token ahead of the host. From then on every call that would go on raises
    `EngineStoppedError`, and no request counts as unfinished.

    Parameters
    ----------
    config
        What to run, where, and within which limits. Defaults to a tiny built-in model.

    Raises
    ------
    ModelError, DeviceError, ConfigError
        When the model cannot be loaded, the device is not there, or an option does not fit them.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        config = EngineConfig() if config is None else config
        if not isinstance(config, EngineConfig):
            raise ConfigError(f"config is {config!r}; it must be an EngineConfig(model=...).")
        self.config = config
        parts = build(config)
        self.device = parts.device
        self.model = parts.model
        self.model_config = parts.model_config
        self.tokenizer = parts.tokenizer
        self.dtype = parts.model.dtype
        self.max_model_len = parts.max_model_len
        self.decode_mode = parts.decode_mode
        self.num_kv_blocks = parts.num_kv_blocks
        self._ranks = parts.ranks
        if self._ranks is not None:
            # Where nobody calls `close`: NCCL would wait for ever for what is captured.
            weakref.finalize(self, self._ranks.end)
        self._loop = parts.loop
        self._intake = Intake(
            self.model_config.vocab_size,
            self.max_model_len,
            self.num_kv_blocks * config.block_size,
            self.tokenizer,
        )
        self._delivery = Delivery()
        self._turn: Turn[Note] = Turn(self._settle)
        self._next_request_id = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether a `step` has anything left to do or to deliver."""
        if self._turn.has_stopped:
            return False
        loop, noted = self._loop, self._turn.noted
        return bool(loop.unfinished or noted or loop.arrived or self._delivery.unclaimed)

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        if self._turn.has_stopped:
            return 0
        num_noted = 0
        if self._turn.noted:
            # A copy: a signal handler may append while this counts.
            num_noted = sum(isinstance(note, Request) for note in self._turn.noted.copy())
        return len(self._loop.unfinished) + num_noted

    @property
    def block_manager(self) -> KVBlockManager:
        """The pool of KV blocks, to look at."""
        return self._loop.blocks

    @property
    def load(self) -> EngineLoad:
        """How busy the engine is; to be asked between steps."""
        scheduler, num_running = self._loop.scheduler, self._loop.rows.num_taken
        return EngineLoad(
            num_running=num_running,
            num_waiting=max(0, self.num_unfinished - num_running),
            cache_usage=scheduler.num_blocks_held / self.num_kv_blocks,
            num_prompt_tokens=scheduler.num_asked,
            num_cached_tokens=scheduler.num_found,
        )

    def room_after(self, num_tokens: int) -> int:
        """New tokens that a prompt of so many may have at most; below 1 where it is too long."""
        return min(self.max_model_len, self.num_kv_blocks * self.config.block_size) + 1 - num_tokens

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, *, text: bool = False
    ) -> int:
        """Queue a request; returns its id, which its token events carry.

        With `params.n` above 1 there are as many requests, of consecutive ids, the first of which
        is returned.

        Parameters
        ----------
        prompt
            Token ids, or text where the model has a tokenizer.
        params
            Defaults to `SamplingParams()`: 16 greedy tokens.
        text
            Let events bring text: whole characters, as tokens complete them.

        Raises
        ------
        RequestError
            When the request can never run: an empty prompt, ids outside the vocabulary, longer
            than the model or the whole cache allows; or text without a tokenizer. Nothing is
            changed then.
        QueueFullError
            When `max_inflight_requests` are unfinished already.
        EngineStoppedError
            When the engine has stopped.
        """
        submitted_s = time.perf_counter()
        checked = choices_of(*self._intake.check(prompt, params))
        return self._submit(checked, submitted_s, text=text)

    def submit_all(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        text: bool = False,
    ) -> range:
        """As `submit` for each prompt, with one `params` for all or one for each; all their ids.

        Raises
        ------
        RequestError, QueueFullError, EngineStoppedError
            As `submit`; one refusal refuses them all, and nothing is changed.
        """
        submitted_s = time.perf_counter()
        checked = self._intake.check_all(prompts, params)
        first_id = self._submit(checked, submitted_s, text=text)
        return range(first_id, first_id + len(checked))

    def step(self) -> list[TokenEvent]:
        """Launch what can run and return the tokens that have arrived, in order of arrival.

        On CUDA the tokens of a launch arrive a step or more later. A step that finds nothing to
        launch waits for what is still on its way. Tokens of an open `stream` are for it alone.

        Raises
        ------
        EngineBusyError
            In the middle of another call, such as from a signal handler.
        EngineStoppedError
            When the engine has stopped.
        """
        return self._turn.take(self._step_events)

    def step_batches(self) -> list[TokenBatch]:
        """`step` without an object for each token: a batch for each launch that has arrived.

        For large batches, or for callers who pass tokens on in columns: of the host's work in a
        step, making an object for each token is what grows with the batch.
        """
        return self._turn.take(self._step_columns)

    def abort(self, request_id: int) -> None:
        """End a request now; its last event, without a token, comes with the next step.

        What it held is free at once; in the middle of another call, when that has ended. A request
        that has already finished is left as it is.

        Raises
        ------
        RequestError
            When no such request was ever submitted.
        EngineStoppedError
            When the engine has stopped.
        """
        number = whole_number(request_id)
        if number is None or not 0 <= number < self._next_request_id:
            raise RequestError(
                f"Request {request_id!r} was never submitted: abort takes an id that submit "
                "returned."
            )
        self._turn.note(number)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Run all prompts to their ends; completions come in the order of the prompts.

        With `n` above 1 the completions of one prompt stand beside each other.

        Parameters
        ----------
        prompts
            Each a sequence of token ids, or text.
        params
            One for all, or one for each prompt.

        Raises
        ------
        RequestError
            As `submit`; one bad prompt refuses them all, and nothing is changed.
        EngineBusyError, EngineStoppedError
            As `step`.
        """
        run = self._open(prompts, params, keeps_events=False)
        try:
            while not run.is_over:
                self._go_on(run)
        finally:
            self._leave(run)
        return [request.completion(self._text(request)) for request in run.requests]

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """The answer to a conversation, by the chat template that the tokenizer brings.

        `engine.tokenizer.encode_chat(messages)` gives the prompt alone, for `stream` or several
        answers.

        Parameters
        ----------
        messages
            Each with a `role`, such as "user", and a `content`.
        params
            As of `generate`; with `n` of 1.

        Raises
        ------
        RequestError
            The model has no tokenizer, or that no chat template, or it refuses the messages; and
            as `generate`.
        ModelError, EngineBusyError, EngineStoppedError
            The template is damaged; and as `generate`.
        """
        if params is not None and getattr(params, "n", 1) != 1:
            raise RequestError(
                f"n is {params.n}, but chat gives one answer: generate from "
                "tokenizer.encode_chat(messages) instead."
            )
        tokenizer = self._intake.require_text("The conversation is text")
        return self.generate([tokenizer.encode_chat(messages)], params)[0]

    def stream(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        text: bool = False,
    ) -> TokenStream:
        """Like `generate`, but yields each token's event as it arrives.

        With `text`, events bring text: whole characters, as tokens complete them. Request ids
        follow the order of the prompts. Closing or dropping the stream early aborts what has not
        finished. Any number of streams may be open: each has its own tokens, whichever of them is
        asked for the next.
        """
        # Checked at the call, not when the first event is asked for.
        self._require_tokenizer(text)
        run = self._open(prompts, params, keeps_events=True, writes_text=text)
        return TokenStream(run, self._go_on, self._leave)

    def close(self) -> None:
        """Stop for good: unfinished requests are dropped, and later calls raise.

        A second call does nothing. The engine's memory is freed when the engine is dropped; the
        processes of other ranks end here, with theirs.

        Raises
        ------
        EngineBusyError
            In the middle of another call.
        """
        self._turn.end("it was closed")
        if self._ranks is not None:
            self._ranks.end()

    def rank_memory(self) -> list[RankMemory]:
        """What each rank holds, in the order of ranks; one where there is a single device.

        Raises
        ------
        EngineBusyError, EngineStoppedError
            As `step`.
        """
        own = RankMemory.of(0, self._loop.worker)
        if self._ranks is None:
            return [own]
        return [own, *self._turn.take(self._ranks.memory)]

    @contextmanager
    def tracing_ranks(self, folder: Path) -> Iterator[None]:
        """Trace what the other ranks do meanwhile, by torch's profiler: rank 1 in `rank-1.json`.

        The first rank is this process, which you trace yourself. Where the others wait for it to
        say what to do, that is a range of their traces, "wait for rank 0".

        Parameters
        ----------
        folder
            Where the traces go; it is made if need be.

        Raises
        ------
        EngineBusyError, EngineStoppedError
            As `step`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self._ranks is None:
            yield
            return
        self._turn.take(self._ranks.trace, None)
        try:
            yield
        finally:
            if not self._turn.has_stopped:
                self._turn.take(self._ranks.trace, folder.resolve())

    def check_integrity(self) -> None:
        """Check the KV bookkeeping against the sequences that hold it.

        An engine that has stopped keeps no books any more: nothing is checked then.

        Raises
        ------
        IntegrityError
            When they disagree: a bug in the engine.
        EngineBusyError
            In the middle of another call.
        """
        if not self._turn.has_stopped:
            self._turn.take(self._loop.scheduler.check_integrity)

    def _open(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        keeps_events: bool,
        writes_text: bool = False,
    ) -> Run:
        self._turn.require_going()
        submitted_s = time.perf_counter()
        checked = deque(self._intake.check_all(prompts, params))
        return Run(checked, submitted_s, keeps_events, writes_text)

    def _submit(self, checked: list[CheckedPrompt], submitted_s: float, *, text: bool) -> int:
        self._require_tokenizer(text)
        limit, count = self.config.max_inflight_requests, len(checked)
        if limit is not None and count > limit:
            raise RequestError(f"{count} answers are asked for; {limit} may be unfinished at once.")
        if limit is not None and self.num_unfinished + count > limit:
            raise QueueFullError(
                f"{self.num_unfinished} requests are unfinished and max_inflight_requests is "
                f"{limit}: submit again when one has finished."
            )
        first_id = self._take_ids(count)
        for request_id, (prompt_ids, params) in enumerate(checked, first_id):
            request = self._make_request(request_id, prompt_ids, params, submitted_s, text)
            self._turn.note(request)
        return first_id

    def _require_tokenizer(self, text: bool) -> None:
        if text:
            self._intake.require_text("Text was asked for")

    def _go_on(self, run: Run) -> None:
        """Submit as much of the run as is allowed, and take a step."""
        self._turn.take(self._advance_run, run)
        run.submitted_s = time.perf_counter()

    def _leave(self, run: Run) -> None:
        """Abort what has not finished of the run, and forget it."""
        if run.is_over:
            return
        try:
            self._turn.note(run)
        except EngineStoppedError:
            # A stopped engine gives nothing back: its run just ends.
            run.is_closed = True

    # Only the methods below change the engine's state, while their call has the turn.

    def _step_events(self) -> list[TokenEvent]:
        self._advance()
        batches = self._delivery.take_unclaimed()
        if len(batches) == 1:
            return batches[0].events()
        return [event for batch in batches for event in batch.events()]

    def _step_columns(self) -> list[TokenBatch]:
        self._advance()
        return self._delivery.take_unclaimed()

    def _advance_run(self, run: Run) -> None:
        limit = self.config.max_inflight_requests
        while run.waiting and (limit is None or self.num_unfinished < limit):
            prompt_ids, params = run.waiting.popleft()
            request = self._make_request(
                self._take_ids(1), prompt_ids, params, run.submitted_s, run.writes_text
            )
            run.requests.append(request)
            self._delivery.expect(request.request_id, run)
            self._loop.add(request)
        self._advance()

    def _advance(self) -> None:
        with device_scope(self.device):
            self._loop.advance()
        self._delivery.deal(self._loop.take_arrived())

    def _settle(self, note: Note) -> None:
        if isinstance(note, Request):
            self._loop.add(note)
        elif isinstance(note, Run):
            for request_id in note.unfinished:
                self._loop.withdraw(self._loop.unfinished[request_id])
            # Their ends have nobody left to read them.
            self._delivery.close(note)
        elif note in self._loop.unfinished:
            self._loop.abort(self._loop.unfinished[note])
            self._delivery.deal(self._loop.take_arrived())

    def _take_ids(self, count: int) -> int:
        """The first of `count` ids that nobody else has."""
        # No signal handler can run between these two lines: neither calls anything.
        first_id = self._next_request_id
        self._next_request_id = first_id + count
        return first_id

    def _make_request(
        self,
        request_id: int,
        prompt_ids: npt.NDArray[np.int32],
        params: SamplingParams,
        submitted_s: float,
        writes_text: bool,
    ) -> Request:
        stop_ids = params.stop_token_ids
        if not params.ignore_eos:
            stop_ids = tuple(dict.fromkeys((*stop_ids, *self.model_config.eos_token_ids)))
        # Each request of an engine gets a seed of its own, and engines of neighbouring seeds get
        # quite different ones.
        seed = params.seed
        if seed is None:
            seed = (self.config.seed * 0x9E3779B1 + request_id) % 2**63
        request = Request(request_id, prompt_ids, params, seed, stop_ids, submitted_s)
        request.shaping = Shaping.of(params, len(prompt_ids), stop_ids)
        if (writes_text or params.stop) and self.tokenizer is not None:
            request.written = WrittenText(self.tokenizer, params.stops, params.min_new_tokens)
        return request

    def _text(self, request: Request) -> str | None:
        if self.tokenizer is None:
            return None
        if request.written is not None:
            return request.written.text
        return self.tokenizer.decode(request.generated.tolist())
