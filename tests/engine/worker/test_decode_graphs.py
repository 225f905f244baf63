"""When decode steps are captured, on a pretended GPU, in a process of its own."""

from __future__ import annotations

import pytest

from tests.fresh_python import forked_python

BODY = """
from asv_bench.lab.pretend_cuda import pretended_cuda
from engine import Engine, EngineConfig, SamplingParams

with pretended_cuda() as traffic:
    engine = Engine(
        EngineConfig(
            model="random:gpt2-tiny", device="cuda", fuse={fuse}, max_batch_size=40,
            num_kv_blocks=200, prefill_max_tokens=64,
        )
    )
    assert traffic.captures > 0
    traffic.clear()
    for place in range(20):
        params = SamplingParams(max_new_tokens=20, temperature=0.9 * (place % 2), ignore_eos=True)
        engine.submit([1 + place, 2], params)
    engine.step()
    # Only the draw of this bucket, the first time that it is asked for.
    assert traffic.captures == 1
    for _ in range(4):
        traffic.clear()
        assert len(engine.step()) == 20
        # The graph of greedy steps, and that of draws after it.
        assert traffic.graph_replays == 2 and not traffic.launches and not traffic.captures
        assert (traffic.copies_to_device, traffic.copies_to_host) == (0, 0)
"""


@pytest.mark.parametrize("fuse", [True, False])
def test_a_step_captures_no_more_than_the_draw_of_its_bucket_and_that_once(fuse: bool) -> None:
    done = forked_python(BODY.format(fuse=fuse))
    assert done.returncode == 0, done.stdout + done.stderr


NO_MEMORY = """
import torch
from engine.worker import decode_graphs

def capture(pool, launch):
    if "redraw" in str(launch):
        raise torch.OutOfMemoryError("no memory for the graph of a draw")
    return captured(pool, launch)

captured, decode_graphs.GraphPool.capture = decode_graphs.GraphPool.capture, capture
"""
EAGER = """
    for _ in range(4):
        traffic.clear()
        assert len(engine.step()) == 20
        assert traffic.graph_replays == 1 and not traffic.captures
    assert engine.has_unfinished
"""


def test_a_draw_without_memory_for_its_graph_goes_on_without_one() -> None:
    body = NO_MEMORY + BODY.format(fuse=True).partition("    # Only")[0] + EAGER
    done = forked_python(body)
    assert done.returncode == 0, done.stdout + done.stderr
