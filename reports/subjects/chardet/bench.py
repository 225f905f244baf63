"""Detect the encoding of two short texts for the first time, and print the CPU milliseconds."""

import time

import chardet

begun = time.process_time()
chardet.detect(b"Hello, world!")
chardet.detect("It’s a lovely day — let’s grab coffee.".encode())
print("detect took", 1e3 * (time.process_time() - begun))
