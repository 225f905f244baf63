"""Strip the tags of a text of 180 words, as pure Python does it, and print microseconds a call."""

import time

from markupsafe import Markup

CALLS, REPEATS = 300, 3
text = Markup("word " * 180)


def once() -> float:
    begun = time.process_time()
    for _ in range(CALLS):
        text.striptags()
    return 1e6 * (time.process_time() - begun) / CALLS


print(min(once() for _ in range(REPEATS)))
