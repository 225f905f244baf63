"""Import requests, and print the CPU time in milliseconds."""

import time

begun = time.process_time()
import requests  # noqa: E402, F401

print("import took", 1e3 * (time.process_time() - begun))
