"""One life: training, encoding and decoding by a byte-level BPE, in milliseconds."""

import json
import os
import random
import time

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WINDOWS = 7
generator = random.Random(0)
letters = "etaoinshrdlucmfwypvbgkqjxz"
words = ["".join(generator.choices(letters, k=generator.randint(2, 9))) for _ in range(4000)]
lines = [" ".join(generator.choices(words, k=40)) for _ in range(1500)]


def trained():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines[:300], trainers.BpeTrainer(vocab_size=3000, show_progress=False))
    return tokenizer


def timed(work):
    """Milliseconds."""
    begun = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begun)


tokenizer = trained()
ids = [encoding.ids for encoding in tokenizer.encode_batch(lines)]
work = {
    "train_ms": trained,
    "encode_ms": lambda: tokenizer.encode_batch(lines),
    "encode_one_ms": lambda: [tokenizer.encode(line) for line in lines[:300]],
    "decode_ms": lambda: tokenizer.decode_batch(ids),
}
figures = {name: [timed(one) for _ in range(WINDOWS)] for name, one in work.items()}
with open(os.environ["KVTRAIL_RESULT"], "w") as file:
    json.dump(figures, file)
