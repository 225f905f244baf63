"""The server's process: it listens while the model is loaded, and drains before it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import socket
import sys
from pathlib import Path
from types import FrameType

import uvicorn

from engine.async_engine import AsyncEngine
from engine.errors import ConfigError
from engine.serving.app import Service, make_app
from engine.serving.options import ServerOptions
from engine.text.chat import ChatTemplate

_SWITCH_INTERVAL_S = 0.0005
"""After so long the loop lets the engine's thread go on, sooner than by default: a step that waits
for the interpreter is a step that everybody waits for."""

_BACKLOG = 4096
"""Connections that may wait to be taken."""

_KEEP_ALIVE_S = 75
"""A client whose connection is closed under its next request would take that for an error."""


def serve(options: ServerOptions) -> int:
    """Serve until a signal comes or the engine fails; the exit code of the process.

    Raises
    ------
    KvtrailError, OSError
        The model cannot be loaded, an option is wrong, or the port is taken.
    """
    _allow_connections()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    server, listener = prepare(options)
    with listener:
        server.run(sockets=[listener])
    if server.is_loading:
        # Its thread can be asked nothing until the model is there.
        sys.stderr.flush()
        os._exit(0)
    if server.failure is not None:
        raise server.failure
    return 0


def prepare(options: ServerOptions) -> tuple[Server, socket.socket]:
    """A server and the socket that it is to listen on; nothing is loaded yet.

    Raises
    ------
    KvtrailError
        An option is wrong, or the port is taken.
    """
    options.check()
    engine = AsyncEngine(options.engine_config())
    template = _template(options.chat_template)
    service = Service(engine, options.name, options.api_key)
    listener = _listening(options.host, options.port)
    config = uvicorn.Config(
        make_app(service),
        lifespan="off",
        access_log=False,
        log_level="warning",
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        server_header=False,
        proxy_headers=False,
        ws="none",
    )
    address, drain_s = _address(listener), options.drain_timeout
    return Server(config, service, address, template, drain_s), listener


class Server(uvicorn.Server):
    """Starts the engine beside the listener, and closes it when the last answer has gone.

    The first signal lets answers come to their ends, for as many seconds as the drain may take;
    then, or with the second signal, they are broken off.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        address: str,
        template: str | None,
        drain_s: float,
    ) -> None:
        super().__init__(config)
        self._drain_s = drain_s
        self._template = template
        self._service = service
        self._address = address
        self.failure: BaseException | None = None

    @property
    def is_loading(self) -> bool:
        """Whether the engine is being built."""
        return self._service.engine.is_building

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the signal; the process ends by itself then, and with 0."""
        if self.should_exit:
            self._break_off()
        self.should_exit = True

    def _break_off(self) -> None:
        """Wait for the answers no longer."""
        self.force_exit = True

    async def main_loop(self) -> None:
        """Load the model while requests are answered with 503, and end where that fails."""
        engine = self._service.engine
        starting = asyncio.create_task(self._start())
        try:
            await super().main_loop()
        finally:
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            if engine.failure is not None:
                self.failure = engine.failure

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the answers under way, and close the engine."""
        if self.failure is None:
            _say("ending: waits for the answers under way; a second signal breaks them off")
        drained = asyncio.get_running_loop().call_later(self._drain_s, self._break_off)
        await super().shutdown(sockets)
        drained.cancel()
        self._service.is_closing = True
        await self._service.engine.close()

    async def on_tick(self, counter: int) -> bool:
        """As uvicorn's; a server without an engine ends."""
        return await super().on_tick(counter) or self._service.engine.failure is not None

    async def _start(self) -> None:
        _say(f"loading {self._service.model}; {self._address}/health says when it is ready")
        try:
            await self._service.engine.start()
            tokenizer = self._service.engine.engine.tokenizer
            if self._template is not None and tokenizer is not None:
                self._service.template = tokenizer.template_of(self._template)
        except Exception as error:
            self.failure = error
            self.should_exit = True
            return
        # What is loaded stays: the collector need not look through it again and again.
        gc.collect()
        gc.freeze()
        _say(f"serving {self._service.model} at {self._address}/v1")


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens; a second server on a port is refused, and says so."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        said = str(getattr(error, "strerror", None) or error).rstrip(".")
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number in errno.errorcode else said
        raise ConfigError(f"Cannot listen on {host}, port {port}: {reason}.") from error


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _template(path: str | None) -> str | None:
    """The text of a chat template, which is valid."""
    if path is None:
        return None
    try:
        source = Path(path).read_text("utf-8")
        ChatTemplate({"default": source}, {})
        return source
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The chat template {path} cannot be read: {error}.") from error


def _allow_connections() -> None:
    """Each takes a file descriptor, of which there are often 1024 by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _say(line: str) -> None:
    print(f"kvtrail: {line}", file=sys.stderr, flush=True)
