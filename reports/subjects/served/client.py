"""Ask a server of OpenAI's API for streamed completions, so many at a time, and time their tokens.

While it asks it does nothing but note when bytes came; they are read afterwards, so that it can
keep up with some ten thousand tokens a second. It needs the standard library alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

END = b"\r\n0\r\n\r\n"
"""Of a body in chunks."""
LEAST_MS = 1e-3
WORDS = 256
"""Prompts are of the first token ids, which any model has; each is drawn anew, so that no cache of
prefixes knows it."""


@dataclass
class Answer:
    """What came of a request, and when; times are of `perf_counter`."""

    sent_s: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    def token_times(self) -> list[float]:
        """When each token came; several in one event came at once.

        Raises ValueError where the server tells an error.
        """
        times: list[float] = []
        rest = b""
        for time_s, piece in self.pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise ValueError(f"the server told an error: {event['error']}")
                if not event.get("usage"):
                    raise ValueError("the server's events lack usage, so tokens are not counted")
                count = event["usage"]["completion_tokens"]
                times += [time_s] * (count - len(times))
        return times


class Connection(asyncio.Protocol):
    """A connection that one request after the other is sent over."""

    def __init__(self) -> None:
        self._answer = Answer()
        self._tail = b""
        self._ended: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def ask(self, request: bytes) -> Answer:
        """The answer to a request; ValueError where it is none."""
        if self._transport.is_closing():
            raise ValueError("the server closed a connection between two answers")
        self._ended = asyncio.get_running_loop().create_future()
        self._answer, self._tail = Answer(perf_counter()), b""
        self._transport.write(request)
        await self._ended
        return self._answer

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        self._answer.pieces.append((now, data))
        self._tail = (self._tail + data)[-len(END) :]
        assert self._ended is not None
        if self._ended.done():
            return
        if self._tail == END:
            self._ended.set_result(None)
        elif len(self._answer.pieces) == 1 and not data.startswith(b"HTTP/1.1 200"):
            self._fail(f"the server refused a request: {data.decode(errors='replace')}")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the server closed a connection: {error or 'before an answer had ended'}")

    def _fail(self, reason: str) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(ValueError(reason))

    def close(self) -> None:
        """Hang up."""
        self._ended = None
        self._transport.close()


def request(model: str, prompt: list[int], new: int) -> bytes:
    """A request as it goes over the wire."""
    usage = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"model": model, "prompt": prompt, "max_tokens": new, "temperature": 0}
    body = json.dumps({**asked, "ignore_eos": True, "stream": True, "stream_options": usage})
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


async def ask_all(port: int, requests: list[bytes], concurrency: int) -> list[Answer]:
    """The answers; each connection sends its next request when it has the answer to the last."""
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(Connection, "127.0.0.1", port))[1]
        for _ in range(min(concurrency, len(requests)))
    ]
    left, answers = iter(requests), []

    async def go_on(connection: Connection) -> None:
        for one in left:
            answers.append(await connection.ask(one))

    try:
        await asyncio.gather(*map(go_on, connections))
    finally:
        for connection in connections:
            connection.close()
    return answers


def share(values: list[float], of: float) -> float:
    """The value that such a share of them is not above."""
    ordered = sorted(values)
    return ordered[min(int(of * len(ordered)), len(ordered) - 1)]


def figures(answers: list[Answer], new: int, ttft_limit: float, itl_limit: float) -> dict[str, Any]:
    """What users of a server see; ValueError where an answer lacks tokens.

    Goodput has the requests of which the first token came in time, and on average the others. Where
    there are none it is that of half a request, and where most tokens come at once their gap is a
    microsecond: figures are compared by their ratio, and 0 has none.
    """
    ttfts, gaps, ends, good = [], [], [], 0
    for answer in answers:
        times = answer.token_times()
        if len(times) != new:
            raise ValueError(f"a request got {len(times)} tokens where {new} were asked for")
        ttft = 1e3 * (times[0] - answer.sent_s)
        own = [1e3 * (later - time) for time, later in pairwise(times)]
        good += ttft <= ttft_limit and (not own or mean(own) <= itl_limit)
        ttfts.append(ttft)
        gaps += own
        ends.append(times[-1])
    seconds = max(ends) - min(answer.sent_s for answer in answers)
    told: dict[str, Any] = {
        "ttft_ms": share(ttfts, 0.5),
        "ttft_mean_ms": mean(ttfts),
        "ttft_p99_ms": share(ttfts, 0.99),
        "tokens_per_s": new * len(answers) / seconds,
        "goodput": max(good, 0.5) / seconds,
        "requests": len(answers),
    }
    if gaps:
        told |= {"itl_ms": share(gaps, 0.5), "itl_mean_ms": mean(gaps)}
        told["itl_p99_ms"] = share(gaps, 0.99)
        told |= {name: max(told[name], LEAST_MS) for name in told if name.startswith("itl")}
    return told


def main() -> None:
    """Ask as the command line says; the figures are printed, and written to $KVTRAIL_RESULT."""
    parser = argparse.ArgumentParser(description=__doc__)
    port = int(os.environ.get("KVTRAIL_PORT", "8000"))
    parser.add_argument("--port", type=int, default=port, help="of the server, on this machine")
    parser.add_argument("--model", default="served", help="its name")
    parser.add_argument("--concurrency", type=int, default=1, help="requests at a time")
    parser.add_argument("--requests", type=int, default=8, help="in all")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each")
    parser.add_argument("--new", type=int, default=128, help="new tokens of each")
    parser.add_argument("--ttft-limit", type=float, default=1000.0, help="of goodput, in ms")
    parser.add_argument("--itl-limit", type=float, default=50.0, help="of goodput, in ms")
    asked = parser.parse_args()
    draw = random.Random()
    requests = [
        request(asked.model, draw.choices(range(WORDS), k=asked.prompt), asked.new)
        for _ in range(asked.requests)
    ]
    gc.disable()
    try:
        answers = asyncio.run(ask_all(asked.port, requests, asked.concurrency))
        told = figures(answers, asked.new, asked.ttft_limit, asked.itl_limit)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(json.dumps(told, indent=1))
    if result := os.environ.get("KVTRAIL_RESULT"):
        Path(result).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
