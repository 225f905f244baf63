"""What comes in the middle of a call, or breaks it off: the books stay right, or it stops."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from engine_cases import GREEDY, run_to_end

import engine as engine_package
from engine import Engine, EngineBusyError, EngineConfig, EngineStoppedError, SamplingParams

ENGINE_FILES = str(Path(engine_package.__file__).parent)
SHORT = SamplingParams(max_new_tokens=4, ignore_eos=True)
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "block_size": 4,
    "max_batch_size": 4,
    "max_model_len": 64,
    "num_kv_blocks": 12,
    "prefill_max_tokens": 16,
}


@contextmanager
def once_inside(engine: Engine, do: Callable[[], object]) -> Iterator[list[object]]:
    """Have `do` called once, in the middle of the next step; what it returned or raised."""
    forward, outcomes = engine.model.forward, []

    def forward_and_do(*arguments: Any) -> Any:
        if not outcomes:
            outcomes.append(None)
            try:
                outcomes[0] = do()
            except Exception as error:
                outcomes[0] = error
        return forward(*arguments)

    engine.model.forward = forward_and_do
    try:
        yield outcomes
    finally:
        engine.model.forward = forward


class AtLine:
    """Does something at the line of that number among those run of the engine's files."""

    def __init__(self, at: int, do: Callable[[], object], files: str = ENGINE_FILES) -> None:
        self.left = at
        self.do = do
        self.files = files

    def __enter__(self) -> None:
        self.previous = sys.gettrace()
        sys.settrace(self._enter_frame)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.previous)

    def _enter_frame(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._see_line if frame.f_code.co_filename.startswith(self.files) else None

    def _see_line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.do()
        return self._see_line


def drop_in_a_cycle(stream: Iterator[Any]) -> None:
    """Leave the stream to the garbage collector alone."""
    cycle: list[object] = [stream]
    cycle.append(cycle)


# What comes in the middle


@pytest.mark.parametrize("steps", [0, 3], ids=["in a prefill", "in a decode step"])
def test_an_abort_within_a_step_is_done_after_it(make_engine, prompts, greedy_alone, steps):
    engine = make_engine()
    kept, doomed = (engine.submit(prompt, GREEDY) for prompt in prompts[3:5])
    events = [event for _ in range(steps) for event in engine.step()]
    with once_inside(engine, lambda: engine.abort(doomed)) as outcomes:
        events += engine.step()
    assert outcomes == [None]
    assert engine.num_unfinished == 1
    engine.check_integrity()
    events += run_to_end(engine)
    own = [event for event in events if event.request_id == doomed]
    assert [event.token_id for event in own] == [*greedy_alone[4][: len(own) - 1], None]
    assert own[-1].finish_reason == "abort"
    assert [event.token_id for event in events if event.request_id == kept] == greedy_alone[3]


def test_a_submit_within_a_step_is_done_after_it(make_engine, prompts, greedy_alone):
    engine = make_engine(max_inflight_requests=3)
    first = engine.submit(prompts[0], GREEDY)

    def submit_two() -> tuple[int, int, int]:
        ids = [engine.submit(prompt, GREEDY) for prompt in prompts[1:3]]
        engine.abort(ids[1])
        return (*ids, engine.num_unfinished)

    with once_inside(engine, submit_two) as outcomes:
        events = engine.step()
    assert outcomes == [(1, 2, 3)]
    assert engine.num_unfinished == 2
    events += run_to_end(engine)
    told = {id_: [one.token_id for one in events if one.request_id == id_] for id_ in (first, 1, 2)}
    assert told == {first: greedy_alone[0], 1: greedy_alone[1], 2: [None]}


def test_a_step_within_a_step_is_refused_and_changes_nothing(make_engine, prompts, greedy_alone):
    engine = make_engine()
    engine.submit(prompts[0], GREEDY)
    stream, unbegun = (engine.stream([prompt], GREEDY) for prompt in prompts[1:3])
    streamed = [next(stream).token_id]
    events = []
    for step in (
        engine.step,
        engine.step_batches,
        lambda: engine.generate(prompts[2:4]),
        lambda: next(unbegun),
        engine.check_integrity,
    ):
        with once_inside(engine, step) as outcomes:
            events += engine.step()
        assert isinstance(outcomes[0], EngineBusyError), outcomes
        assert str(outcomes[0]).endswith(".")
        streamed += [next(stream).token_id]
    events += engine.step()
    streamed += [event.token_id for event in stream]
    events += run_to_end(engine)
    assert streamed == greedy_alone[1]
    assert [event.token_id for event in unbegun] == greedy_alone[2]
    assert [event.token_id for event in events] == greedy_alone[0]


def test_a_stream_may_be_closed_within_its_own_step(make_engine, prompts, greedy_alone):
    engine = make_engine()
    other = engine.submit(prompts[2], GREEDY)
    stream = engine.stream(prompts[:2], GREEDY)
    # As many as have come by then.
    assert len([next(stream) for _ in range(3)]) == 3
    with once_inside(engine, stream.close) as outcomes:
        assert next(stream, None) is None
    assert outcomes == [None]
    assert list(stream) == []
    assert engine.num_unfinished == 1
    events = run_to_end(engine)
    assert {event.request_id for event in events} == {other}
    assert [event.token_id for event in events] == greedy_alone[2]


def test_another_thread_may_abort_and_submit_during_a_step(make_engine, prompts, greedy_alone):
    engine = make_engine()
    first = engine.submit(prompts[0], GREEDY)

    def both() -> None:
        engine.abort(first)
        engine.submit(prompts[1], GREEDY)

    def run_thread() -> None:
        thread = threading.Thread(target=both)
        thread.start()
        thread.join()

    with once_inside(engine, run_thread):
        events = engine.step()
    events += run_to_end(engine)
    assert [event.token_id for event in events if event.request_id == 1] == greedy_alone[1]
    assert [event.finish_reason for event in events if event.request_id == first][-1] == "abort"


def test_streams_that_the_collector_closes_leave_everything_right(prompts, greedy_alone):
    """It may run at any allocation, and so in the middle of whatever a step changes."""
    engine = Engine(EngineConfig(**{**OPTIONS, "max_batch_size": 6, "num_kv_blocks": 40}))
    dropped: set[int] = set()
    # What is there already need not be looked through each time.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for line in range(1, 1500, 47):
            kept = engine.submit(prompts[2], SHORT)
            for taken in (2, 3):
                stream = engine.stream(prompts[:2], SHORT)
                dropped |= {next(stream).request_id for _ in range(taken)}
                drop_in_a_cycle(stream)
                del stream
            with AtLine(line, gc.collect):
                events = engine.step() + engine.step()
            gc.collect()
            events += run_to_end(engine)
            assert {event.request_id for event in events} == {kept}
            assert [event.token_id for event in events] == greedy_alone[2][:4]
    finally:
        gc.enable()
    assert dropped


def test_aborts_from_a_signal_handler_leave_everything_right(prompts, greedy_alone):
    engine = Engine(EngineConfig(**{**OPTIONS, "num_kv_blocks": 40}))
    params = SamplingParams(max_new_tokens=5, ignore_eos=True)
    doomed: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda *_: engine.abort(doomed[-1]))
    try:
        for delay in range(40):
            kept = engine.submit(prompts[2], params)
            doomed.append(engine.submit(prompts[4], params))
            signal.setitimer(signal.ITIMER_REAL, 2e-5 + delay * 2e-4)
            events = run_to_end(engine)
            signal.setitimer(signal.ITIMER_REAL, 0)
            tokens = [event.token_id for event in events if event.request_id == kept]
            assert tokens == greedy_alone[2][:5]
            own = [event for event in events if event.request_id == doomed[-1]]
            assert [event.index for event in own] == [*range(len(own))]
            assert [one.finish_reason for one in own if one.finish_reason] in (
                ["abort"],
                ["length"],
            )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert not engine.has_unfinished


# What breaks a call off


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def busy_engine() -> Engine:
    """One that has run and runs still, with a full cache."""
    engine = Engine(EngineConfig(**OPTIONS))
    engine.generate([[*range(30)]], SHORT)
    for length in (3, 12, 6):
        engine.submit([*range(length, 2 * length)], SHORT)
    engine.step()
    return engine


def submit(engine: Engine) -> None:
    engine.submit([5, 6, 7], SHORT)


def abort_all(engine: Engine) -> None:
    for request_id in range(4):
        engine.abort(request_id)


def run_steps(engine: Engine) -> None:
    for _ in range(4):
        engine.step()


def stream_some(engine: Engine) -> None:
    stream = engine.stream([[9, 8], [9, 8, 7]], SHORT)
    next(stream), next(stream), next(stream)
    stream.close()


def generate(engine: Engine) -> None:
    engine.generate([[9, 8], [9, 8, 7]], SHORT)


def is_sound_or_stopped(engine: Engine) -> bool:
    """Whether it is sound; one that is not must have stopped altogether."""
    try:
        engine.step()
    except EngineStoppedError:
        assert not engine.has_unfinished
        assert engine.num_unfinished == 0
        for call in (submit, abort_all, generate, stream_some, Engine.step_batches):
            with pytest.raises(EngineStoppedError, match="build a new Engine"):
                call(engine)
        return False
    for _ in range(60):
        engine.check_integrity()
        if not engine.has_unfinished:
            break
        engine.step()
    assert not engine.has_unfinished
    assert len(engine.generate([[4, 4, 4]], SHORT)[0].token_ids) == 4
    engine.check_integrity()
    return True


def interrupt_at_every(
    call: Callable[[Engine], None], nth: int, files: str = ENGINE_FILES
) -> tuple[int, int]:
    """Break `call` off at every n-th line; how often the engine went on, how often it stopped."""
    num_sound = num_stopped = 0
    for line in count(1, nth):
        engine = busy_engine()
        try:
            with AtLine(line, press_ctrl_c, files):
                call(engine)
        except KeyboardInterrupt:
            if is_sound_or_stopped(engine):
                num_sound += 1
            else:
                num_stopped += 1
        else:
            assert is_sound_or_stopped(engine)
            return num_sound, num_stopped
    raise AssertionError


@pytest.mark.parametrize(
    ("call", "nth"),
    [(submit, 3), (abort_all, 29), (run_steps, 307), (stream_some, 263), (generate, 389)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_ctrl_c_anywhere_leaves_the_engine_sound_or_stopped(call, nth):
    num_sound, num_stopped = interrupt_at_every(call, nth)
    assert num_sound
    assert num_stopped


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "call", [abort_all, run_steps, stream_some, generate], ids=lambda call: call.__name__
)
def test_ctrl_c_at_each_line_leaves_the_engine_sound_or_stopped(call):
    interrupt_at_every(call, 1)


@pytest.mark.parametrize("call", [submit, run_steps, generate], ids=lambda call: call.__name__)
def test_ctrl_c_at_each_line_of_the_guard_itself_is_noticed(call):
    files = str(Path(ENGINE_FILES, "running", "turn.py"))
    num_sound, num_stopped = interrupt_at_every(call, 1 if call is submit else 7, files)
    assert num_sound
    assert num_stopped


def test_a_stream_of_an_engine_that_has_stopped_ends(make_engine, prompts, monkeypatch):
    engine = make_engine()
    stream = engine.stream(prompts[:2], GREEDY)
    taken = [next(stream)]

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.model, "forward", fail)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert not engine.has_unfinished
    with pytest.raises(EngineStoppedError):
        taken += list(stream)
    assert list(stream) == []
    stream.close()
