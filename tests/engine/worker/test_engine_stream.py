"""On which CUDA stream an engine launches, whatever its caller does with streams of its own.

On a pretended GPU, in processes of their own: the kernels remember what ``cuda:0`` is.
"""

from __future__ import annotations

import pytest

from tests.fresh_python import forked_python

PRELUDE = """
import torch
from asv_bench.lab.pretend_cuda import pretended_cuda
from engine import Engine, EngineConfig, SamplingParams

def config(**options):
    options = {"max_batch_size": 4, "num_kv_blocks": 64, "prefill_max_tokens": 64} | options
    return EngineConfig(model="random:gpt2-tiny", device="cuda", **options)

LONG = list(range(1, 20))  # It is prefilled: decode steps feed shorter prompts.
"""


def run(body: str) -> None:
    """Run `body` after the prelude in a fresh process."""
    done = forked_python(PRELUDE + body)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("decode", ["graph", "eager"])
def test_every_launch_goes_to_one_stream_whichever_the_caller_uses(decode: str) -> None:
    run(
        f"""
with pretended_cuda() as traffic:
    callers = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    engine = Engine(config(decode={decode!r}))
    torch.cuda.set_stream(callers[1])
    for temperature in (0.0, 0.9):
        engine.submit(LONG, SamplingParams(max_new_tokens=30, temperature=temperature))
        engine.submit(LONG, SamplingParams(max_new_tokens=30))
    for step in range(12):
        torch.cuda.set_stream(callers[step % 3])
        engine.step()
        assert torch.cuda.current_stream() is callers[step % 3]
    for _ in engine.stream([LONG, [3]], SamplingParams(max_new_tokens=3)):
        torch.cuda.set_stream(torch.cuda.Stream())
    [own] = traffic.streams
    assert own not in callers
"""
    )


def test_engines_of_one_device_share_a_stream_that_is_no_callers() -> None:
    run(
        """
with pretended_cuda() as traffic:
    engines = []
    for _ in range(2):
        with torch.cuda.stream(torch.cuda.Stream()):
            engines.append(Engine(config()))
    for engine in engines:
        engine.generate([LONG])
    assert len(traffic.streams) == 1
"""
    )


def test_a_step_that_fails_leaves_the_caller_his_stream() -> None:
    run(
        """
with pretended_cuda():
    engine = Engine(config())
    engine.submit([1])
    engine._loop.advance = lambda: 1 / 0
    before = torch.cuda.current_stream()
    try:
        engine.step()
    except ZeroDivisionError:
        assert torch.cuda.current_stream() is before
    else:
        raise SystemExit("the step should have failed")
"""
    )
