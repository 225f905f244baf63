"""Memory by GPU, by rank and over windows, and how a server starts cold and warm."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace

import pytest
from declared_repository import DeclaredRepository
from fake_nvml import FakeNvml

from asv_bench.compare.tables import others_lines
from asv_bench.measure import processes

SERVED = """
    [subject]
    name = "toy"
    pinned = ["client.py"]

    [server]
    start = "python bench.py $KVTRAIL_PORT"
    ready = "http://127.0.0.1:$KVTRAIL_PORT/health"

    [client]
    run = "python client.py"
    windows = 5
    """
SERVER = """
    import http.server, os, sys, time
    marker, kept = f"{os.environ.get('TRITON_CACHE_DIR')}/compiled", []
    if not os.path.exists(marker):
        time.sleep(COMPILES)
        if COMPILES:
            os.makedirs(os.path.dirname(marker))
            open(marker, "w")
    # What loading takes and gives back hides no leak.
    loaded = b"+" * (64 << 20)
    del loaded

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            kept.append(b"+" * (LEAK if self.path == "/" else 0))
            self.send_response(200)
            self.end_headers()
        def log_message(self, *arguments):
            pass

    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
    """
CLIENT = """
import os, urllib.request
urllib.request.urlopen(f"http://127.0.0.1:{os.environ['KVTRAIL_PORT']}/").read()
"""


@pytest.fixture
def served(declared):
    """A server that leaks so many bytes a window, and compiles for so many seconds."""

    def make(leak: int = 0, compiles: float = 0) -> DeclaredRepository:
        text = SERVER.replace("LEAK", str(leak)).replace("COMPILES", str(compiles))
        made: DeclaredRepository = declared(SERVED, text)
        (made.root / "client.py").write_text(CLIENT)
        return made

    return make


def test_a_leak_of_a_server_is_a_slope_over_its_windows(served) -> None:
    lived = served(leak=2**20).lived("rss_growth_bytes", "peak_rss_bytes")
    assert lived["rss_growth_bytes"].value == pytest.approx(2**20, rel=0.1)
    assert lived["peak_rss_bytes"].value > 64 << 20


def test_memory_that_does_not_grow_has_a_figure_to_compare_with(served) -> None:
    assert served().lived("rss_growth_bytes")["rss_growth_bytes"].value < 2**17


def test_a_leak_is_said_where_nobody_asked() -> None:
    units = {"rss_growth_bytes": "bytes"}
    leak = {"rss_growth_bytes": {"a": [4096.0], "b": [2.0**20]}}
    [_, said] = others_lines(leak, ("a", "b"), units)
    assert "grows by 0.0 MiB in the base and by 1.0 MiB in the head" in said
    level = {"rss_growth_bytes": {"a": [4096.0], "b": [4096.0]}}
    assert len(others_lines(level, ("a", "b"), units)) == 1


def test_a_server_starts_cold_and_warm(served) -> None:
    lived = served(compiles=0.8).lived("ready_s@cold", "ready_s@warm")
    assert lived["ready_s@cold"].value - lived["ready_s@warm"].value > 0.4


def test_a_cold_start_is_measured_where_its_whole_name_is_given(served) -> None:
    subject = served().subject
    subject.choose_metrics(["ready_s"])
    assert [one.name for one in subject.metrics] == ["ready_s"]


def test_several_gpus_and_ranks_have_peaks_of_their_own(
    declared, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, used = FakeNvml(), (itertools.count(), itertools.count(step=5))
    fake.answers["MemoryInfo"] = lambda gpu: SimpleNamespace(total=2**30, used=next(used[gpu]))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(processes, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr("asv_bench.process.gpu.POLL_SECONDS", 0.01)
    bench = """
        import os, subprocess, sys, time
        if sys.argv[1:]:
            held = b"+" * (int(os.environ["RANK"]) * 32 << 20)
            time.sleep(1)
            raise SystemExit
        ranks = [{**os.environ, "RANK": str(rank)} for rank in range(2)]
        lives = [subprocess.Popen(["python", "bench.py", "+"], env=one) for one in ranks]
        [life.wait() for life in lives]
        """
    tables = '[subject]\nname = "toy"\nmeasure = "python bench.py"\ndevices = 2'
    lived = declared(tables, bench).lived("peak_gpu_bytes.*", "peak_rss_bytes@.*")
    gpus = [lived[f"peak_gpu_bytes{which}"].value for which in ("", "@0", "@1")]
    assert gpus[0] == gpus[1] < gpus[2]
    first, second = (lived[f"peak_rss_bytes@rank{rank}"].value for rank in range(2))
    assert 2**20 < first < 32 << 20 < second
