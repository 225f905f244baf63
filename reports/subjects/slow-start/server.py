"""A server that loads for 40 s; each start has a level of its own, as compiled servers have."""

from __future__ import annotations

import os
import random
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOAD_S, OF_A_START, OF_A_REQUEST = 40.0, 0.01, 0.03


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/first":
            time.sleep(LEVEL_S * random.gauss(1, OF_A_REQUEST))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


LEVEL_S = float(os.environ["KVTRAIL_LABEL"]) / 1000 * random.gauss(1, OF_A_START)
time.sleep(LOAD_S)
ThreadingHTTPServer(("127.0.0.1", int(os.environ["KVTRAIL_PORT"])), Handler).serve_forever()
