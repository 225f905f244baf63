"""The bare process of a host, as an engine starts and asks it."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import undisturbed
from declared_repository import DeclaredRepository

from asv_bench.compare.kept_pairs import RULER
from asv_bench.fleet import host
from asv_bench.fleet.host import Answer, HostFacts, disturbances
from asv_bench.fleet.host_process import HostProcess, bare_environment
from asv_bench.fleet.order import Order, tar_of
from asv_bench.process.gpu import GpuUse
from asv_bench.process.samples import CommitUnusable
from asv_bench.process.surroundings import Surroundings
from asv_bench.subjects.choose import declared_by
from asv_bench.subjects.lives import Place

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
test -z "$RAY_JOB_ID$OMP_NUM_THREADS" || exit 1
read figure < "$KVTRAIL_OUT/figure"
if [ "$figure" = sleepy ]; then echo $$ > "$LOG.pid"; exec sleep 1000; fi
printf '{"step": %s}' "$figure" > "$KVTRAIL_RESULT"
"""
Ask = Callable[..., Answer]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeclaredRepository:
    """Two commits, of figures 5 and 6, and one whose lives do not end."""
    for name in ("cache", "scratch"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", str(undisturbed.FOLDER))
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    made = DeclaredRepository.make(tmp_path / "toy", TABLES, "5\n", "6\n", "sleepy\n", "exit")
    (made.root / "pinned").mkdir()
    (made.root / "pinned" / "life.sh").write_text(LIFE)
    return made


@pytest.fixture
def process(toy: DeclaredRepository) -> Iterator[HostProcess]:
    order = Order.of(declared_by(toy.root / "kvtrail.toml"), commits(toy))
    begin = pickle.dumps((2, "here", undisturbed.undisturbed))
    ruler = tar_of(RULER.parent, [RULER.name])
    made = HostProcess(ruler, pickle.dumps(order), begin, {"OMP_NUM_THREADS": None})
    yield made
    made.end()


def commits(toy: DeclaredRepository) -> list[str]:
    return toy.toy.git("rev-list", "--reverse", "HEAD").split()


def runs(pid: str) -> bool:
    """Whether a process is there, and not only its exit code."""
    stat = Path("/proc", pid, "stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def ask(process: HostProcess, method: str, slot: int, *arguments: Any) -> Answer:
    """What a host answers."""
    answer: Answer = pickle.loads(process.ask(pickle.dumps((method, (slot, False, *arguments)))))
    return answer


def test_it_measures_in_all_slots_with_files_of_its_own(
    process: HostProcess, toy: DeclaredRepository, tmp_path: Path
) -> None:
    facts: HostFacts = pickle.loads(process.facts())
    assert facts.refusal == ""
    assert facts.machine.cores == os.cpu_count()
    five, six, _, lacking = commits(toy)
    with ThreadPoolExecutor(2) as pool:
        pairs = list(
            pool.map(lambda slot: ask(process, "pair", slot, five, six, bool(slot), None), (0, 1))
        )
    for slot, answer in enumerate(pairs):
        assert answer.error is None
        pair = answer.value["step"]
        assert (pair.base.value, pair.head.value, pair.head_first) == (5.0, 6.0, bool(slot))
        assert {pair.base.device, pair.head.device} == {f"here/{slot}"}
    # Both slots asked at once, and a commit is set up once on a machine.
    assert (tmp_path / "log").read_text() == "x\n" * 2
    assert set().union(*(answer.cells for answer in pairs)) == {five, six}
    assert {name for answer in pairs for name in answer.others} == {"wall_s", "peak_rss_bytes"}
    failed = ask(process, "life", 0, lacking, None)
    assert isinstance(failed.error, CommitUnusable)
    assert failed.error.commit == lacking
    # What is no request at all is answered too.
    assert "no-such" in str(ask(process, "life", 0, "no-such", None).error)


def test_what_it_started_ends_with_it(
    process: HostProcess, toy: DeclaredRepository, tmp_path: Path
) -> None:
    came: list[BaseException | Answer] = []

    def wait() -> None:
        try:
            came.append(ask(process, "life", 0, commits(toy)[2], None))
        except RuntimeError as error:
            came.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    noted = tmp_path / "log.pid"
    while not (noted.exists() and noted.read_text().strip()):
        time.sleep(0.02)
    process.end()
    thread.join()
    assert len(came) == 1
    assert not runs(noted.read_text().strip())
    assert list((tmp_path / "scratch").iterdir()) == []
    with pytest.raises(RuntimeError, match="its process has ended"):
        ask(process, "life", 0, commits(toy)[0], None)


def seen(busy_cores: float, gpu_percent: int = 0) -> Surroundings:
    gpus = (GpuUse("GPU-a", processes=(), busy_percent=gpu_percent),)
    return Surroundings(16, busy_cores, 1.0, ("powersave",), gpus)


def test_a_place_is_disturbed_by_what_lasts_and_is_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place(("GPU-a",), (0, 1), "here/0")
    looks: list[Surroundings] = []
    monkeypatch.setattr(host, "look_around", lambda devices: looks.pop(0))
    monkeypatch.setattr(host, "PAUSE_SECONDS", 0.0)
    # The GPU was busy with the life before.
    looks += [seen(0.0, gpu_percent=90), seen(0.0)]
    assert disturbances(place, lambda: True) == []
    looks += [seen(9.0)] * host.LOOKS
    [sentence] = disturbances(place, lambda: True)
    assert "9.0 of 16 cores" in sentence
    # Another slot's life is ours, also one that begins or ends while the host is looked at.
    looks += [seen(9.0)]
    assert disturbances(place, lambda: bool(looks)) == []
    looks += [seen(9.0)]
    assert disturbances(place, lambda: not looks) == []
    looks += [seen(0.0, gpu_percent=90)] * host.LOOKS
    [sentence] = disturbances(place, lambda: False)
    assert "GPU-a is busy 90 %" in sentence
    assert looks == []


def test_only_what_the_engine_adds_is_taken_out_of_the_environment() -> None:
    variables = {"RAY_X": "1", "PATH": "/bin", "OMP_NUM_THREADS": "1", "B": "ray.util.rpdb.x"}
    assert bare_environment(variables, {"OMP_NUM_THREADS": None}) == {"PATH": "/bin"}
    assert bare_environment(variables, {"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"
