"""Pairs on disk: what was measured is not measured again, and nothing else is taken for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from simulated_pairs import FIRST_LOOK, ScriptedPairs

from asv_bench.bisect.finding import Outcome
from asv_bench.bisect.search import Search
from asv_bench.measure import log
from asv_bench.measure.log import Log, Logged
from asv_bench.measure.samples import Absence, CommitUnusable, GpuConditions, Pair, Reading
from tests.simulations.commits import SIMULATED, SimulatedCommits
from tests.simulations.noise import Noise

ROOT = Path(__file__).resolve().parents[3]


def machine(seed: int = 0) -> SimulatedCommits:
    return SimulatedCommits({"a": 0.0, "b": 0.1, "c": 0.2}, Noise(), seed)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where pairs are kept."""
    return tmp_path / "state" / "x.jsonl"


def test_a_pair_is_the_same_after_it_was_written() -> None:
    gpu = GpuConditions(1980.0, 1965.0, 1980.0, ("gpu_idle",), 41, 12)
    base = Reading("a" * 40, "x", 0.5, (0.4, 0.5, 0.6), "GPU-1", 12.5, 3.25, gpu)
    head = Reading("b" * 40, "x", 0.75, (0.75,), "cpu", 13.5, 3.0)
    pair = Pair(base, head, head_first=True, discarded="the clock moved")
    assert msgspec.convert(json.loads(json.dumps(pair.to_json())), Pair) == pair


def test_pairs_come_in_order_and_only_to_their_part_and_commits(path: Path) -> None:
    source = Logged(machine(), Log(path), "gate")
    measured = [source.round(["a", "b"]) for _ in range(3)]
    again, kept = machine(1), Log(path)
    assert (kept.restored, kept.finished) == (3, False)
    gate = Logged(again, kept, "gate")
    # All that was measured together is told, whichever metric is asked for.
    metrics = [None, None, list(measured[2].readings[0])[:1]]
    assert [gate.round(["a", "b"], metrics=names) for names in metrics] == measured
    assert again.measured["simulated"] == 0
    for part, head in (("gate", "b"), ("gate", "c"), ("search", "b")):
        fresh = Logged(again, kept, part).round(["a", head])
        assert fresh not in measured
    assert again.measured["simulated"] == 3
    kept.finish()
    assert Log(path).finished


def test_what_a_commit_lacks_is_kept_and_an_unusable_one_not_tried_again(path: Path) -> None:
    lacking = {"b": {"gone": Absence("it is not there", has_failed=False)}}
    first, again = (ScriptedPairs(lambda *_: 1.0, absent=absent) for absent in (lacking, {}))
    for source in (first, again):
        assert Logged(source, Log(path), "pairs").prepare("b") == lacking["b"]
    assert not again.prepared
    with pytest.raises(CommitUnusable):
        Logged(machine(), Log(path), "search").round(["a", "gone"])
    able = SimulatedCommits({"a": 0.0, "gone": 0.0}, Noise(), 0)
    with pytest.raises(CommitUnusable, match="no time for it"):
        Logged(able, Log(path), "search").round(["a", "gone"])
    assert able.measured["simulated"] == 0


def test_a_line_that_was_cut_off_is_dropped_and_the_next_one_is_whole(path: Path) -> None:
    source = Logged(machine(), Log(path), "gate")
    for _ in range(2):
        source.round(["a", "b"])
    path.write_bytes(path.read_bytes()[:-40])
    kept = Log(path)
    assert kept.restored == 1
    Logged(machine(), kept, "search").round(["a", "b"])
    # And one of anything else is left out with a sentence.
    odd = ['{"settings": {"good": "z"}}', "no JSON", "[]", "3", ""]
    path.write_text("\n".join([*odd, path.read_text()]))
    kept = Log(path)
    assert kept.restored == 2
    numbers = [sentence.partition(" of ")[0] for sentence in kept.complaints]
    assert numbers == [f"line {number}" for number in range(1, 6)]


def test_the_oldest_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "FOLDER", tmp_path)
    monkeypatch.setattr(log, "_KEPT_FILES", 2)
    for number in range(4):
        kept = Log.of_settings({"number": number}, "compare")
        Logged(machine(), kept, "pairs").round(["a", "b"])
        os.utime(kept.path, (number, number))
    # Removed before the last was written: two older ones are left.
    assert len(list(tmp_path.iterdir())) == 3
    assert kept.path.is_file()


KILLED = """
import sys
from pathlib import Path
from tests.asv_bench.measure.test_log import SlowPairs, bisect
bisect(Path(sys.argv[1]), SlowPairs(0.02))
"""


class SlowPairs(SimulatedCommits):
    """40 commits, of which the 23rd is 4 % slower; a pair takes its time."""

    def __init__(self, seconds: float) -> None:
        slow = {f"c{number}": 0.04 * (number >= 23) for number in range(40)}
        super().__init__({"good": 0.0} | slow, Noise(), 3)
        self.seconds = seconds

    def pair(self, base: str, head: str, **options):
        time.sleep(self.seconds)
        return super().pair(base, head, **options)


def bisect(path: Path, source: SimulatedCommits):
    kept, commits = Log(path), [f"c{number}" for number in range(40)]
    return Search(lambda part: Logged(source, kept, part), "good", commits, SIMULATED).run()


def test_a_killed_search_goes_on_with_the_pairs_it_had(path: Path) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], cwd=ROOT, env=env)
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_text().count('"part":"search"') < 5:
        assert process.poll() is None, "the search ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()

    kept = Log(path).restored
    source = SlowPairs(0.0)
    finding = bisect(path, source)
    assert (finding.outcome, finding.suspects) == (Outcome.FOUND, ("c23",))
    assert kept >= FIRST_LOOK + 5
    assert source.measured["simulated"] == Log(path).restored - kept > 0
    replayed = SlowPairs(0.0)
    assert bisect(path, replayed) == finding
    assert replayed.measured["simulated"] == 0
