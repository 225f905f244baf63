"""When decode steps are captured, on a pretended GPU, in a process of its own."""

from __future__ import annotations

import pytest

from tests.fresh_python import fresh_python

BODY = """
from asv_bench.lab.counters.pretend_cuda import pretended_cuda
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
    for _ in range(4):
        traffic.clear()
        assert len(engine.step()) == 20
        # The graph of greedy steps, and draws after it with torch alone.
        assert traffic.graph_replays == 1 and not traffic.launches and not traffic.captures
        assert (traffic.copies_to_device, traffic.copies_to_host) == (0, 0)
"""


@pytest.mark.parametrize("fuse", [True, False])
def test_nothing_is_captured_once_the_engine_is_built_whoever_samples(fuse: bool) -> None:
    done = fresh_python("-c", BODY.format(fuse=fuse))
    assert done.returncode == 0, done.stdout + done.stderr
