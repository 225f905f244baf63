"""The engine for asyncio: one thread steps it, and the event loop never waits for a step.

The loop leaves notes for the thread: submit this, abort that. The thread takes them between steps,
and posts what has arrived back to the loop, all events of a step at once. Nothing else is shared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import EngineStoppedError, RequestError
from engine.requests.async_stream import AsyncStream
from engine.requests.gathered import GatheredAnswer
from engine.requests.params import SamplingParams
from engine.requests.request import Completion, TokenEvent
from engine.requests.validation import Prompt
from engine.text.chat import ChatTemplate, Message
from engine.text.tokenizer import SHORT_TEXT

Result = TypeVar("Result")
Note: TypeAlias = Callable[[Engine], None]


class AsyncEngine:
    """An `Engine` whose steps a thread of its own takes; its methods belong to one event loop.

    `async with AsyncEngine(config) as engine` starts and closes it. Streams that are closed,
    dropped or cancelled abort what has not finished of them.

    Parameters
    ----------
    config
        As of `Engine`.

    Attributes
    ----------
    failure
        The error that a step failed with, after which every call raises; None while all is well.
    is_building
        Whether the thread builds the engine; it can be asked nothing until that is done.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        self._config = config or EngineConfig()
        self._notes: SimpleQueue[Note | None] = SimpleQueue()
        # Of the requests whose ends have not come; a stream that is dropped is in nobody's way.
        self._streams: WeakValueDictionary[int, AsyncStream] = WeakValueDictionary()
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._num_open = 0
        self._engine: Engine | None = None
        self._is_closed = False
        self._thread: Thread | None = None
        self.failure: BaseException | None = None
        self.is_building = False

    async def __aenter__(self) -> AsyncEngine:
        """Start the engine."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the engine; what has not finished is aborted."""
        await self.close()

    @property
    def engine(self) -> Engine:
        """The engine itself, to ask it for its tokenizer and its limits, which never change.

        Raises
        ------
        EngineStoppedError
            It has not been started.
        """
        if self._engine is None:
            raise _unstarted()
        return self._engine

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken."""
        return self._engine is not None and self.failure is None and not self._is_closed

    async def start(self) -> None:
        """Build the engine in its thread.

        Raises
        ------
        ModelError, DeviceError, ConfigError
            As `Engine`.
        """
        loop = asyncio.get_running_loop()
        built: asyncio.Future[Engine] = loop.create_future()
        self._loop = loop
        self.is_building = True
        self._thread = Thread(target=self._run, args=(built,), name="kvtrail-engine", daemon=True)
        self._thread.start()
        self._engine = await built

    async def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, *, text: bool = False
    ) -> AsyncStream:
        """Queue a request, or `params.n` of them; the stream of their tokens.

        Parameters
        ----------
        prompt, params, text
            As of `Engine.submit`.

        Raises
        ------
        RequestError, QueueFullError, EngineStoppedError
            As `Engine.submit`.
        """
        return await self.submit_all([await self.encode(prompt)], params, text=text)

    async def submit_all(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        text: bool = False,
    ) -> AsyncStream:
        """As `Engine.submit_all`; one stream of the tokens of all requests."""
        stream = AsyncStream(self.abort)
        accepted: asyncio.Future[range] = asyncio.get_running_loop().create_future()

        def note(engine: Engine) -> None:
            # A request whose sender has left already is not begun.
            if accepted.cancelled():
                return
            try:
                request_ids = engine.submit_all(prompts, params, text=text)
            except Exception as error:
                self._post(_fail, accepted, error)
            else:
                self._post(self._accept, accepted, stream, request_ids)

        self._leave(note)
        await accepted
        return stream

    async def generate(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> list[Completion]:
        """Run one prompt to its end: as many completions as `params.n` says.

        Raises
        ------
        RequestError, QueueFullError, EngineStoppedError
            As `Engine.submit`.
        """
        submitted_s = time.perf_counter()
        prompt = await self.encode(prompt)
        async with await self.submit(prompt, params) as stream:
            answers = {request_id: GatheredAnswer() for request_id in stream.request_ids}
            async for event in stream:
                answers[event.request_id].add(event)
        reports = params is not None and params.logprobs is not None
        prompt_ids = [int(one) for one in prompt]
        return [
            one.completion(self.engine.tokenizer, prompt_ids, submitted_s, reports=reports)
            for one in answers.values()
        ]

    async def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> Completion:
        """The answer to a conversation, as `Engine.chat`."""
        if params is not None and getattr(params, "n", 1) != 1:
            raise RequestError(f"n is {params.n}, but chat gives one answer.")
        return (await self.generate(await self.encode_chat(messages), params))[0]

    async def ask(self, question: Callable[[Engine], Result]) -> Result:
        """What a question to the engine, such as of its load, returns between two steps."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def note(engine: Engine) -> None:
            try:
                result = question(engine)
            except Exception as error:
                self._post(_fail, answer, error)
            else:
                self._post(_settle, answer, result)

        self._leave(note)
        return await answer

    async def drain(self) -> None:
        """Wait until no request is unfinished, those of closed streams included."""
        await self._at_rest.wait()

    async def close(self) -> None:
        """Stop the thread and the engine; what has not finished is dropped. A second call waits.

        A thread that is still building the engine stops as soon as that is done.
        """
        self._is_closed = True
        self._break(_closed())
        self._notes.put(None)
        if self._thread is not None and not self.is_building:
            await asyncio.to_thread(self._thread.join)

    async def encode(self, prompt: Prompt) -> Prompt:
        """Token ids of a text; a prompt of ids as it is.

        Raises
        ------
        RequestError, ModelError
            As `Tokenizer.encode`.
        """
        tokenizer = self.engine.tokenizer
        if not isinstance(prompt, str) or tokenizer is None:
            return prompt
        if len(prompt) <= SHORT_TEXT:
            return tokenizer.encode(prompt)
        # It would hold up all other streams of this loop.
        return await asyncio.to_thread(tokenizer.encode, prompt)

    async def encode_chat(
        self,
        messages: Sequence[Message],
        template: ChatTemplate | None = None,
        /,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a conversation, as `Tokenizer.encode_chat`.

        Raises
        ------
        RequestError, ModelError
            As there; or the model has no tokenizer.
        """
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            raise RequestError("The conversation is text, but the model has no tokenizer.")
        encode = partial(tokenizer.encode_chat, messages, template, **variables)
        if len(repr((messages, variables))) <= SHORT_TEXT:
            return encode()
        return await asyncio.to_thread(encode)

    def _leave(self, note: Note) -> None:
        if self.failure is not None:
            raise EngineStoppedError(f"This engine has stopped: {self.failure}") from self.failure
        if self._is_closed:
            raise _closed()
        if self._thread is None:
            raise _unstarted()
        self._notes.put(note)

    # What the loop does when the thread posts it.

    def _accept(
        self, accepted: asyncio.Future[range], stream: AsyncStream, request_ids: range
    ) -> None:
        stream.request_ids, stream.num_open = request_ids, len(request_ids)
        self._num_open += len(request_ids)
        if request_ids:
            self._at_rest.clear()
        if accepted.done():
            # Its sender left meanwhile.
            stream.close()
            return
        if self._is_closed:
            self._break(_closed())
            accepted.set_exception(_closed())
            return
        for request_id in stream.request_ids:
            self._streams[request_id] = stream
        accepted.set_result(stream.request_ids)

    def _deliver(self, events: Sequence[TokenEvent]) -> None:
        streams = self._streams
        for event in events:
            stream = streams.get(event.request_id)
            if stream is not None:
                stream.put(event)
            if event.finish_reason is not None:
                streams.pop(event.request_id, None)
                self._num_open -= 1
        if not self._num_open:
            self._at_rest.set()

    def _break(self, error: BaseException) -> None:
        """Let all open streams fail."""
        for stream in list(self._streams.values()):
            stream.fail(error)
        self._streams.clear()
        self._num_open = 0
        self._at_rest.set()

    def _stop(self, error: BaseException) -> None:
        self.failure = error
        self._break(error)

    def abort(self, request_ids: Sequence[int]) -> None:
        """Abort what has not finished of them, soon; from any thread."""

        def note(engine: Engine) -> None:
            for request_id in request_ids:
                engine.abort(request_id)

        self._notes.put(note)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            # The loop has ended, and with it whoever would have read this.
            self._notes.put(None)

    # The thread.

    def _run(self, built: asyncio.Future[Engine]) -> None:
        try:
            engine = Engine(self._config)
        except BaseException as error:
            self.is_building = False
            self._post(_fail, built, error)
            return
        self.is_building = False
        self._post(_settle, built, engine)
        try:
            while self._take_notes(engine):
                if engine.has_unfinished and (events := engine.step()):
                    self._post(self._deliver, events)
            engine.close()
        except BaseException as error:
            self._post(self._stop, error)
            self._refuse_notes(engine)

    def _refuse_notes(self, engine: Engine) -> None:
        """Let those who left a note read the engine's refusal."""
        while (note := self._notes.get()) is not None:
            with suppress(EngineStoppedError):
                note(engine)

    def _take_notes(self, engine: Engine) -> bool:
        """Do what the notes say, and wait for one where there is nothing to step; False at last."""
        is_idle = not engine.has_unfinished
        while True:
            try:
                note = self._notes.get(block=is_idle)
            except Empty:
                return True
            if note is None:
                return False
            note(engine)
            is_idle = False


def _unstarted() -> EngineStoppedError:
    return EngineStoppedError("The engine has not been started: await its start().")


def _closed() -> EngineStoppedError:
    return EngineStoppedError("This engine has stopped: it was closed.")


def _settle(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Result], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
