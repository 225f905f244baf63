"""Print the milliseconds of a linear map with its cross-entropy, at Llama-3.1-8B's shapes."""

import statistics
import sys

import torch

sys.modules["peft"] = None  # some releases import it where it is installed, which takes ten seconds

from liger_kernel.ops.fused_linear_cross_entropy import (  # noqa: E402
    LigerFusedLinearCrossEntropyFunction,
)

HIDDEN, VOCABULARY, TOKENS = 4096, 128256, 4096
WINDOWS, WARM_UP = 7, 2

torch.manual_seed(0)
states, head = (
    torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16) for rows in (TOKENS, VOCABULARY)
)
states = (states / HIDDEN**0.5).requires_grad_()
head.requires_grad_()
targets = torch.randint(VOCABULARY, (TOKENS,), device="cuda")


def once() -> float:
    states.grad = head.grad = None
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    result = LigerFusedLinearCrossEntropyFunction.apply(states, head, targets)
    # Later releases return more than the loss.
    loss = result[0] if isinstance(result, tuple) else result
    loss.backward()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


windows = [once() for _ in range(WARM_UP + WINDOWS)][WARM_UP:]
print("forward and backward took", statistics.median(windows))
