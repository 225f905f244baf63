"""Ask a server for thousands of answers, leave some in the middle, and see that nothing is lost.

`python -m tests.soak MODEL --requests 10000` starts a server of the model and asks it; on a GPU,
too. Every answer that was not left must come to its end with as many tokens as were asked for; and
at the end nothing may run, wait or hold a block, and memory may not have grown. The exit code is 1
where anything of this is not so.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

from served import Served, exchange

_MOST_GROWN = 64 << 20
"""Bytes that a server may grow by from the middle of its requests to their end."""

_PATIENCE_S = 600.0
_PATHS = ("/v1/completions", "/v1/chat/completions")


@dataclass
class Soak:
    """What was asked, and what came of it.

    Attributes
    ----------
    seen
        Answers by how they ended: "whole", "left" by their client, "refused" with 429.
    faults
        Sentences, each about an answer that is not what was asked.
    """

    served: Served
    model: str
    num_requests: int
    share_left: float
    concurrency: int
    has_chat: bool
    most_tokens: int
    seed: int
    seen: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    num_tokens: int = 0

    async def run(self) -> None:
        """Ask for all answers, so many at a time."""
        places = iter(range(self.num_requests))

        async def worker() -> None:
            for place in places:
                await self._ask(place)

        await asyncio.gather(*(worker() for _ in range(self.concurrency)))

    async def _ask(self, place: int) -> None:
        chance = random.Random(f"{self.seed} {place}")
        path, body = self._request(chance)
        is_left = chance.random() < self.share_left
        wait = chance.random() if is_left else None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                kind = await self._answered(path, body, wait)
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            self.faults.append(f"request {place}: {type(error).__name__}: {error}")
            kind = "broken"
        self.seen[kind] += 1

    def _request(self, chance: random.Random) -> tuple[str, dict[str, Any]]:
        """A request of one of many kinds."""
        body: dict[str, Any] = {
            "max_tokens": chance.randint(1, self.most_tokens),
            "stream": chance.random() < 0.7,
            "ignore_eos": True,
            "n": 2 if chance.random() < 0.1 else 1,
            "temperature": chance.choice([0, 0, 0.8]),
        }
        if chance.random() < 0.3:
            body |= chance.choice(
                [
                    {"presence_penalty": 0.5, "frequency_penalty": 0.5},
                    {"repetition_penalty": 1.2},
                    {"min_p": 0.05},
                    {"seed": chance.randrange(2**31)},
                ]
            )
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        if self.has_chat and chance.random() < 0.4:
            # Conversations begin alike, so that some of their blocks are shared.
            told = " ".join(
                chance.choices(["alpha", "beta", "gamma", "delta"], k=chance.randint(1, 8))
            )
            messages = [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": told},
            ]
            return _PATHS[1], body | {"messages": messages}
        return _PATHS[0], body | {
            "prompt": [chance.randrange(3, 200) for _ in range(_length(chance))]
        }

    async def _answered(self, path: str, body: dict[str, Any], wait: float | None) -> str:
        """How an answer ended; with `wait` its client leaves after so much of it, of 1."""
        async with exchange(self.served, path, body, answered=wait is None or wait > 0.3) as made:
            if made.status == 429:
                return "refused"
            if made.status not in (0, 200):
                raise OSError(f"status {made.status}: {(await made.body())[:200]!r}")
            if wait is not None:
                await self._leave(made, body, wait)
                return "left"
            asked = body["max_tokens"] * body["n"]
            if body["stream"]:
                got = await self._streamed(made)
            else:
                got = json.loads(await made.body())["usage"]["completion_tokens"]
            if got != asked:
                raise OSError(f"{asked} tokens were asked for, and {got} came")
            self.num_tokens += got
            return "whole"

    async def _leave(self, made: Any, body: dict[str, Any], wait: float) -> None:
        if body["stream"] and made.status:
            events = made.events()
            with suppress(StopAsyncIteration):
                for _ in range(int(wait * body["max_tokens"])):
                    await anext(events)
        else:
            await asyncio.sleep(wait / 10)
        made.vanish()

    async def _streamed(self, made: Any) -> int:
        """Tokens that the end of a stream tells of."""
        got, is_done = -1, False
        async for event in made.events():
            is_done = event == "[DONE]"
            if isinstance(event, str):
                continue
            if "error" in event:
                raise OSError(f"an error came in the stream: {event['error']}")
            if event.get("usage"):
                got = event["usage"]["completion_tokens"]
        if not is_done:
            raise OSError("the stream broke off")
        return got


def _length(chance: random.Random) -> int:
    return chance.choice([1, 3, 17, 64, 120])


def soak(
    served: Served,
    model: str,
    num_requests: int,
    *,
    share_left: float = 0.2,
    concurrency: int = 64,
    has_chat: bool = True,
    most_tokens: int = 48,
    seed: int = 0,
) -> Soak:
    """Ask twice, each time for half of the requests, and look at the server after each."""
    whole = Soak(
        *(served, model, num_requests, share_left, concurrency, has_chat, most_tokens, seed)
    )
    grown: list[int] = []
    for half in range(2):
        part = Soak(
            *(served, model, num_requests // 2, share_left, concurrency, has_chat, most_tokens),
            seed=2 * seed + half,
        )
        asyncio.run(part.run())
        served.wait_until_at_rest(_PATIENCE_S)
        grown.append(served.rss_bytes())
        whole.seen += part.seen
        whole.faults += part.faults
        whole.num_tokens += part.num_tokens
    if grown[1] - grown[0] > _MOST_GROWN:
        whole.faults.append(f"memory grew from {grown[0] >> 20} to {grown[1] >> 20} MiB")
    if "Traceback" in served.said():
        whole.faults.append(f"the server had an error: {served.said()[-2000:]}")
    return whole


def main(
    model: Annotated[str, typer.Argument(help="As the server takes it.")],
    requests: Annotated[int, typer.Option(min=2, help="How many to ask for.")] = 10_000,
    aborts: Annotated[float, typer.Option(min=0, max=1, help="Share that is left.")] = 0.2,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 64,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of a request at most.")] = 48,
    seed: Annotated[int, typer.Option(help="Of what is asked.")] = 0,
    chat: Annotated[bool, typer.Option(help="Ask for chats, too.")] = True,
    server: Annotated[
        list[str] | None, typer.Option(help="An option of the server, as --server=--dtype=auto.")
    ] = None,
) -> None:
    """Soak a server of a model."""
    options: Sequence[str] = [*(server or []), "--served-model-name", "soaked"]
    with Served.start(model, *options) as served:
        begun = time.perf_counter()
        done = soak(
            served,
            "soaked",
            requests,
            share_left=aborts,
            concurrency=concurrency,
            has_chat=chat,
            most_tokens=tokens,
            seed=seed,
        )
        took = time.perf_counter() - begun
    ended = ", ".join(f"{count} {kind}" for kind, count in done.seen.most_common())
    print(f"{done.seen.total()} requests in {took:.0f} s: {ended}; {done.num_tokens} tokens read")
    for fault in done.faults[:20]:
        print(f"fault: {fault}")
    if done.faults:
        raise typer.Exit(1)
    print("nothing was lost, and all blocks came back")


if __name__ == "__main__":
    typer.run(main)
