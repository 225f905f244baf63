"""One life: $MODEL decodes $ROWS sequences of 24 known tokens beyond $CYCLE, and $NEW new ones.

$KVTRAIL_LABEL is "prompt-lookup" or "none". $TASK is "copy", "edit" or "random". Random weights
copy nothing. To copy, what blocks add to the residual stream is made zero, and the head one that
takes each token for the next of a cycle, which the prompt has once: every draft is right then. To
edit, the prompt has another token at one of $EVERY places, which the model does not repeat. All
weights are read as before.

A step is the time of a whole run, its prefill included, by the new tokens of a sequence.
"""

import json
import os
import time

import torch

from engine import Engine, EngineConfig, SamplingParams

MODEL, ROWS = os.environ.get("MODEL", "random:qwen3-8b"), int(os.environ.get("ROWS", "1"))
NEW, TASK = int(os.environ.get("NEW", "512")), os.environ.get("TASK", "copy")
DTYPE, EVERY = os.environ.get("DTYPE", "bfloat16"), int(os.environ.get("EVERY", "20"))
CYCLE, BLOCK, RUNS = int(os.environ.get("CYCLE", "1000")), 64, 3
PROMPT = CYCLE + 24

drafts = os.environ["KVTRAIL_LABEL"] == "prompt-lookup"
config = EngineConfig(
    model=MODEL,
    dtype=DTYPE,
    max_batch_size=ROWS,
    max_model_len=PROMPT + NEW,
    block_size=BLOCK,
    prefix_cache=False,
    num_kv_blocks=ROWS * (-(-(PROMPT + NEW) // BLOCK) + 1),
    **({"speculative": "prompt-lookup"} if drafts else {}),
)
engine = Engine(config)
if TASK != "random":
    with torch.inference_mode():
        for block in engine.model.blocks:
            block.attention.out.weight.zero_()
            block.feed_forward.out.weight.zero_()
        known = engine.model.token_embedding[:CYCLE].clone()
        engine.model.head.weight[:CYCLE] = known.roll(1, 0)
        engine.model.head.weight[CYCLE:] = 0
params = SamplingParams(max_new_tokens=NEW, ignore_eos=True)


def run(offset):
    """Milliseconds a token, of requests that begin anywhere in the cycle."""
    starts = [37 * (offset * ROWS + row) for row in range(ROWS)]
    prompts = [[(start + place) % CYCLE for place in range(PROMPT)] for start in starts]
    if TASK == "edit":
        for prompt in prompts:
            prompt[:CYCLE:EVERY] = range(CYCLE, CYCLE + len(prompt[:CYCLE:EVERY]))
    begun = time.perf_counter()
    completions = engine.generate(prompts, params)
    step = 1e3 * (time.perf_counter() - begun) / NEW
    if TASK != "random":
        for prompt, one in zip(prompts, completions, strict=True):
            assert one.token_ids[0] == (prompt[-1] + 1) % CYCLE, "the model copies"
    return step


run(0)
steps = [run(1 + place) for place in range(RUNS)]
with open(os.environ["KVTRAIL_RESULT"], "w") as file:
    json.dump({"step_ms": steps}, file)
