"""A server that a client asks: windows, readiness, presets, and every way to die."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository, alive, own_seconds
from measured_rounds import one_life

from asv_bench.errors import Refused
from asv_bench.measure.samples import Absence, CommitUnusable, Reading
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.subject_file import SubjectFile

TABLES = """
    [subject]
    name = "toy"
    timeout_s = 20

    [server]
    start = "python bench.py $KVTRAIL_PORT"
    ready = "http://127.0.0.1:$KVTRAIL_PORT/health"
    ready_timeout_s = 20

    [client]
    run = "python client.py"
    warmup = 1
    windows = 3

    [metrics.tpot_ms]
    path = "tpot_ms"
    """
SERVER = """
    import http.server, json, random, sys

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            value = 5.0 * (1 + random.uniform(-0.001, 0.001))
            self.wfile.write(json.dumps({"tpot_ms": value}).encode())

        def log_message(self, *arguments):
            pass

    print("serving", flush=True)
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
    """
CLIENT = """
import os, urllib.request
answer = urllib.request.urlopen(f"http://127.0.0.1:{os.environ['KVTRAIL_PORT']}/").read()
open(os.environ["KVTRAIL_RESULT"], "wb").write(answer)
"""


def made_with(root: Path, tables: str, *servers: str, client: str = CLIENT) -> DeclaredRepository:
    made = DeclaredRepository.make(root, tables, *servers)
    (made.root / "client.py").write_text(client)
    text = made.root.joinpath("kvtrail.toml").read_text()
    pinned = text.replace("[subject]", '[subject]\npinned = ["client.py"]')
    made.root.joinpath("kvtrail.toml").write_text(pinned)
    return made


def prepared(made: DeclaredRepository) -> Mapping[str, Absence]:
    """What a commit lacks, after one life that is not measured."""
    subject = subject_of(made)
    with subject.pairs() as source:
        return source.prepare(subject.resolve("HEAD").hash)


def lived(made: DeclaredRepository, *metrics: str) -> Mapping[str, Reading]:
    """The figures of one life after the first, which is not measured."""
    subject = subject_of(made)
    subject.choose(metrics or ["tpot_ms"], None)
    with subject.pairs() as source:
        return one_life(source, subject.resolve("HEAD").hash)


def subject_of(made: DeclaredRepository) -> DeclaredSubject:
    return DeclaredSubject.of_file(SubjectFile.read(made.root / "kvtrail.toml"))


def test_the_windows_of_one_life_are_a_reading(tmp_path: Path) -> None:
    made = made_with(tmp_path / "toy", TABLES, SERVER)
    readings = lived(made, "tpot_ms", "ready_s", "peak_rss_bytes")
    assert len(readings["tpot_ms"].samples) == 3
    assert readings["tpot_ms"].value == sorted(readings["tpot_ms"].samples)[1]
    # More than a shell has.
    assert readings["peak_rss_bytes"].value > 8 * 2**20
    assert 0.01 < readings["ready_s"].value < 20


def test_a_server_may_say_that_it_is_ready(tmp_path: Path) -> None:
    said = "ready = { regex = '^serving$' }"
    tables = TABLES.replace('ready = "http://127.0.0.1:$KVTRAIL_PORT/health"', said)
    slow = "import urllib.request, time; time.sleep(0.3)" + CLIENT
    assert prepared(made_with(tmp_path / "toy", tables, SERVER, client=slow)) == {}


@pytest.mark.thorough
def test_a_wait_after_each_run_of_the_client_is_found(kvtrail, tmp_path: Path) -> None:
    made = made_with(tmp_path / "toy", TABLES, SERVER)
    trials = ("--null", "0", "--planted", "500", "--pairs", "6")
    said = kvtrail(made.toy, "calibrate", "--metric", "wall_s|peak_rss", *trials)
    assert said.code == 0, said.text
    [slow] = said.record["results"]["trials"]
    assert slow["verdict"] == "slower", said.text
    assert slow["effect"] == pytest.approx(slow["planted"], rel=0.3)
    assert slow["planted"] == pytest.approx(5, rel=0.5)


@pytest.mark.thorough
def test_servers_are_compared(kvtrail, tmp_path: Path) -> None:
    made = made_with(tmp_path / "toy", TABLES, SERVER, SERVER.replace("5.0", "5.4"))
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD")
    assert (said.code, said.verdicts) == (3, {"tpot_ms": "slower"}), said.text


LOADING = "import time; print('loading', flush=True); time.sleep(60)"


@pytest.mark.parametrize(
    ("server", "seconds", "client", "words"),
    [
        (LOADING, 1, CLIENT, "the server was not ready within 1 s: loading"),
        ("raise SystemExit('no such model')", 20, CLIENT, "exit code 1: no such model"),
        (
            *(SERVER, 20, "import sys; sys.exit('no dataset')"),
            "the client in the warm-up: it ended with exit code 1: no dataset",
        ),
    ],
    ids=["never ready", "ends at once", "client fails"],
)
def test_a_server_that_fails_is_a_sentence(
    tmp_path: Path, server: str, seconds: int, client: str, words: str
) -> None:
    tables = TABLES.replace("ready_timeout_s = 20", f"ready_timeout_s = {seconds}")
    with pytest.raises(CommitUnusable, match=words):
        prepared(made_with(tmp_path / "toy", tables, server, client=client))


# Answers, and leaves something behind that no session, parent or variable tells of.
DYING = """
    import http.server, os, signal, subprocess, sys, time

    subprocess.Popen(["sleep", "ORPHAN"], start_new_session=True, env={})
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
            self.wfile.write(b'{"tpot_ms": 5.0}')
            self.wfile.flush()
            if PHASE == "is ready":
                end()

        def log_message(self, *arguments):
            pass

    signal.signal(signal.SIGTERM, end)
    if PHASE == "starts":
        end()
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
    """


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, words: str
) -> None:
    ended = tmp_path / "ended"
    monkeypatch.setenv("ENDED", str(ended))
    # The shell ends at once where it is asked to, and the server below it does not. The shell
    # outlives a server that dies by a little.
    start = "python bench.py $KVTRAIL_PORT"
    tables = TABLES.replace(start, f"cd . && {start}; code=$?; sleep 0.3; exit $code")
    orphan = own_seconds()
    dying = DYING.replace("PHASE", repr(phase)).replace("ORPHAN", orphan)
    made = made_with(tmp_path / "toy", tables, dying)
    if words:
        with pytest.raises(CommitUnusable, match=words):
            lived(made)
    else:
        assert lived(made)["tpot_ms"].samples == (5.0, 5.0, 5.0)
    assert ended.exists() == (phase == "never dies")
    assert not alive(orphan)


@contextmanager
def listening(answer: bytes, port: int = 0, begun: Path | None = None) -> Iterator[int]:
    """Somebody who listens at a port, and gives everybody one answer; not before `begun` is there.

    A file "listens" beside `begun` says so.
    """
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(("127.0.0.1", port))

        def serve() -> None:
            while begun and not (begun.exists() or ended.is_set()):
                time.sleep(0.01)
            door.listen()
            if begun:
                begun.with_name("listens").touch()
            door.settimeout(0.05)
            while not ended.is_set():
                try:
                    asking, _ = door.accept()
                except TimeoutError:
                    continue
                with asking:
                    asking.recv(4096)
                    asking.sendall(answer)

        ended = threading.Event()
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield door.getsockname()[1]
        finally:
            ended.set()
            serving.join()


ANSWER = b"HTTP/1.0 200 OK\r\n\r\n{}"
ASLEEP = "import time; print('ready', flush=True); time.sleep(60)"
# The server has begun, and is ready only once the stranger listens.
WAITING = """
import pathlib, time
place = pathlib.Path({!r})
(place / "begun").touch()
while not (place / "listens").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("answer", "ready", "is_later", "words"),
    [
        (ANSWER, '"http://127.0.0.1:{}/health"', False, "0.1:{}/health answers already"),
        (ANSWER, '"http://localhost:{}/health"', True, "http://localhost:{}/health"),
        (b"HTTP/1.0 404 no\r\n\r\n", '"http://127.0.0.1:{}"', False, "0.1:{} answers already"),
        (b"", "{{ regex = 'ready' }}", False, "127.0.0.1:{} answers already"),
        (b"", "{{ regex = 'ready' }}", True, "127.0.0.1:{} "),
        (b"no HTTP\n", '"http://127.0.0.1:{}/health"', False, "was not ready within 2 s"),
    ],
    ids=["answers", "begins later", "lacks the page", "is asked nothing", "later", "no HTTP"],
)
def test_a_stranger_at_the_port_is_not_measured(
    tmp_path: Path, answer: bytes, ready: str, is_later: bool, words: str
) -> None:
    with listening(answer, begun=tmp_path / "begun" if is_later else None) as port:
        tables = TABLES.replace('"http://127.0.0.1:$KVTRAIL_PORT/health"', ready.format(port))
        tables = tables.replace("bench.py $KVTRAIL_PORT", f"bench.py --port {port}")
        if "within 2 s" in words:
            tables = tables.replace("ready_timeout_s = 20", "ready_timeout_s = 2")
        wait = WAITING.format(str(tmp_path)) if is_later else ""
        made = made_with(tmp_path / "toy", tables, wait + ASLEEP)
        with pytest.raises(CommitUnusable, match=words.format(port)):
            lived(made)


def test_no_proxy_is_asked_whether_a_server_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with listening(ANSWER) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy}")
        tables = TABLES.replace("ready_timeout_s = 20", "ready_timeout_s = 1")
        with pytest.raises(CommitUnusable, match="not ready within 1 s: ready"):
            lived(made_with(tmp_path / "toy", tables, ASLEEP))


@pytest.mark.parametrize(
    "ready",
    [
        *("http://127.0.0.1:$PORT/", "http://127.0.0.1:$KVTRAIL_PORTS/", "http://a:1/a b"),
        *("file:///etc/hostname", "ws://a:1/", "127.0.0.1:8000/health", "localhost:8000"),
        *("http://:80/", "http://a:0/", "http://a:99999/", "http://a:x/", "http://u:p@a:1/"),
        *("http:///a", "http://[::1/", "http://ü:1/", "http://a:1/\\n"),
    ],
)
def test_an_address_that_cannot_be_asked_is_refused(tmp_path: Path, ready: str) -> None:
    tables = TABLES.replace("http://127.0.0.1:$KVTRAIL_PORT/health", ready)
    with pytest.raises(Refused, match=r"kvtrail\.toml: .*, in server"):
        subject_of(made_with(tmp_path / "toy", tables, SERVER))
