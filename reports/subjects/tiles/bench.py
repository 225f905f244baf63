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


def decode(steps):
    for _ in range(steps):
        delivered = len(engine.step())
        assert delivered == ROWS, f"a step gave {delivered} tokens to {ROWS} sequences"


decoding = set()
while len(decoding) < ROWS:
    decoding.update(event.request_id for event in engine.step())
decode(SKIPPED)
windows = []
for _ in range(WINDOWS):
    begun = time.perf_counter()
    decode(STEPS)
    windows.append(1e6 * (time.perf_counter() - begun) / STEPS)
with open(os.environ["KVTRAIL_RESULT"], "w") as file:
    json.dump({"step_us": windows}, file)
