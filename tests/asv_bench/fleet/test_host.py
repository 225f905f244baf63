"""A host of a fleet, without the cluster that starts and asks it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository

from asv_bench.fleet import host
from asv_bench.fleet.host import Host, Order, Told, disturbances
from asv_bench.measure.lives import Place
from asv_bench.measure.log import RULER
from asv_bench.measure.samples import CommitUnusable
from asv_bench.process.gpu import GpuUse
from asv_bench.process.machine import Surroundings
from asv_bench.subjects.choose import declared_by

TABLES = """
[subject]
name = "toy"
measure = "sh pinned/life.sh"
pinned = ["pinned"]
setup = "cp bench.py $KVTRAIL_OUT/figure; echo x >> $LOG"

[metrics.step]
path = "step"
"""
LIFE = """
case "$RAY_JOB_ID$PYTHONPATH" in /own) ;; *) exit 1;; esac
read figure < "$KVTRAIL_OUT/figure"
if [ "$figure" = sleepy ]; then echo $$ > "$LOG.pid"; exec sleep 1000; fi
printf '{"step": %s}' "$figure" > "$KVTRAIL_RESULT"
"""
ALONE = """
import pickle, sys
from asv_bench.fleet.host import Host
order, commit = pickle.load(sys.stdin.buffer)
host = Host()
host.begin(order, 1, "here", None)
host.measure("round", 0, False, [commit])
"""


@pytest.fixture
def ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Order, list[str]]:
    """What a host is told, as it is carried there, and commits: of figures 5 and 6, one whose lives
    do not end, and one that cannot be measured."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("asv_bench.measure.trees.CACHE", tmp_path / "cache")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    # As Ray sets them; what is the user's own stays.
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.setenv("PYTHONPATH", f"{RULER.parent}:/own")
    toy = DeclaredRepository.make(tmp_path / "toy", TABLES, "5\n", "6\n", "sleepy\n", "exit")
    (toy.root / "pinned").mkdir()
    (toy.root / "pinned" / "life.sh").write_text(LIFE)
    commits = toy.toy.git("rev-list", "--reverse", "HEAD").split()
    order = Order.of(declared_by(toy.root / "kvtrail.toml"), commits)
    return pickle.loads(pickle.dumps(order)), commits


def runs(pid: str) -> bool:
    """Whether a process is there, and not only its exit code."""
    stat = Path("/proc", pid, "stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_it_measures_in_all_slots_with_files_of_its_own(
    ordered: tuple[Order, list[str]], tmp_path: Path
) -> None:
    order, (five, six, _, lacking) = ordered
    made = Host()
    assert made.begin(order, 2, "here", lambda *_: ()).cores == os.cpu_count()

    def pair_in(slot: int) -> Told:
        return made.measure("round", slot, True, [five, six], (slot, 1 - slot))

    with ThreadPoolExecutor(2) as pool:
        pairs = list(pool.map(pair_in, (0, 1)))
    for slot, one in enumerate(pairs):
        assert one.error is None
        base, head = (of_cell["step"] for of_cell in one.value.readings)
        assert (base.value, head.value, one.value.order) == (5.0, 6.0, (slot, 1 - slot))
        assert {base.device, head.device} == {f"here/{slot}"}
    # Both slots asked at once, and a commit is set up once on a machine.
    assert (tmp_path / "log").read_text() == "x\n" * 2
    assert set().union(*(one.cells for one in pairs)) == {five, six}
    assert {name for one in pairs for name in one.others} == {"wall_s", "peak_rss_bytes"}
    failed = pickle.loads(pickle.dumps(made.measure("round", 0, False, [lacking]).error))
    assert isinstance(failed, CommitUnusable)
    assert failed.commit == lacking


def test_what_it_started_ends_with_it_however_it_ends(
    ordered: tuple[Order, list[str]], tmp_path: Path
) -> None:
    order, commits = ordered
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    alone, noted = [sys.executable, "-c", ALONE], tmp_path / "log.pid"
    deadline = time.monotonic() + 60
    with subprocess.Popen(alone, stdin=subprocess.PIPE, env=os.environ | own) as process:
        assert process.stdin is not None
        process.stdin.write(pickle.dumps((order, commits[2])))
        process.stdin.close()
        while not (noted.exists() and noted.read_text().endswith("\n")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        life = noted.read_text().strip()
        assert runs(life)
        process.kill()
    while runs(life) or list((tmp_path / "scratch").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("looks", "alone", "found"),
    [
        # The GPU was busy with the life before.
        ([(0.0, 90), (0.0, 0)], [True] * 4, ""),
        ([(9.0, 0)] * host.LOOKS, [True] * 6, "9.0 of 16 cores"),
        # Another slot's life is ours, also one that begins or ends while the host is looked at.
        ([(9.0, 0)], [True, False], ""),
        ([(9.0, 0)], [False], ""),
        ([(0.0, 90)] * host.LOOKS, [False] * 3, "GPU-a is busy 90 %"),
    ],
)
def test_a_place_is_disturbed_by_what_lasts_and_is_not_ours(
    looks: list[tuple[float, int]], alone: list[bool], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(devices: object) -> Surroundings:
        busy_cores, gpu_percent = looks.pop(0)
        gpus = (GpuUse("GPU-a", processes=(), busy_percent=gpu_percent),)
        return Surroundings(16, busy_cores, 1.0, ("powersave",), gpus)

    monkeypatch.setattr(host, "look_around", seen)
    monkeypatch.setattr(host, "PAUSE_SECONDS", 0.0)
    sentences = disturbances(Place(("GPU-a",), (0, 1), "here/0"), lambda: alone.pop(0))
    assert len(sentences) == bool(found)
    assert found in "".join(sentences)
    assert looks == alone == []
