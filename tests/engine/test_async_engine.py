"""The engine for asyncio: streams beside each other, and what ends them early."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace
from threading import Event

import pytest
from engine_cases import GREEDY
from speaking_checkpoints import save_speaking

from engine import (
    AsyncEngine,
    Engine,
    EngineConfig,
    EngineStoppedError,
    ModelError,
    QueueFullError,
    RequestError,
    SamplingParams,
)

LONG = SamplingParams(max_new_tokens=400, ignore_eos=True)


def run(check: Callable[[AsyncEngine], object], **options: object) -> None:
    """Run a test's coroutine with an engine; all blocks must be free at the end."""

    async def main() -> None:
        config = EngineConfig(**({"device": "cpu", "block_size": 16} | options))
        async with AsyncEngine(config) as engine:
            await check(engine)
            await engine.drain()
            if engine.failure is None:
                load = await engine.ask(lambda one: one.load)
                assert load[:3] == (0, 0, 0.0)
                await engine.ask(lambda one: one.check_integrity())

    asyncio.run(main())


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    return save_speaking(tmp_path_factory.mktemp("speaking"))


def test_streams_beside_each_other_give_the_tokens_of_each_alone(prompts, greedy_alone):
    async def check(engine):
        async def tokens(prompt):
            async with await engine.submit(prompt, GREEDY) as stream:
                return [event.token_id async for event in stream]

        assert await asyncio.gather(*map(tokens, prompts)) == greedy_alone

    run(check, max_batch_size=5)


def test_completions_are_those_of_the_engine(speaking):
    params = SamplingParams(max_new_tokens=12, n=2, temperature=0.9, seed=3, logprobs=1)
    stopped = SamplingParams(max_new_tokens=60, stop=["a", "e"], ignore_eos=True)
    messages = [{"role": "user", "content": "the lazy fox"}]
    sync = Engine(EngineConfig(model=speaking, device="cpu"))
    expected = sync.generate(["the fox"], params) + sync.generate(["the fox"], stopped)
    expected.append(sync.chat(messages, GREEDY))

    async def check(engine):
        made = await engine.generate("the fox", params) + await engine.generate("the fox", stopped)
        made.append(await engine.chat(messages, GREEDY))
        for one, other in zip(made, expected, strict=True):
            assert len(one.timeline.token_times_s) == len(one.token_ids)
            assert one.timeline.ttft_s > 0
            assert replace(one, timeline=other.timeline, logprobs=None) == replace(
                other, logprobs=None
            )
            assert (one.logprobs is None) == (other.logprobs is None)

    run(check, model=speaking)


def test_the_loop_does_not_wait_for_a_step(monkeypatch):
    async def check(engine):
        step, has_gone_on, waited = engine.engine.step, Event(), []

        def slow_step():
            waited.append(has_gone_on.wait(timeout=30))
            return step()

        monkeypatch.setattr(engine.engine, "step", slow_step)
        stream = await engine.submit([1], SamplingParams(max_new_tokens=3))
        for _ in range(10):
            await asyncio.sleep(0.001)
        has_gone_on.set()
        assert [event.index async for event in stream] == [0, 1, 2]
        assert all(waited)

    run(check)


@pytest.mark.parametrize(
    "way", ["closed", "dropped", "cancelled", "cancelled at once", "cancelled in the middle"]
)
def test_who_leaves_gives_everything_back(way, monkeypatch):
    num_steps = 0

    async def check(engine):
        step, submit_all = engine.engine.step, engine.engine.submit_all
        has_submitted, is_cancelled = Event(), Event()

        def counted():
            nonlocal num_steps
            num_steps += 1
            return step()

        def slow(*arguments, **options):
            request_ids = submit_all(*arguments, **options)
            has_submitted.set()
            is_cancelled.wait(timeout=30)
            return request_ids

        monkeypatch.setattr(engine.engine, "step", counted)
        if way == "cancelled in the middle":
            monkeypatch.setattr(engine.engine, "submit_all", slow)
            task = asyncio.create_task(engine.generate([1, 2, 3], LONG))
            await asyncio.to_thread(has_submitted.wait, 30)
            task.cancel()
            await asyncio.sleep(0)
            is_cancelled.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            # What the thread has posted by now comes before this answer.
            await engine.ask(lambda one: one.load)
            return
        if way == "cancelled at once":
            task = asyncio.create_task(engine.generate([1, 2, 3], LONG))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return
        stream = await engine.submit([1, 2, 3], replace(LONG, n=2))
        await anext(stream)
        if way == "closed":
            stream.close()
            assert await stream.take() == []
        elif way == "dropped":
            del stream
            gc.collect()
        else:

            async def read(one):
                async with one:
                    async for _ in one:
                        pass

            task = asyncio.create_task(read(stream))
            del stream
            await asyncio.sleep(0.05)
            task.cancel()
        await engine.drain()
        asked = await engine.ask(lambda one: one.load.num_prompt_tokens)
        assert asked == 6

    run(check)
    assert num_steps < 200


def test_refusals_come_from_submit(speaking):
    async def check(engine):
        for prompt, params, error in (
            ([], None, RequestError),
            ([10**6], None, RequestError),
            ("x" * 5000, SamplingParams(max_new_tokens=500), RequestError),
            ([1], "params", RequestError),
            ([1], SamplingParams(n=3), RequestError),
        ):
            with pytest.raises(error):
                await engine.submit(prompt, params)
        async with await engine.submit([1], replace(LONG, n=2)):
            with pytest.raises(QueueFullError):
                await engine.submit([1], LONG)

    run(check, model=speaking, max_inflight_requests=2)


def test_an_engine_that_cannot_be_built_says_why():
    async def main():
        with pytest.raises(ModelError):
            await AsyncEngine(EngineConfig(model="random:nothing")).start()

    asyncio.run(main())


def test_a_step_that_fails_ends_all_streams(monkeypatch):
    async def check(engine):
        def fail():
            raise RuntimeError("the device is gone")

        async with await engine.submit([1], LONG) as one, await engine.submit([2], LONG) as other:
            await anext(one)
            monkeypatch.setattr(engine.engine, "step", fail)
            for stream in (one, other):
                with pytest.raises(RuntimeError, match="device is gone"):
                    async for _ in stream:
                        pass
        assert not engine.is_ready
        with pytest.raises(EngineStoppedError, match="device is gone"):
            await engine.submit([1])

    run(check)


def test_a_close_ends_open_streams():
    async def main():
        engine = AsyncEngine(EngineConfig(device="cpu"))
        await engine.start()
        stream = await engine.submit([1], LONG)
        await anext(stream)
        await engine.close()
        await engine.close()

        async def read():
            async for _ in stream:
                pass

        with pytest.raises(EngineStoppedError, match="closed"):
            await read()
        with pytest.raises(EngineStoppedError, match="closed"):
            await engine.submit([1])

    asyncio.run(main())


def test_an_engine_that_was_not_started_says_so():
    async def main():
        engine = AsyncEngine(EngineConfig(device="cpu"))
        for asked in (
            engine.submit([1]),
            engine.submit_all([[1]]),
            engine.generate([1]),
            engine.ask(lambda one: one.load),
        ):
            with pytest.raises(EngineStoppedError, match="has not been started"):
                await asked

    asyncio.run(main())
