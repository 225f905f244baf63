"""A server that a client asks: windows, readiness, and every way to die."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository, alive, own_seconds

from asv_bench.measure.samples import CommitUnusable

KEYS = {
    "start": '"python bench.py $KVTRAIL_PORT"',
    "ready": '"http://127.0.0.1:$KVTRAIL_PORT/health"',
    "ready_timeout_s": "20",
}
TABLES = f"""
    [subject]
    name = "toy"
    timeout_s = 20
    pinned = ["client.py"]

    [server]
    start = {KEYS["start"]}
    ready = {KEYS["ready"]}
    ready_timeout_s = 20

    [client]
    run = "python client.py"
    warmup = 1
    windows = 3

    [metrics.tpot_ms]
    path = "tpot_ms"
    """
# It may leave something behind that no session, parent or variable tells of, and die at any time.
SERVER = """
    import http.server, json, os, random, signal, subprocess, sys, time

    PHASE, ORPHAN, VALUE = "never dies", "", 5.0
    if ORPHAN:
        subprocess.Popen(["sleep", ORPHAN], start_new_session=True, env={})
    asked = []

    def end(number=None, frame=None):
        if number and PHASE != "ends":
            time.sleep(0.5)
            with open(os.environ["ENDED"], "w") as file:
                file.write("in its own time")
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if PHASE == "warms up" and self.path == "/" or PHASE == "serves" and len(asked) == 4:
                end()
            self.send_response(200)
            self.end_headers()
            value = VALUE * (1 + random.uniform(-0.001, 0.001))
            self.wfile.write(json.dumps({"tpot_ms": value}).encode())
            self.wfile.flush()
            if PHASE == "is ready":
                end()

        def log_message(self, *arguments):
            pass

    if ORPHAN:
        signal.signal(signal.SIGTERM, end)
    if PHASE == "starts":
        end()
    print("serving", flush=True)
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
    """
CLIENT = """
import os, urllib.request
answer = urllib.request.urlopen(f"http://127.0.0.1:{os.environ['KVTRAIL_PORT']}/").read()
open(os.environ["KVTRAIL_RESULT"], "wb").write(answer)
"""
ASLEEP = "import time; print('loading', flush=True); time.sleep(60)"
NO_HTTP = """
import socket, sys
door = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("loading", flush=True)
while True:
    with door.accept()[0] as asking:
        asking.recv(4096)
        asking.sendall(b"no HTTP")
"""


@pytest.fixture
def made(tmp_path: Path):
    """A repository of servers, whose tables have other values for some keys."""

    def make(*servers: str, client: str = CLIENT, **keys: str) -> DeclaredRepository:
        tables = TABLES
        for key, value in keys.items():
            tables = tables.replace(f"{key} = {KEYS[key]}", f"{key} = {value}")
        made = DeclaredRepository.make(tmp_path / "toy", tables, *servers)
        (made.root / "client.py").write_text(client)
        return made

    return make


def test_the_windows_of_one_life_are_a_reading(made) -> None:
    lived = made(SERVER).lived("tpot_ms", "ready_s", "peak_rss_bytes")
    assert len(lived["tpot_ms"].samples) == 3
    assert lived["tpot_ms"].value == sorted(lived["tpot_ms"].samples)[1]
    # More than a shell has.
    assert lived["peak_rss_bytes"].value > 8 * 2**20
    assert 0.01 < lived["ready_s"].value < 20


def test_the_cpu_time_of_a_server_is_that_of_its_processes_while_it_is_asked(made) -> None:
    work = "until = time.process_time() + {}\n{}while time.process_time() < until: pass"
    asked = work.format(0.1, " " * 12) + "\n            if PHASE == 'is ready'"
    busy = SERVER.replace("if PHASE == 'is ready'", asked).replace('if PHASE == "is ready"', asked)
    server = busy.replace(
        'if PHASE == "starts"', f'{work.format(0.5, " " * 4)}\n    if PHASE == "starts"'
    )
    lived = made(server, start='"true; python bench.py $KVTRAIL_PORT & wait"').lived("cpu_s")
    assert len(lived["cpu_s"].samples) == 3
    assert 0.08 < lived["cpu_s"].value < 0.3


def test_a_server_may_say_that_it_is_ready(made) -> None:
    assert made(SERVER, ready="{ regex = '^serving$' }").prepared() == {}


@pytest.mark.thorough
def test_servers_are_compared(kvtrail, made) -> None:
    said = kvtrail(made(SERVER, SERVER.replace("5.0", "5.4")), "compare", "HEAD~1", "HEAD")
    assert (said.code, said.verdicts) == (3, {"tpot_ms": "slower"}), said.text


@pytest.mark.parametrize(
    ("server", "client", "words"),
    [
        (ASLEEP, CLIENT, "the server was not ready within 1 s: "),
        (NO_HTTP, CLIENT, "the server was not ready within 1 s: "),
        ("raise SystemExit('no such model')", CLIENT, "exit code 1: no such model"),
        (SERVER, "raise SystemExit('no dataset')", "the client in the warm-up: .*: no dataset"),
    ],
    ids=["never ready", "speaks no HTTP", "ends at once", "client fails"],
)
def test_a_server_that_fails_is_a_sentence(made, server: str, client: str, words: str) -> None:
    seconds = 1 if "not ready" in words else 20
    with pytest.raises(CommitUnusable, match=words):
        made(server, client=client, ready_timeout_s=f"{seconds}").prepared()


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("starts", "the server: signal 9 ended it"),
        ("is ready", "the server(:| died in the warm-up:) signal 9 ended it"),
        ("warms up", "the server died in the warm-up: signal 9 ended it"),
        ("serves", "the server died in window 2: signal 9 ended it"),
        ("ends", ""),
        ("never dies", ""),
    ],
)
def test_a_server_that_is_killed_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, made, monkeypatch: pytest.MonkeyPatch, phase: str, words: str
) -> None:
    monkeypatch.setenv("ENDED", str(tmp_path / "ended"))
    orphan = own_seconds()
    server = SERVER.replace("never dies", phase, 1).replace('""', f'"{orphan}"')
    # The shell ends at once where it is asked to, and the server below it does not. The shell
    # outlives a server that dies by a little.
    line = "cd . && python bench.py $KVTRAIL_PORT; code=$?; sleep 0.3; exit $code"
    toy = made(server, start=f'"{line}"')
    if words:
        with pytest.raises(CommitUnusable, match=words):
            toy.prepared()
    else:
        assert toy.prepared() == {}
    assert (tmp_path / "ended").exists() == (phase == "never dies")
    assert not alive(orphan)


@contextmanager
def answering(code: int | None) -> Iterator[int]:
    """A port at which somebody listens, and answers everybody with this code, if with any."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code or 0)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        if code:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server.server_port
        finally:
            if code:
                server.shutdown()


@pytest.mark.parametrize(
    ("code", "ready", "words"),
    [
        (200, '"http://127.0.0.1:{}/health"', "0.1:{}/health answers already"),
        (404, '"http://localhost:{}"', "localhost:{} answers already"),
        (None, "{{ regex = 'loading' }}", "127.0.0.1:{} answers already"),
    ],
    ids=["answers", "lacks the page", "is asked nothing"],
)
def test_a_stranger_at_the_port_is_not_measured(
    made, code: int | None, ready: str, words: str
) -> None:
    with answering(code) as port:
        start = f'"python bench.py --port {port}"'
        with pytest.raises(CommitUnusable, match=words.format(port)):
            made(ASLEEP, ready=ready.format(port), start=start).prepared()


# The server has begun, and is ready only once the stranger listens.
WAITING = """
import pathlib, time
pathlib.Path("{place}/begun").touch()
while not pathlib.Path("{place}/listens").exists():
    time.sleep(0.01)
"""


def test_a_stranger_who_begins_to_listen_later_is_not_measured(made, tmp_path: Path) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]

        def listen() -> None:
            while not (tmp_path / "begun").exists():
                time.sleep(0.01)
            door.listen()
            (tmp_path / "listens").touch()

        threading.Thread(target=listen, daemon=True).start()
        server, start = WAITING.format(place=tmp_path), f'"python bench.py --port {port}"'
        with pytest.raises(CommitUnusable, match=f"127.0.0.1:{port} "):
            made(f"{server}{ASLEEP}", ready="{ regex = 'loading' }", start=start).prepared()


def test_no_proxy_is_asked_whether_a_server_is_ready(made, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with answering(200) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy}")
        with pytest.raises(CommitUnusable, match="not ready within 1 s"):
            made(ASLEEP, ready_timeout_s="1").prepared()
