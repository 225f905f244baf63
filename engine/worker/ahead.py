"""What captures launch, compiled ahead of them, several kernels at a time."""

from __future__ import annotations

from functools import partial

import torch

from engine.worker.decode_graphs import bucket_sizes
from engine.worker.prefill_graphs import padding, prefill_shapes
from engine.worker.runner import ModelRunner


def compile_ahead(runner: ModelRunner, prefill_max_tokens: int) -> None:
    """Compile all kernels of the steps and prefills that are captured next, on all cores.

    Nothing is compiled where Triton's cache has those of the largest step and of the smallest
    prefill: then an engine like this one ran here before. No row may have a budget yet.
    """
    from kernels.compilation import compile_in_parallel, wanted_kernels

    *others, largest = bucket_sizes(runner.rows.num_rows)
    shapes = prefill_shapes(runner, prefill_max_tokens)
    packed = torch.empty(shapes[-1].size, dtype=torch.int32, device=runner.rows.device)
    try:
        wanted = wanted_kernels(partial(runner.decode, largest))
        wanted += wanted_kernels(partial(runner.compute_prompts, padding(shapes[0], packed)))
        if all(kernel.is_stored for kernel in wanted):
            return
        for size in others:
            wanted += wanted_kernels(partial(runner.decode, size))
        for shape in shapes[1:]:
            wanted += wanted_kernels(partial(runner.compute_prompts, padding(shape, packed)))
    except Exception:
        # Another Triton may keep its books otherwise. What is really wrong the captures will say.
        return
    compile_in_parallel(wanted)
