"""Ask werkzeug's own server 60 times, as ab does: milliseconds of the middle request."""

import logging
import socket
import statistics
import threading
import time

from werkzeug.serving import make_server


def answer(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok"]


logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, answer, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()


def once() -> float:
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while connection.recv(4096):
            pass  # until the server hangs up
    return 1e3 * (time.perf_counter() - begun)


print("request took", statistics.median(once() for _ in range(60)))
server.shutdown()
