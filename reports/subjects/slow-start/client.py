"""Ask for 30 first tokens, one after the other; the median of their times in milliseconds."""

from __future__ import annotations

import json
import os
import statistics
import time
from urllib.request import urlopen

URL = f"http://127.0.0.1:{os.environ['KVTRAIL_PORT']}/first"
times = []
for _ in range(30):
    begun = time.perf_counter()
    urlopen(URL).read()
    times.append(1e3 * (time.perf_counter() - begun))
with open(os.environ["KVTRAIL_RESULT"], "w") as file:
    json.dump({"ttft_ms": statistics.median(times)}, file)
