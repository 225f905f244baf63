"""One life: four kernels at the shapes of Llama-3.1-8B in bf16, in microseconds of the GPU."""

import json
import os

import torch
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction

HIDDEN, FEED_FORWARD, VOCABULARY, HEADS, KEY_HEADS, HEAD = 4096, 14336, 128256, 32, 8, 128
TOKENS = 4096
WINDOWS = 9

torch.manual_seed(0)


def drawn(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def timed(work, before=lambda: None, calls=1):
    """Microseconds a call, of each window; `before` is not timed."""
    windows = []
    for number in range(WINDOWS + 2):
        before()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        if number >= 2:
            windows.append(1e3 * begin.elapsed_time(end) / calls)
    return windows


states, norm_weight = drawn(8 * TOKENS, HIDDEN), drawn(HIDDEN)
normed = LigerRMSNormFunction.apply(states, norm_weight, 1e-6)
expected = torch.nn.functional.rms_norm(states.float(), (HIDDEN,), norm_weight.float(), 1e-6)
torch.testing.assert_close(normed.float(), expected, rtol=2e-2, atol=2e-2)
del normed, expected

queries, keys = drawn(8, HEADS, TOKENS, HEAD), drawn(8, KEY_HEADS, TOKENS, HEAD)
turns = 5e5 ** -torch.arange(0, 1, 2 / HEAD, device="cuda")
angles = torch.outer(torch.arange(TOKENS, device="cuda"), turns)
angles = torch.cat((angles, angles), -1)[None]
cosines, sines = angles.cos().bfloat16(), angles.sin().bfloat16()

gates, ups = drawn(4 * TOKENS, FEED_FORWARD), drawn(4 * TOKENS, FEED_FORWARD)

targets = torch.randint(VOCABULARY, (TOKENS,), device="cuda")
last_states = (drawn(TOKENS, HIDDEN) / HIDDEN**0.5).requires_grad_()
head = drawn(VOCABULARY, HIDDEN).requires_grad_()


def without_gradients():
    last_states.grad = head.grad = None


def fused_linear_cross_entropy():
    result = LigerFusedLinearCrossEntropyFunction.apply(last_states, head, targets)
    # Later releases return more than the loss.
    loss = result[0] if isinstance(result, tuple) else result
    loss.backward()


with torch.no_grad():
    figures = {
        "rms_norm_us": timed(lambda: LigerRMSNormFunction.apply(states, norm_weight, 1e-6), calls=20),
        "rope_us": timed(lambda: LigerRopeFunction.apply(queries, keys, cosines, sines), calls=20),
        "swiglu_us": timed(lambda: LigerSiLUMulFunction.apply(gates, ups), calls=20),
    }
figures["fused_linear_cross_entropy_us"] = timed(fused_linear_cross_entropy, without_gradients)
with open(os.environ["KVTRAIL_RESULT"], "w") as file:
    json.dump(figures, file)
