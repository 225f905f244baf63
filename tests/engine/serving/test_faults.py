"""What clients do to a server: crowds, slow and vanishing readers, broken requests."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest
from served import (
    AT_REST,
    GAUGES,
    Exchange,
    Served,
    exchange,
    request_bytes,
    served_here,
    streamed_text,
)
from soak import Soak, soak

from engine import ConfigError, Engine, ModelError, async_engine
from engine.serving.__main__ import main as serving_main
from engine.serving.options import ServerOptions

prepare = pytest.importorskip("engine.serving.server", exc_type=ModuleNotFoundError).prepare

BODY = {"model": "tiny", "prompt": "the fox", "temperature": 0, "ignore_eos": True}


def test_a_thousand_connections_at_once_are_all_answered(served):
    """More than the batch holds, and more than a process has files by default."""
    connected = 0

    async def ask(place, together):
        nonlocal connected
        reader, writer = await asyncio.open_connection(served.host, served.port)
        connected += 1
        if connected == 1000:
            together.set()
        await together.wait()
        writer.write(request_bytes("/v1/completions", {**BODY, "max_tokens": 2 + place % 3}))
        made = Exchange(reader, writer)
        await made.read_head()
        told = json.loads(await made.body())
        writer.close()
        return told["usage"]["completion_tokens"] if "usage" in told else told

    async def ask_all():
        together = asyncio.Event()
        return await asyncio.gather(*(ask(place, together) for place in range(1000)))

    assert asyncio.run(ask_all()) == [2 + place % 3 for place in range(1000)]
    served.wait_until_at_rest()


def test_a_slow_reader_gets_all_of_it_and_holds_up_nobody(served):
    body = {**BODY, "max_tokens": 200}

    async def read_all():
        quick = await streamed_text(served, body)
        slow = asyncio.create_task(streamed_text(served, body, pause_s=0.005))
        others = await asyncio.gather(*(streamed_text(served, body) for _ in range(3)))
        return {quick, await slow, *others}

    assert len(asyncio.run(read_all())) == 1


def test_who_reads_nothing_does_not_stop_the_engine(served):
    """Its answer is made, and waits for it."""

    async def check():
        body = {**BODY, "max_tokens": 400, "n": 8, "stream": True, "logprobs": 20}
        async with exchange(served, "/v1/completions", body, limit=1024):
            await asyncio.to_thread(served.wait_until_at_rest)
            await streamed_text(served, {**BODY, "max_tokens": 5})

    asyncio.run(check())


@pytest.mark.parametrize("is_streamed", [True, False])
def test_who_vanishes_gives_all_blocks_back(served, is_streamed):
    before = served.metrics()

    async def leave(place):
        body = {**BODY, "max_tokens": 480, "stream": is_streamed}
        if not is_streamed:
            _, writer = await asyncio.open_connection(served.host, served.port)
            writer.write(request_bytes("/v1/completions", body))
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.transport.abort()
            return
        async with exchange(served, "/v1/completions", body) as made:
            events = made.events()
            for _ in range(1 + place % 3):
                await anext(events)
            made.vanish()

    async def leave_all():
        await asyncio.gather(*map(leave, range(24)))

    asyncio.run(leave_all())
    served.wait_until_at_rest()
    after = served.metrics()
    assert after["generation_tokens_total"] - before["generation_tokens_total"] < 24 * 480
    aborted = 'requests_total{finished="abort"}'
    assert after[aborted] - before.get(aborted, 0.0) == 24


def test_half_a_request_disturbs_nobody(served):
    whole = request_bytes("/v1/completions", {**BODY, "max_tokens": 3})
    halves = []
    for length in (3, len(whole) // 3, len(whole) - 5):
        connection = socket.create_connection((served.host, served.port))
        connection.sendall(whole[:length])
        halves.append(connection)
    assert served.post("/v1/completions", {**BODY, "max_tokens": 3})[0] == 200
    # One of them comes to its end after all; the others vanish.
    halves[-1].sendall(whole[-5:])
    assert halves[-1].recv(15).endswith(b"200 OK")
    for connection in halves:
        connection.close()
    served.wait_until_at_rest()


def test_overload_is_refused_and_what_was_taken_is_answered(checkpoint):
    """The queue is bound: who comes too much is told to come again."""
    options = {"served_model_name": "tiny", "max_inflight_requests": 6, "max_batch_size": 2}
    body = {**BODY, "max_tokens": 100}
    with served_here(checkpoint, **options) as served, ThreadPoolExecutor(12) as pool:
        served.wait_until_ready()
        asked = [pool.submit(served.post, "/v1/completions", body) for _ in range(12)]
        replies = [one.result() for one in asked]
        statuses = [status for status, _, _ in replies]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 6
        for status, told, headers in replies:
            if status == 429:
                assert told["error"]["type"] == "rate_limit_error"
                assert headers["Retry-After"] == "1"
            else:
                assert told["usage"]["completion_tokens"] == 100
        served.wait_until_at_rest()
        status, told, _ = served.post("/v1/completions", {**BODY, "n": 7, "max_tokens": 2})
        assert (status, told["error"]["type"]) == (400, "invalid_request_error")


def test_requests_are_told_to_wait_while_the_model_is_loaded(checkpoint, monkeypatch):
    may_load = Event()

    def slow(*arguments):
        may_load.wait(timeout=60)
        return Engine(*arguments)

    monkeypatch.setattr(async_engine, "Engine", slow)
    with served_here(checkpoint, served_model_name="tiny") as served:
        status, told, headers = served.post("/v1/completions", {**BODY, "max_tokens": 1})
        assert (status, told["error"]["code"], headers["Retry-After"]) == (503, "loading", "1")
        assert "requests_running" not in served.metrics()
        may_load.set()
        served.wait_until_ready()
        assert served.post("/v1/completions", {**BODY, "max_tokens": 1})[0] == 200


def test_a_template_may_come_from_a_file(checkpoint, tmp_path):
    (tmp_path / "one.jinja").write_text("{{ eos_token }}{{ messages[0].content }}")
    body = {"messages": [{"role": "user", "content": "the fox"}], "max_tokens": 2}
    with served_here(checkpoint, chat_template=str(tmp_path / "one.jinja")) as served:
        served.wait_until_ready()
        _, told, _ = served.post("/v1/chat/completions", body)
        assert told["usage"]["prompt_tokens"] == 3
    (tmp_path / "bad.jinja").write_text("{% for %}")
    with pytest.raises(ModelError, match="no valid jinja"):
        prepare(ServerOptions(str(checkpoint), chat_template=str(tmp_path / "bad.jinja")))


def test_an_engine_that_fails_ends_the_server(checkpoint, monkeypatch):
    """A supervisor starts another one; its clients are told."""

    def fail(*_):
        raise RuntimeError("the device is gone")

    with served_here(checkpoint, served_model_name="tiny") as served:
        served.wait_until_ready()
        monkeypatch.setattr(Engine, "step", fail)
        status, told, _ = served.post("/v1/completions", {**BODY, "max_tokens": 5})
        assert (status, told["error"]["type"]) == (500, "server_error")
        served.thread.join(timeout=60)
        assert not served.thread.is_alive()
        assert "device is gone" in str(served.server.failure)


@pytest.mark.parametrize(
    "way",
    [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)],
    ids=lambda one: one.name,
)
def test_a_signal_lets_answers_come_to_their_ends(checkpoint, way):
    with Served.start(checkpoint, "--served-model-name", "tiny") as served:

        async def ask():
            async with exchange(
                served, "/v1/completions", {**BODY, "max_tokens": 300, "stream": True}
            ) as made:
                events = made.events()
                got = [await anext(events)]
                served.process.send_signal(way)
                got += [event async for event in events]
            return got

        got = asyncio.run(ask())
        assert got[-1] == "[DONE]"
        assert got[-2]["choices"][0]["finish_reason"] == "length"
        assert served.process.wait(timeout=60) == 0
        assert "Traceback" not in served.said()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((served.host, served.port))


@pytest.mark.thorough
def test_a_second_signal_breaks_answers_off(checkpoint):
    with Served.start(checkpoint, "--served-model-name", "tiny") as served:

        async def ask():
            body = {**BODY, "max_tokens": 480, "n": 16, "stream": True}
            async with exchange(served, "/v1/completions", body) as made:
                await anext(made.events())
                served.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.3)
                served.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(served.process.wait, 60) == 0

        asyncio.run(ask())
        port = served.port
    # Whoever restarts it finds the port free.
    with Served.start(checkpoint, "--served-model-name", "tiny", "--port", str(port)) as served:
        assert served.post("/v1/completions", {**BODY, "max_tokens": 2})[0] == 200


@pytest.mark.thorough
@pytest.mark.parametrize("is_streamed", [False, True])
def test_answers_are_broken_off_in_words_when_the_drain_has_lasted_long_enough(
    checkpoint, is_streamed
):
    body = {**BODY, "model": None, "max_tokens": 480, "n": 64, "stream": is_streamed}
    post = "/v1/completions", body
    with Served.start(checkpoint, "--drain-timeout", "1") as served:

        async def read():
            async with exchange(served, "/v1/completions", body) as made:
                return [event async for event in made.events()][-1]

        with ThreadPoolExecutor(1) as pool:
            ask = partial(asyncio.run, read()) if is_streamed else partial(served.post, *post)
            answer = pool.submit(ask)
            while not served.metrics()["requests_running"]:
                time.sleep(0.01)
            served.process.send_signal(signal.SIGTERM)
            told = answer.result(timeout=60)
        if not is_streamed:
            status, told, _ = told
            assert status == 503
        assert told["error"]["code"] == "engine_stopped"
        assert served.process.wait(timeout=60) == 0
        assert "Traceback" not in served.said()


@pytest.mark.thorough
def test_a_signal_ends_a_server_that_is_loading():
    with Served.start("random:qwen3-0.6b", "--device", "cpu", wait=False) as served:
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=60) == 0
        assert "serving random" not in served.said()


def test_a_port_that_is_taken_is_named(checkpoint):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"Cannot listen on 127\.0\.0\.1, port {port}"):
            prepare(ServerOptions(str(checkpoint), port=port))


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["random:nothing"], 1, "nothing"),
        (["random:gpt2-tiny", "--dtype", "int8"], 2, "dtype is 'int8'"),
        (["random:gpt2-tiny", "--chat-template", "/nowhere"], 2, "cannot be read"),
        (["random:gpt2-tiny", "--drain-timeout", "-1"], 2, "drain_timeout is -1"),
        (["random:gpt2-tiny", "--bogus", "1"], 2, "unrecognized arguments: --bogus"),
    ],
    ids=repr,
)
def test_what_cannot_be_served_is_said(options, code, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    monkeypatch.setattr(sys, "argv", ["serving", *options, "--port", "0"])
    try:
        ended = serving_main()
    except SystemExit as error:
        ended = error.code
    assert ended == code
    assert said in capsys.readouterr().err


def test_metrics_count_what_was_served(served):
    before = served.metrics()
    body = {**BODY, "prompt": "to be, or not to be", "max_tokens": 9}
    for _ in range(2):
        served.post("/v1/completions", body)
    after = served.metrics()
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    assert grown["generation_tokens_total"] == 18
    assert grown["time_to_first_token_seconds_count"] == 2
    assert grown["inter_token_latency_seconds_count"] == 16
    assert grown['requests_total{finished="length"}'] == 2
    assert grown["prefix_hit_tokens_total"] > 0
    assert {name: after[name] for name in GAUGES} == AT_REST
    buckets = [
        value for name, value in after.items() if name.startswith("time_to_first_token_seconds_b")
    ]
    assert buckets == sorted(buckets)


@pytest.mark.thorough
def test_thousands_of_requests_leave_nothing_behind(checkpoint):
    """One in five is left by its client."""
    with Served.start(
        checkpoint, "--served-model-name", "tiny", "--max-batch-size", "32"
    ) as served:
        done = soak(served, "tiny", 3000, most_tokens=24)
    assert done.faults == []
    assert done.seen.total() == 3000
    assert 400 < done.seen["left"] < 800


def test_a_soak_sees_what_is_lost(served, monkeypatch):
    """Some requests, and then a server that ends a stream too early."""
    done = soak(served, "tiny", 60, concurrency=12, most_tokens=12)
    assert done.faults == []
    assert done.seen.keys() == {"whole", "left"}

    async def short(self, made):
        return await Soak._streamed_to_the_end(self, made) - 1

    monkeypatch.setattr(Soak, "_streamed_to_the_end", Soak._streamed, raising=False)
    monkeypatch.setattr(Soak, "_streamed", short)
    assert "tokens were asked for" in soak(served, "tiny", 10, most_tokens=4).faults[0]
