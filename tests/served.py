"""A server in a process of its own, and a client that speaks HTTP itself, to misbehave."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from types import TracebackType
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 600.0

GAUGES = ("requests_running", "requests_waiting", "cache_usage")
AT_REST = dict.fromkeys(GAUGES, 0.0)
"""What a server reads when nothing is unfinished: all blocks are free, or only cached."""


@dataclass
class Served:
    """A server that listens.

    `with Served.start(model) as served:` ends it.
    """

    process: subprocess.Popen[str] | None
    host: str
    port: int
    log: IO[str]

    @classmethod
    def start(cls, model: str | Path, *options: str, wait: bool = True) -> Served:
        """Start one at a free port, and wait until it is ready."""
        log = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed by __exit__)
        command = [sys.executable, "-m", "engine.serving", str(model), "--port", "0", *options]
        process = subprocess.Popen(command, cwd=ROOT, stderr=log, text=True)
        served = cls(process, "127.0.0.1", 0, log)
        try:
            served.port = int(served._said(r"http://127\.0\.0\.1:(\d+)")[1])
            if wait:
                served._said(r"serving .* at http")
        except BaseException:
            process.kill()
            raise
        return served

    @property
    def url(self) -> str:
        """Where its endpoints are."""
        return f"http://{self.host}:{self.port}"

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.log.close()

    def get(self, path: str) -> str:
        """The body that a GET is answered with."""
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            body: bytes = reply.read()
        return body.decode()

    def post(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, Any], Mapping[str, str]]:
        """Status, JSON and headers that a POST of JSON, or of bytes, is answered with."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.status, json.loads(reply.read()), reply.headers
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read()), error.headers

    def metrics(self) -> dict[str, float]:
        """Its metrics without labels, without what their names begin with."""
        lines = self.get("/metrics").splitlines()
        pairs = (line.split(" ") for line in lines if not line.startswith("#"))
        return {name.removeprefix("kvtrail_"): float(value) for name, value in pairs}

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Fail where it does not answer after so long."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.get("/health")
                return
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def wait_until_at_rest(self, timeout_s: float = 60.0) -> None:
        """Fail where something is still unfinished, or held, after so long."""
        deadline = time.monotonic() + timeout_s
        while (read := {name: self.metrics()[name] for name in GAUGES}) != AT_REST:
            if time.monotonic() > deadline:
                raise AssertionError(f"the server does not come to rest: {read}")
            time.sleep(0.05)

    def rss_bytes(self) -> int:
        """Memory that its process holds now."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        if found is None:
            raise AssertionError("the server has ended")
        return int(found[1]) << 10

    def said(self) -> str:
        """What it has printed."""
        self.log.seek(0)
        return self.log.read()

    def _said(self, pattern: str) -> re.Match[str]:
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while (found := re.search(pattern, self.said())) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not start: {self.said()}")
            time.sleep(0.05)
        return found


@dataclass
class ServedHere(Served):
    """A server in a thread of this process."""

    thread: Thread
    server: Any


@contextmanager
def served_here(model: str | Path, **options: Any) -> Iterator[ServedHere]:
    """A server in a thread of this process, which starts sooner; it may be loading still."""
    from engine.serving.options import ServerOptions
    from engine.serving.server import prepare

    server, listener = prepare(ServerOptions(str(model), **({"port": 0} | options)))
    thread = Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield ServedHere(None, *listener.getsockname()[:2], StringIO(), thread, server)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        gc.unfreeze()


@dataclass
class Exchange:
    """One request on a connection of its own, as far as it has come."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int = 0
    length: int = 0

    async def read_head(self) -> None:
        """Read the status and what else stands before the body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        self.status = int(head.split()[1])
        found = re.search(rb"content-length: (\d+)", head)
        self.length = int(found[1]) if found else 0

    async def body(self) -> bytes:
        """The body of a reply that is no stream."""
        return await self.reader.readexactly(self.length)

    async def events(self) -> AsyncIterator[dict[str, Any] | str]:
        """Server-sent events, each as JSON; "[DONE]" as it is."""
        async for line in self._lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                yield data if data == "[DONE]" else json.loads(data)

    async def _lines(self) -> AsyncIterator[str]:
        rest = b""
        while size := int((await self.reader.readline()).strip() or b"0", 16):
            rest += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield line.decode()

    def vanish(self) -> None:
        """Close without a word, as a client that was killed."""
        self.writer.transport.abort()


@asynccontextmanager
async def exchange(
    served: Served,
    path: str,
    body: Mapping[str, Any],
    *,
    limit: int = 2**16,
    answered: bool = True,
) -> AsyncIterator[Exchange]:
    """Send a POST and, if it is to be `answered`, read the head of its reply.

    At most `limit` bytes wait to be read.
    """
    reader, writer = await asyncio.open_connection(served.host, served.port, limit=limit)
    try:
        writer.write(request_bytes(path, body))
        await writer.drain()
        made = Exchange(reader, writer)
        if answered:
            await made.read_head()
        yield made
    finally:
        writer.close()


def request_bytes(path: str, body: Mapping[str, Any]) -> bytes:
    """A POST as it goes over the wire."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def streamed_text(served: Served, body: Mapping[str, Any], *, pause_s: float = 0.0) -> str:
    """The text of a streamed completion, read to its end; a pause before each event is slow."""
    text, is_done = "", False
    async with exchange(served, "/v1/completions", {**body, "stream": True}) as made:
        assert made.status == 200, made.status
        async for event in made.events():
            if isinstance(event, str):
                is_done = True
                continue
            assert "error" not in event, event
            for choice in event["choices"]:
                text += choice["text"]
            if pause_s:
                await asyncio.sleep(pause_s)
    assert is_done, "a stream broke off"
    return text
