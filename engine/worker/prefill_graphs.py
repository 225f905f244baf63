"""Prefills as captured CUDA graphs, one for each bucket of tokens: one launch for all layers."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial

import torch

from engine.scheduling.plans import PrefillPlan
from engine.transport.staging import StagingBuffers
from engine.worker.graph_capture import GraphPool, capturing
from engine.worker.prefill_inputs import NO_BLOCK, PackedPrompts, PrefillInputs, PrefillShape
from engine.worker.ranges import span
from engine.worker.runner import ComputedPrompts, ModelRunner

_LEAST_BUCKET = 64
_LEAST_SAMPLED = 8


def prefill_bucket_sizes(max_tokens: int) -> list[int]:
    """Numbers of tokens that are captured: multiples of 64, four an octave from 256 up.

    A prefill runs in the smallest bucket that holds it, so above 256 less than a fifth of it is
    padding. Below that padding costs little: the time is that of the launches, not of the tokens.
    """
    sizes = []
    size = _LEAST_BUCKET
    while size < max_tokens:
        sizes.append(size)
        size += max(_LEAST_BUCKET, 1 << (size.bit_length() - 3))
    return [*sizes, max_tokens]


def sampled_bucket_sizes(most_prompts: int) -> list[int]:
    """Numbers of prompts for which sampling is captured: factors of eight, and the most there are.

    Eight to 64 rows cost the same weights of the head; more cost their logits, too.
    """
    sizes = []
    size = _LEAST_SAMPLED
    while size < most_prompts:
        sizes.append(size)
        size *= 8
    return [*sizes, most_prompts]


def prefill_shapes(runner: ModelRunner, max_tokens: int) -> list[PrefillShape]:
    """The shape of each bucket for the rows, and what is drafted for them, ascending."""
    rows, most = runner.rows, runner.rows.num_rows + runner.most_drafted
    return [
        PrefillShape(size, min(size, most), rows.num_columns)
        for size in prefill_bucket_sizes(max_tokens)
    ]


def padding(shape: PrefillShape, packed: torch.Tensor) -> PrefillInputs[torch.Tensor]:
    """A prefill of padding alone, in `packed`, int32 [size] or longer."""
    inputs = shape.views(packed)
    packed.zero_()
    inputs.block_index.fill_(NO_BLOCK)
    return inputs


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A captured prefill.

    Attributes
    ----------
    inputs
        What it reads.
    hidden
        The last states [N, E] that it leaves.
    greedy
        What samples from the first of these, as many as the key says, ascending.
    """

    shape: PrefillShape
    inputs: PrefillInputs[torch.Tensor]
    graph: torch.cuda.CUDAGraph
    hidden: torch.Tensor
    greedy: dict[int, torch.cuda.CUDAGraph]

    def sampling(self, count: int) -> torch.cuda.CUDAGraph:
        """What samples so many tokens, and no more than it must."""
        return next(graph for most, graph in self.greedy.items() if count <= most)


class PrefillGraphs:
    """Replays of `ModelRunner.compute_prompts`, and of `sample_greedily` after it.

    All are captured when the engine is built. The two are apart because rows are sent in between.
    Launched one by one, the kernels of a short prefill would take the host longer than the device.

    Parameters
    ----------
    runner
        Computes the prompts.
    staging
        Pinned buffers for what a prefill sends to the device.
    max_tokens
        Tokens of one prefill at most.
    block_size
        Tokens per KV block.
    """

    def __init__(
        self, runner: ModelRunner, staging: StagingBuffers, *, max_tokens: int, block_size: int
    ) -> None:
        self._runner = runner
        self._staging = staging
        self._block_size = block_size
        self._sizes = prefill_bucket_sizes(max_tokens)
        shapes = prefill_shapes(runner, max_tokens)
        # All buckets read one buffer: a copy into it follows the prefill before in stream order.
        self._packed = torch.empty(shapes[-1].size, dtype=torch.int32, device=runner.rows.device)
        self._buckets = self._capture(shapes)

    def pack(self, plan: PrefillPlan) -> PackedPrompts:
        """As `ModelRunner.pack`, with padding up to the bucket's size."""
        shape = self._buckets[bisect_left(self._sizes, plan.num_tokens)].shape
        return shape.packed(plan, self._block_size)

    def compute(self, plan: PrefillPlan) -> ComputedPrompts:
        """As `ModelRunner.compute`, in one launch; valid until the next."""
        return self.launch(self.pack(plan))

    def launch(self, prompts: PackedPrompts) -> ComputedPrompts:
        """As `ModelRunner.launch`."""
        bucket = self._buckets[bisect_left(self._sizes, prompts.shape.num_tokens)]
        with span("copies"):
            self._staging.copy(prompts.numbers, self._packed[: bucket.shape.size])
        with span("forward"):
            bucket.graph.replay()
        greedy = bucket.sampling(prompts.num_sampled)
        return ComputedPrompts(bucket.inputs, bucket.hidden, greedy)

    def _capture(self, shapes: list[PrefillShape]) -> list[_Bucket]:
        """Capture every bucket, the largest first, so that the smaller reuse its memory.

        They are run on padding alone, which changes nothing that is read: no token belongs to a
        sequence, and what is sampled goes to a row that nobody holds yet.
        """
        pool = GraphPool()
        buckets = []
        with capturing("prefill", "lower prefill_max_tokens or num_kv_blocks"):
            for shape in reversed(shapes):
                inputs = padding(shape, self._packed)
                graph, hidden = pool.capture(partial(self._runner.compute_prompts, inputs))
                greedy = {}
                for count in sampled_bucket_sizes(shape.num_sequences):
                    launch = partial(self._runner.sample_greedily, inputs, hidden, count)
                    greedy[count], _ = pool.capture(launch)
                buckets.append(_Bucket(shape, inputs, graph, hidden, greedy))
        return buckets[::-1]
