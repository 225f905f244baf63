"""The endpoints: what each reads, asks of the engine, and replies."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from engine.async_engine import AsyncEngine
from engine.errors import QueueFullError, RequestError
from engine.requests.async_stream import AsyncStream
from engine.requests.params import SamplingParams
from engine.requests.validation import Prompt
from engine.serving.answers import Answer, ChatShape, CompletionShape, Shape
from engine.serving.bodies import Asked, Body, ChatBody, CompletionBody, read_body
from engine.serving.errors import ApiError, told
from engine.serving.metrics import CONTENT_TYPE, Metrics
from engine.text.chat import ChatTemplate

MOST_BODY_BYTES = 32 << 20
"""Room for a prompt of millions of tokens, as text or as ids."""

BODY_TIMEOUT_S = 60.0
"""A client that sends half a request holds its connection for so long."""

_DEFAULT_MAX_TOKENS = 16
_OPEN_TO_ALL = ("/health", "/metrics")

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Service:
    """What the endpoints share.

    Attributes
    ----------
    engine
        It may be loading still.
    model
        The name that clients call it by.
    api_key
        What clients must bring; None: anybody may ask.
    template
        A chat template in place of the tokenizer's own; it is there once the engine is.
    is_closing
        Whether nobody new is answered any more.
    """

    engine: AsyncEngine
    model: str
    api_key: str | None = None
    template: ChatTemplate | None = None
    is_closing: bool = False
    metrics: Metrics = field(default_factory=Metrics)
    created: int = field(default_factory=lambda: int(time.time()))

    def require_ready(self) -> None:
        """Refuse with 503 while the engine loads, and after it has stopped."""
        if self.is_closing:
            raise ApiError(503, "The server is closing.", code="closing")
        if self.engine.failure is not None:
            raise ApiError(503, f"The engine has stopped: {self.engine.failure}.", code="stopped")
        if not self.engine.is_ready:
            raise ApiError(503, "The model is being loaded: ask again soon.", code="loading")

    def require_model(self, name: str | None) -> None:
        """Refuse with 404 what asks for another model."""
        if name not in (None, "", self.model):
            raise ApiError(
                404,
                f"There is no model {name!r} here; this server has {self.model!r}.",
                param="model",
                code="model_not_found",
            )


def make_app(service: Service) -> Starlette:
    """The application of a service, whose engine others start and close."""

    async def health(request: Request) -> Response:
        service.require_ready()
        return _json({"status": "ok"})

    async def models(request: Request) -> Response:
        return _json({"object": "list", "data": [_model(service)]})

    async def model(request: Request) -> Response:
        service.require_model(request.path_params["name"])
        return _json(_model(service))

    async def metrics(request: Request) -> Response:
        load = await service.engine.ask(lambda one: one.load) if service.engine.is_ready else None
        return Response(service.metrics.text(load), headers={"Content-Type": CONTENT_TYPE})

    async def completions(request: Request) -> Response:
        body = await _read(service, request, CompletionBody)
        prompts = [await service.engine.encode(one) for one in body.prompts]
        room = min(service.engine.engine.room_after(len(one)) for one in prompts)
        wanted = body.max_tokens
        # Without a wish it must at least fit, and with one the engine says how long it may be.
        most = max(1, min(_DEFAULT_MAX_TOKENS, room)) if wanted is None else wanted
        params = body.sampling(most, body.logprobs)
        echoed = None
        if body.echo:
            echoed = [text for text in _texts(service, body.prompts) for _ in range(params.n)]
        shape = CompletionShape(service.engine.engine.tokenizer)
        return await _answer(service, request, body, shape, prompts, params, echoed)

    async def chat(request: Request) -> Response:
        body = await _read(service, request, ChatBody)
        variables = {**(body.chat_template_kwargs or {}), "tools": body.tools}
        if body.add_generation_prompt is not None:
            variables["add_generation_prompt"] = body.add_generation_prompt
        prompt = await service.engine.encode_chat(body.messages, service.template, **variables)
        most = body.most_tokens
        if most is None:
            most = max(1, service.engine.engine.room_after(len(prompt)))
        params = body.sampling(most, body.num_logprobs)
        shape = ChatShape(service.engine.engine.tokenizer)
        return await _answer(service, request, body, shape, [prompt], params)

    routes = [
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
    ]

    async def on_error(request: Request, error: Exception) -> Response:
        return _refusal(error)

    app = Starlette(routes=routes, exception_handlers={HTTPException: on_error})
    app.add_middleware(_Guard, service=service)
    return app


class _Guard:
    """Asks for the key, turns errors into replies, and counts replies by their status."""

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def counted(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                self._service.metrics.replies[message["status"]] += 1
            await send(message)

        try:
            self._require_key(Request(scope))
            await self._app(scope, receive, counted)
        except ClientDisconnect:
            return
        except Exception as error:
            if has_begun:
                raise
            refusal = told(error)
            await _refusal(refusal)(scope, receive, counted)
            if refusal.status == 500 and not isinstance(error, ApiError):
                raise

    def _require_key(self, request: Request) -> None:
        key = self._service.api_key
        if key is None or request.url.path in _OPEN_TO_ALL:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = secrets.compare_digest(given.strip().encode("latin-1"), key.encode())
        if scheme.lower() != "bearer" or not is_right:
            raise ApiError(
                401,
                "The API key is wrong or missing: send it as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
            )


class _Chunks(Response):
    """A stream of server-sent events; a client that leaves closes it."""

    def __init__(self, stream: AsyncStream, answer: Answer, body: Asked) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(
            {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        self._stream = stream
        self._answer = answer
        options = body.stream_options
        self._with_usage = options is not None and options.include_usage
        self._continuously = self._with_usage and bool(options and options.continuous_usage_stats)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with _closed_by_leaving(self._stream, self._answer, receive):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await self._send_all(send)
            except Exception as error:
                await send(_part(_event(told(error).body)))
            if self._answer.is_whole:
                await send(_part(b"data: [DONE]\n\n"))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        answer, usage = self._answer, self._with_usage
        while events := await self._stream.take():
            # Tokens that came together, as for a slow reader, are one chunk of each choice.
            chunks = answer.chunks(
                answer.add(events), with_usage=usage, continuously=self._continuously
            )
            await send(_part(b"".join(map(_event, chunks))))
        if usage and answer.is_whole:
            await send(_part(_event(answer.last_chunk())))


class _closed_by_leaving:  # noqa: N801 (a context manager, used as a function)
    """Closes a stream when the client leaves, and at the end."""

    def __init__(self, stream: AsyncStream, answer: Answer, receive: Receive) -> None:
        self._stream = stream
        self._answer = answer
        self._receive = receive

    async def __aenter__(self) -> None:
        self._watch = asyncio.create_task(self._close_when_left())

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        self._stream.close()
        self._answer.count_aborted()

    async def _close_when_left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._stream.close()


async def _answer(
    service: Service,
    request: Request,
    body: Asked,
    shape: Shape,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    echoed: Sequence[str] | None = None,
) -> Response:
    """Submit the prompts, and answer with one reply or a stream."""
    engine = service.engine
    has_text = bool(body.stream) and engine.engine.tokenizer is not None
    submitted_s = time.perf_counter()
    try:
        stream = await engine.submit_all(prompts, params, text=has_text)
    except QueueFullError:
        raise
    except RequestError as error:
        raise body.refusal(error) from error
    answer = Answer(
        shape,
        service.model,
        stream.request_ids,
        num_prompt_tokens=sum(map(len, prompts)),
        tokenizer=engine.engine.tokenizer,
        metrics=service.metrics,
        submitted_s=submitted_s,
    )
    if echoed is not None:
        answer.begin_with(echoed)
    if body.stream:
        return _Chunks(stream, answer, body)
    async with _closed_by_leaving(stream, answer, request.receive):
        while events := await stream.take():
            answer.add(events)
    if not answer.is_whole:
        raise ClientDisconnect
    return _json(answer.reply())


async def _read(service: Service, request: Request, kind: type[Body]) -> Body:
    """The checked body of a request that can be answered."""
    service.require_ready()
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MOST_BODY_BYTES:
                    raise ApiError(
                        413, f"The body is longer than {MOST_BODY_BYTES >> 20} MiB, the most here."
                    )
    except TimeoutError:
        raise ApiError(408, "The body did not come to its end in time.") from None
    asked = read_body(kind, bytes(body))
    service.require_model(asked.model)
    return asked


def _texts(service: Service, prompts: Sequence[Prompt]) -> list[str]:
    """The prompts as texts."""
    tokenizer = service.engine.engine.tokenizer
    if tokenizer is None:
        raise ApiError(400, "The model has no tokenizer: leave out echo.", param="echo")
    return [
        one if isinstance(one, str) else tokenizer.decode(one, skip_special_tokens=False)
        for one in prompts
    ]


def _model(service: Service) -> dict[str, object]:
    engine = service.engine
    known = {"max_model_len": engine.engine.max_model_len} if engine.is_ready else {}
    told_of = {"id": service.model, "object": "model", "created": service.created}
    return {**told_of, "owned_by": "kvtrail", **known}


def _json(content: object, status: int = 200) -> Response:
    return Response(_encode(content), status, media_type="application/json")


def _refusal(error: Exception) -> Response:
    headers: Mapping[str, str] = {}
    if isinstance(error, HTTPException):
        headers = error.headers or {}
        error = ApiError(error.status_code, f"{error.detail}: see docs/how-to/serve-a-model.md.")
    refusal = told(error)
    reply = _json(refusal.body, refusal.status)
    reply.headers.update({**headers, **refusal.headers})
    return reply


def _event(content: object) -> bytes:
    return b"data: " + _encode(content) + b"\n\n"


def _part(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}
