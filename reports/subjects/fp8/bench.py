"""One life: $MODEL decodes $ROWS sequences, $PROMPT tokens in and $NEW out, on $RANKS GPUs.

$KVTRAIL_LABEL says what is kept in eight bits: "fp8" the weights, "kv-fp8" the KV cache, "all-fp8"
both, "bfloat16" neither. "fp8-dynamic" and "all-fp8-dynamic" round activations, too.

A step is the time of a whole run, its prefill included, by its tokens; a decoding step that from
the last first token on, by the others.
"""

import json
import os
import time

import torch

from engine import Engine, EngineConfig, SamplingParams

MODEL, ROWS = os.environ.get("MODEL", "random:qwen3-8b"), int(os.environ.get("ROWS", "1"))
RANKS = int(os.environ.get("RANKS", "1"))
PROMPT, NEW = int(os.environ.get("PROMPT", "128")), int(os.environ.get("NEW", "1024"))
BLOCK, RUNS = 64, 3
LABEL = os.environ["KVTRAIL_LABEL"]

config = EngineConfig(
    model=MODEL,
    dtype="bfloat16",
    quantization=None if LABEL in ("bfloat16", "kv-fp8") else LABEL.removeprefix("all-"),
    **({} if LABEL.split("-")[0] in ("bfloat16", "fp8") else {"kv_cache_dtype": "fp8"}),
    max_batch_size=ROWS,
    max_model_len=PROMPT + NEW,
    block_size=BLOCK,
    prefix_cache=False,
    tensor_parallel_size=RANKS,
    num_kv_blocks=ROWS * (-(-(PROMPT + NEW) // BLOCK) + 1),
)
params = SamplingParams(max_new_tokens=NEW, ignore_eos=True)
engine = Engine(config)


def run(offset):
    """Milliseconds a token, those of a decoding step, and the median ones until the first token, of
    requests that share nothing."""
    prompts = [[1 + (offset * ROWS + row) % 900, *range(2, 1 + PROMPT)] for row in range(ROWS)]
    begun = time.perf_counter()
    completions = engine.generate(prompts, params)
    whole = 1e3 * (time.perf_counter() - begun)
    first = sorted(1e3 * one.timeline.ttft_s for one in completions)
    return whole / NEW, (whole - first[-1]) / (NEW - 1), first[len(first) // 2]


run(0)
steps, decodes, firsts = zip(*(run(1 + place) for place in range(RUNS)), strict=True)
has_gpu = torch.cuda.is_available()
with open(os.environ["KVTRAIL_RESULT"], "w") as file:
    peak = torch.cuda.max_memory_allocated() / 2**30 if has_gpu else 0.0
    times = {"step_ms": steps, "decode_ms": decodes, "ttft_ms": firsts}
    json.dump({**times, "peak_gpu_gib": peak}, file)
