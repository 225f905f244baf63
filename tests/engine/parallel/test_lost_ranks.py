"""A rank that ends or fails ends the engine with a sentence, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from engine_cases import GREEDY

from engine import Engine, EngineConfig, EngineStoppedError, ModelError, RankError
from engine.parallel import ranks

CONFIG = EngineConfig(device="cpu", tensor_parallel_size=2)
LONG_S = 30.0

PARENT = """
import os, sys, threading, time
from engine import Engine, EngineConfig, SamplingParams
engine = Engine(EngineConfig(device="cpu", tensor_parallel_size=4, model=sys.argv[1]))
print(*[one.process for one in engine.rank_memory()[1:]], flush=True)
if sys.argv[2] == "steps":
    engine.generate([[1, 2]] * 64, SamplingParams(max_new_tokens=900, ignore_eos=True))
if sys.argv[2] != "leaves":
    time.sleep(600)
"""


def _ends(process: int) -> bool:
    """Whether a process ends soon."""
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        status = Path(f"/proc/{process}/status")
        if not status.exists() or "State:\tZ" in status.read_text():
            return True
        time.sleep(0.02)
    return False


def _kill_soon(process: int) -> None:
    time.sleep(0.3)
    os.kill(process, signal.SIGKILL)


def test_a_rank_that_is_killed_between_steps_ends_the_engine(prompts):
    engine = Engine(CONFIG)
    process = engine.rank_memory()[1].process
    engine.submit(prompts[0], GREEDY)
    engine.step()
    os.kill(process, signal.SIGKILL)
    with pytest.raises(RankError, match=rf"Rank 1 \(process {process}\) was killed by signal 9"):
        engine.step()
    assert not engine.has_unfinished
    with pytest.raises(EngineStoppedError, match=r"Rank 1 \(process .* build a new Engine"):
        engine.step()
    engine.close()


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 4])
def test_a_rank_that_is_killed_in_the_middle_of_a_step_ends_the_engine(count, prompts):
    engine = Engine(EngineConfig(device="cpu", tensor_parallel_size=count))
    *others, last = [one.process for one in engine.rank_memory()[1:]]
    threading.Thread(target=_kill_soon, args=(last,)).start()
    with pytest.raises(RankError, match=rf"Rank {count - 1} \(process {last}\) was killed"):
        engine.generate(prompts * 200, GREEDY)
    assert all(_ends(process) for process in others)


@pytest.mark.thorough
def test_a_rank_that_cannot_start_says_so(monkeypatch):
    monkeypatch.setattr(ranks, "_RUN", "raise SystemExit(7)")
    with pytest.raises(RankError, match=r"Rank 1 \(process \d+\) ended with code 7, and the other"):
        Engine(CONFIG)


FAILING = """
import engine.parallel.follower as follower
from engine import ModelError
def planted(*arguments, **options):
    raise {}
follower.load_model = planted
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("raised", "error", "words"),
    [
        ("ModelError('It is damaged.')", ModelError, r"^It is damaged\.$"),
        ("KeyError('planted')", RankError, r"Rank 1 failed \(KeyError: 'planted'\), and the other"),
    ],
)
def test_what_a_rank_fails_with_is_said(raised, error, words, monkeypatch):
    before, call = ranks._RUN.rsplit("; ", 1)
    monkeypatch.setattr(ranks, "_RUN", f"{before}; exec({FAILING.format(raised)!r}); {call}")
    with pytest.raises(error, match=words):
        Engine(CONFIG)


@pytest.mark.thorough
def test_ctrl_c_in_a_step_ends_the_ranks(prompts, monkeypatch):
    engine = Engine(CONFIG)
    process = engine.rank_memory()[1].process
    runner, left = engine._loop.worker.runner, [3]
    decode = runner.decode

    def interrupted(*arguments: object, **options: object) -> object:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return decode(*arguments, **options)

    monkeypatch.setattr(runner, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts, GREEDY)
    assert _ends(process)
    with pytest.raises(EngineStoppedError, match="KeyboardInterrupt"):
        engine.step()


@pytest.mark.thorough
@pytest.mark.parametrize("when", ["steps", "rests", "leaves"])
def test_ranks_end_with_the_process_that_started_them(when, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, script, "random:gpt2-tiny", when],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        processes = [int(word) for word in parent.stdout.readline().split()]
        if when != "leaves":
            time.sleep(0.5)
            parent.kill()
    assert len(processes) == 3
    assert all(_ends(process) for process in processes)
