"""Servers at their price: points of load, servers that are there already, several pairs a start."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository

from asv_bench.errors import Refused
from asv_bench.measure.samples import CommitUnusable

SUBJECT = """
    [subject]
    name = "toy"
    pinned = ["client.py"]

    [metrics.ttft_ms]
    path = "ttft_ms"
    """
STARTED = f"""{SUBJECT}
    [server]
    start = "python bench.py $KVTRAIL_PORT"
    ready = "http://127.0.0.1:$KVTRAIL_PORT/"
    """
CLIENT = """
    [client]
    run = "python client.py $KVTRAIL_POINT"
    warmup = 0
    windows = 2
    points = {{ {points} }}
    """
# Each start is noted, and so is each question.
SERVER = """
    import http.server, os, random, sys
    with open(os.environ["STARTS"], "a") as file:
        file.write(os.environ["KVTRAIL_LABEL"] + " ")
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(str(VALUE * random.uniform(0.999, 1.001)).encode())
        def log_message(self, *arguments):
            pass
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
    """
ASKS = """
import json, os, sys, urllib.request
address = os.environ.get("KVTRAIL_URL", f"http://127.0.0.1:{os.environ['KVTRAIL_PORT']}/")
answer = float(urllib.request.urlopen(address).read())
with open(os.environ["STARTS"], "a") as file:
    file.write("asked ")
load = int(sys.argv[2]) if sys.argv[2:] else 1
json.dump({"ttft_ms": answer * load}, open(os.environ["KVTRAIL_RESULT"], "w"))
"""
PLAIN = CLIENT.replace(" $KVTRAIL_POINT", "").replace("points = {{ {points} }}", "").format()


@pytest.fixture
def made(declared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A repository of servers with these tables, whose starts and questions are noted."""
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))

    def make(tables: str, *values: float) -> DeclaredRepository:
        servers = [SERVER.replace("VALUE", str(value)) for value in values]
        toy: DeclaredRepository = declared(tables, *servers)
        (toy.root / "client.py").write_text(ASKS)
        return toy

    return make


def test_a_life_asks_at_points_of_load_in_turn(made) -> None:
    points = 'c1 = "--load 1", c64 = "--load 64"'
    toy = made(STARTED + CLIENT.format(points=points), 5.0)
    names = [one.name for one in toy.subject.known]
    assert names[:4] == ["ttft_ms@c1", "ttft_ms@c64", "wall_s@c1", "wall_s@c64"]
    assert {"cpu_s@c1", "cpu_s@c64", "peak_rss_bytes"} < {*names}
    lived = toy.lived()
    assert [len(one.samples) for one in lived.values()] == [2, 2]
    assert lived["ttft_ms@c1"].value == pytest.approx(5.0, rel=0.01)
    assert lived["ttft_ms@c64"].value == pytest.approx(320.0, rel=0.01)


def test_without_metrics_the_wall_time_at_all_points_is_compared(made) -> None:
    client = CLIENT.format(points='a = "--x 1", b = "--x 2"')
    before, _, metrics = STARTED.partition("[metrics.ttft_ms]")
    toy = made(f"{before}[server]{metrics.partition('[server]')[2]}{client}", 5.0)
    assert [one.name for one in toy.subject.metrics] == ["wall_s@a", "wall_s@b"]


def test_a_failure_names_its_point(made) -> None:
    points = 'c1 = "--load 1", c64 = "--load many"'
    with pytest.raises(CommitUnusable, match=r"the client in window 1 at c64: (?s:.*)'many'"):
        made(STARTED + CLIENT.format(points=points), 5.0).prepared()


@pytest.fixture
def servers() -> Iterator[tuple[int, int]]:
    """The ports of two servers that are there already, the second of which is slower."""

    def served(value: float) -> ThreadingHTTPServer:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(404 if self.path == "/missing" else 200)
                self.end_headers()
                self.wfile.write(str(value).encode())

            def log_message(self, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    both = served(5.0), served(6.0)
    yield both[0].server_port, both[1].server_port
    for server in both:
        server.shutdown()
        server.server_close()


def at_url(ports: tuple[int, int], more: str = "", path: str = "/") -> str:
    labels = json.dumps([str(port) for port in ports])
    return f"""{SUBJECT}
    [server]
    url = "http://127.0.0.1:$KVTRAIL_LABEL{path}"
    {more}
    {PLAIN}
    [axis]
    kind = "labels"
    labels = {labels}
    """


def test_a_server_that_is_there_already_is_asked_where_it_is(kvtrail, made, servers) -> None:
    old, new = map(str, servers)
    said = kvtrail(made(at_url(servers), 5.0), "compare", old, new)
    assert (said.code, said.verdicts) == (3, {"ttft_ms": "slower"}), said.text
    assert said.answers["ttft_ms"]["effect"] == pytest.approx(0.2, abs=0.01)
    # Nothing was started, so nothing is known of its processes.
    assert set(said.record["results"]["others"]) == {"wall_s"}
    assert "ttft_ms of `http://127.0.0.1:$KVTRAIL_LABEL/`" in said.text


def test_a_server_that_is_there_already_may_have_an_address_that_says_it_is_ready(
    made, servers
) -> None:
    ready = 'ready = "http://127.0.0.1:$KVTRAIL_LABEL/missing"\n    ready_timeout_s = 0.2'
    with pytest.raises(CommitUnusable, match=r"missing was not ready within 0\.2 s"):
        made(at_url(servers, ready), 5.0).prepared(str(servers[0]))


def test_a_server_that_answers_anything_is_there(made, servers) -> None:
    toy = made(at_url(servers, 'ready = "http://127.0.0.1:$KVTRAIL_LABEL/"'), 5.0)
    assert toy.prepared(str(servers[0])) == {}


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ('url = "http://x"\nstart = "y"', "either start or url"),
        ("ready_timeout_s = 3", "either start or url"),
        ('start = "y"', "needs ready"),
        ('url = "http://x"\npairs_per_start = 2', "is not started"),
        ('url = "http://x"\nready = { regex = "y" }', "is not started"),
        ('url = "http://x:$KVTRAIL_PORT"', "nothing but \\$KVTRAIL_LABEL is replaced"),
        ('url = "x:80"', "url is 'x:80'; give http"),
        ('url = "http://x"\n[client]\nrun = "x"\npoints = { a = "1" }', "points need a run that"),
        ('url = "http://x"\n[client]\nrun = "x $KVTRAIL_POINT"', "there are no points"),
    ],
)
def test_servers_that_cannot_be_are_refused(declared, server: str, words: str) -> None:
    client = "" if "[client]" in server else '\n[client]\nrun = "true"'
    tables = f'[subject]\nname = "toy"\n[server]\n{server}{client}'
    with pytest.raises(Refused, match=words):
        declared(tables, "").subject  # noqa: B018


@pytest.mark.thorough
def test_servers_live_through_several_pairs(kvtrail, made, tmp_path: Path) -> None:
    toy = made(f"{STARTED}pairs_per_start = 3\n{PLAIN}", 5.0, 5.5)
    said = kvtrail(toy, "compare", "HEAD~1", "HEAD")
    assert (said.code, said.verdicts) == (3, {"ttft_ms": "slower"}), said.text
    answer = said.answers["ttft_ms"]
    assert (answer["pairs_used"], answer["starts_used"]) == (18, 6)
    assert "18, 6 starts" in said.text
    assert "3 pairs from each start of the servers" in said.text
    # One start of each commit to try it, and six to measure.
    noted = (tmp_path / "starts").read_text().split()
    assert len([word for word in noted if word != "asked"]) == 2 + 2 * 6
    # Both servers were there before either was asked, two windows at a time.
    base, head = (toy.git("rev-parse", name) for name in ("HEAD~1", "HEAD"))
    text = " ".join(noted[-2 - 2 * 3 * 2 :])
    assert sorted(text.split()[:2]) == sorted((base, head))
    assert text.split()[2:] == ["asked"] * 12
    samples = said.record["samples"]
    assert {len(one[end]["samples"]) for one in samples for end in ("base", "head")} == {6}
