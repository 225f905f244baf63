"""One life: GPT-2 124M decodes $ROWS sequences of about 257 tokens; microseconds a step."""

import json
import os
import time

from engine import Engine, EngineConfig, SamplingParams

ROWS = int(os.environ.get("ROWS", "64"))
PROMPT, SKIPPED, STEPS, WINDOWS = 129, 64, 16, 8
TOKENS = SKIPPED + STEPS * WINDOWS + 64

engine = Engine(EngineConfig(model="random:gpt2", max_batch_size=ROWS, max_model_len=PROMPT + TOKENS))
params = SamplingParams(max_new_tokens=TOKENS, ignore_eos=True)
for request in range(ROWS):
    # Prompts that share nothing: no request is another's prefix.
    engine.submit([1 + request, *range(2, 1 + PROMPT)], params)


delivered = 0


def decode(steps):
    """Seconds until so many steps have given their tokens, which a GPU delivers some steps late."""
    global delivered
    begun = time.perf_counter()
    delivered -= steps * ROWS
    while delivered < 0:
        delivered += len(engine.step())
    return time.perf_counter() - begun


decoding = set()
while len(decoding) < ROWS:
    decoding.update(event.request_id for event in engine.step())
decode(SKIPPED)
windows = [1e6 * decode(STEPS) / STEPS for _ in range(WINDOWS)]
with open(os.environ["KVTRAIL_RESULT"], "w") as file:
    json.dump({"step_us": windows}, file)
