"""The pretended GPU: what crosses is noted, what a GPU would refuse is refused.

In processes of their own, because the kernels remember what ``cuda:0`` is.
"""

from __future__ import annotations

import pytest

from tests.fresh_python import forked_python

PRELUDE = """
import numpy as np, torch
from asv_bench.errors import MeasurementFailed
from asv_bench.lab.pretend_cuda import pretended_cuda

def crossed(traffic):
    counts = (traffic.copies_to_device, traffic.bytes_to_device,
              traffic.copies_to_host, traffic.bytes_to_host)
    traffic.clear()
    return counts
"""


def run(body: str) -> str:
    """Run `body` after the prelude in a fresh process and return what it printed."""
    done = forked_python(PRELUDE + body)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_way_across_is_noted_with_its_bytes() -> None:
    run(
        """
host = torch.zeros(6, dtype=torch.float32)
with torch.inference_mode(), pretended_cuda() as traffic:
    there = torch.zeros(4, 3, dtype=torch.float16, device="cuda")
    assert crossed(traffic) == (0, 0, 0, 0), "made on the device"
    for cross in (
        lambda: host.to("cuda"),
        lambda: host.to(there.device, non_blocking=True),
        lambda: host.to(device="cuda", dtype=torch.float16),
        lambda: host.cuda(),
        lambda: host.pin_memory().to("cuda"),
        lambda: torch.empty(6, pin_memory=True).to("cuda"),
        lambda: torch.tensor([1.0] * 6, device="cuda"),
        lambda: torch.as_tensor(np.zeros(6, np.float32), device="cuda:0"),
        lambda: torch.empty(6, device="cuda").copy_(host),
    ):
        made = cross()
        assert made.is_cuda and made.device == torch.device("cuda", 0)
        assert crossed(traffic) == (1, 24, 0, 0), cross
    for cross in (
        lambda: there.cpu(),
        lambda: there.to("cpu"),
        lambda: there.to(torch.device("cpu"), torch.float32),
        lambda: torch.empty(4, 3, dtype=torch.float16).copy_(there),
        lambda: torch.empty(4, 3, pin_memory=True).copy_(there, non_blocking=True),
    ):
        made = cross()
        assert not made.is_cuda and not made.any(), cross
        assert crossed(traffic) == (0, 0, 1, 24), cross
    assert there[0, 0].item() == 0.0
    assert crossed(traffic) == (0, 0, 1, 2)
    assert int(there.sum()) == 0 and there[0].tolist() == [0.0] * 3
    assert crossed(traffic) == (0, 0, 2, 2 + 6)
    there[torch.tensor([0, 2])]
    assert crossed(traffic) == (1, 16, 0, 0), "an index from the host travels"
    there.to(torch.float32), there.to("cuda"), there + 1, there[1:].add_(2.0), there.view(12)
    assert crossed(traffic) == (0, 0, 0, 0), "what stays on the device"
    from engine.transport.mapped_memory import mapped_memory
    on_host, on_device = mapped_memory((4, 3), torch.int32, there.device)
    on_device.index_copy_(0, torch.zeros(1, device="cuda").long(), on_device[1:2].fill_(7))
    assert on_device.is_cuda and on_device.dtype == torch.int32 and not on_host.any()
    assert crossed(traffic) == (0, 0, 0, 0), "what both reach is not copied"
    words = torch.zeros(64, dtype=torch.int32, device="cuda")
    places = words, words[3:], words[8:].view(torch.int64)
    assert [one.data_ptr() for one in places] == [0, 12, 32], "places in an allocation"
    assert words.view(8, 8)[:, 2].stride() == (8,)
"""
    )


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        ("there[there > 0]", "must wait for its values"),
        ("there + torch.zeros(4, 3)", "on a GPU it would fail"),
    ],
)
def test_what_would_wait_or_fail_on_a_gpu_is_refused(spoil: str, sentence: str) -> None:
    out = run(
        f"""
with torch.inference_mode(), pretended_cuda():
    there = torch.zeros(4, 3, device="cuda")
    try:
        {spoil}
    except MeasurementFailed as error:
        print(error)
"""
    )
    assert sentence in out


def test_every_launch_is_noted_with_its_stream() -> None:
    run(
        """
with torch.inference_mode(), pretended_cuda() as traffic:
    default = torch.cuda.current_stream()
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    torch.zeros(3, device="cuda").cpu()
    assert traffic.streams == {default}
    traffic.clear()
    with torch.cuda.stream(one):
        graph.replay()
        torch.cuda.set_stream(other)
        torch.zeros(3).cuda()
    assert traffic.streams == {one, other} and torch.cuda.current_stream() is default
    traffic.clear()
    with torch.cuda.graph(graph):
        torch.zeros(3, device="cuda").cpu()
    assert traffic.captures == 1 and not traffic.streams, "nothing runs in a capture"
"""
    )


@pytest.mark.parametrize("model", ["llama-tiny", "qwen3-tiny"])
def test_weights_that_are_drawn_on_the_device_are_pretended_too(model: str) -> None:
    run(
        f"""
from asv_bench.explain.engine_counts import run_steps, warm_engine
with warm_engine("graph", 2, "random:{model}") as (engine, traffic):
    traffic.clear()
    run_steps(engine, 2, 3)
    assert traffic.graph_replays == 3
"""
    )


def test_nothing_of_the_pretence_stays() -> None:
    run(
        """
before = torch.cuda.is_available(), torch.cuda.Stream
from triton.runtime.jit import JITFunction
run = JITFunction.run
with pretended_cuda():
    assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
assert (torch.cuda.is_available(), torch.cuda.Stream) == before
assert JITFunction.run is run
if not torch.cuda.is_available():
    try:
        torch.zeros(1, device="cuda")
    except (AssertionError, RuntimeError):
        pass
    else:
        raise SystemExit("a CUDA tensor without CUDA")
"""
    )
