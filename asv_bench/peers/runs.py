"""Runs of a workload through transformers' `generate`, measured as the engine's runs are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.workloads.drive import settled_garbage
from asv_bench.workloads.named import Workload
from asv_bench.workloads.run_sample import RequestTrace, RunSample

DYNAMIC, STATIC = "transformers-dynamic", "transformers-static"
PEERS = (DYNAMIC, STATIC)
"""`generate` with the cache it takes by default, and with the one for which it compiles itself."""


@dataclass(slots=True)
class Arrivals:
    """A streamer for `generate` that notes when the tokens of each step reached the host."""

    times_s: list[float] = field(default_factory=list)
    _saw_prompt: bool = False

    def put(self, value: Any) -> None:
        """Take in one step's tokens; the first call brings the prompt."""
        if self._saw_prompt:
            self.times_s.append(time.perf_counter())
        self._saw_prompt = True

    def end(self) -> None:
        """Called when all is generated; the last token has been noted already."""


def run_peer(
    model: Any, workload: Workload, prompts: Sequence[Sequence[int]], peer: str, *, streamed: bool
) -> RunSample:
    """Run the workload once: one greedy `generate` for each batch; EOS does not end it.

    Only a `streamed` run notes when each token reached the host. The wall time counts from the
    prompts as lists to the new ids as lists. A streamer adds a copy to the host to each step, so
    throughput is taken from runs without one.

    Raises MeasurementFailed if `generate` gave another number of tokens than was asked for.
    """
    traces: list[RequestTrace] = []
    steps = 0
    with settled_garbage():
        started = time.perf_counter()
        for first in range(0, len(prompts), workload.batch_size):
            batch = prompts[first : first + workload.batch_size]
            arrivals = Arrivals() if streamed else None
            new_ids = _generate(model, batch, workload.new_tokens, peer, arrivals)
            times = [] if arrivals is None else arrivals.times_s
            traces += [RequestTrace(started, ids, list(times), "length") for ids in new_ids]
            steps += max(0, len(times) - 1)
        wall = time.perf_counter() - started
    sample = RunSample("offline", started, wall, steps, traces)
    _require_all_tokens(sample, workload, streamed=streamed)
    return sample


def _generate(
    model: Any,
    batch: Sequence[Sequence[int]],
    new_tokens: int,
    peer: str,
    streamer: Arrivals | None,
) -> list[list[int]]:
    """New token ids of each prompt; shorter prompts are padded on the left and masked there."""
    import torch

    longest = max(len(prompt) for prompt in batch)
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in batch]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch]
    output = model.generate(
        torch.tensor(ids, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        max_new_tokens=new_tokens,
        do_sample=False,
        cache_implementation="static" if peer == STATIC else None,
        streamer=streamer,
    )
    generated: list[list[int]] = output[:, longest:].tolist()
    return generated


def _require_all_tokens(sample: RunSample, workload: Workload, *, streamed: bool) -> None:
    for index, trace in enumerate(sample.traces):
        told = len(trace.token_times_s) if streamed else workload.new_tokens
        if len(trace.token_ids) != workload.new_tokens or told != workload.new_tokens:
            raise MeasurementFailed(
                f"transformers generated {len(trace.token_ids)} tokens for request {index} and "
                f"streamed {told}, where {workload.new_tokens} were asked for; this run measures "
                f"something else."
            )
