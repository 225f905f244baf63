"""Lives and pairs on the hosts of a fleet: a Ray cluster of several nodes on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, combinations
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from asv_bench.errors import Interrupted, Refused
from asv_bench.fleet import fleet
from asv_bench.history.asv_results import read_results
from asv_bench.measure.log import RULER
from asv_bench.measure.places import Place

ray = pytest.importorskip("ray", reason="fleets need Ray, which is not installed")

pytestmark = pytest.mark.thorough
SMALL: dict[str, Any] = {"object_store_memory": 80 << 20}
KIND, OTHER_KIND = "own-a", "own-b"
ROUNDS = 3
TABLES = """
[subject]
name = "toy"
measure = "sh bench.py"
cores = 1

[metrics.step_ms]
path = "step"
unit = "ms"
"""


def bench(step: float, more: str = "") -> str:
    """A life that leaves one figure, whose last digit is another in each process."""
    return f"""
        {more}
        printf '{{"step": {step:.3f}%d}}' $(($$ % 10)) > "$KVTRAIL_RESULT"
        """


class Cluster:
    """Nodes on this machine, each of one core: four of one kind, and one of another."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        head = {**SMALL, "num_cpus": 0, "include_dashboard": False}
        self.ray = RayCluster(initialize_head=True, head_node_args=head)
        self.address: str = self.ray.address
        kinds = [{"KVTRAIL_MACHINE": kind} for kind in (OTHER_KIND, *[KIND] * 4)]
        self._nodes = [
            self.ray.add_node(wait=False, num_cpus=1, env_vars=kind, **SMALL) for kind in kinds
        ]
        self.ray.wait_for_nodes()

    def lose_one(self) -> None:
        """As a machine that loses its power."""
        self.ray.remove_node(self._nodes.pop(), allow_graceful=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        made = Cluster()
        yield made
        made.ray.shutdown()


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts find themselves undisturbed, whatever else this machine does."""
    monkeypatch.setattr(fleet, "disturbances", lambda place, is_alone: [])
    monkeypatch.setattr("asv_bench.measure.log.FOLDER", tmp_path / "work" / "lives")
    monkeypatch.setattr("asv_bench.cli.report.publish", lambda *_: None)


def after(lives: int, log: Path, action: Callable[[], None]) -> threading.Thread:
    """Do something as soon as more lives began, in a thread."""

    def wait() -> None:
        while log.stat().st_size <= lives:
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def readings_in(samples: Any) -> Iterator[dict[str, Any]]:
    """All readings somewhere in a record's samples."""
    if isinstance(samples, dict) and "started_at" in samples:
        yield samples
    elif isinstance(samples, dict | list):
        for one in samples.values() if isinstance(samples, dict) else samples:
            yield from readings_in(one)


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two readings were made at the same time."""
    first, second = sorted((one, other), key=itemgetter("started_at"))
    return bool(second["started_at"] < first["started_at"] + first["process_s"])


def test_kinds_have_series_of_their_own_though_the_command_is_interrupted_and_a_host_lost(
    kvtrail, cluster: Cluster, declared, tmp_path: Path
) -> None:
    log, kept = tmp_path / "log", tmp_path / "kept"
    log.touch()
    benches = [bench(5 + number % 7, f"printf x >> {log}") for number in range(11)]
    toy = declared(TABLES, *benches)
    arguments = ("history", "HEAD~10..HEAD", "--fleet", cluster.address, "--results", str(kept))
    interrupting = after(20, log, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted, match="The same command goes on with them"):
        kvtrail(toy, *arguments)
    interrupting.join()
    # What was measured is kept to go on with, and nothing is filed that would be filed again.
    assert not list(kept.glob("asv/*/*-*.json"))
    losing = after(log.stat().st_size, log, cluster.lose_one)
    said = kvtrail(toy, *arguments)
    losing.join()
    assert said.code == 0, said.text
    assert "going on with" in said.text
    hosts = said.record["results"]["hosts"]
    [lost] = [name for name, host in hosts.items() if host["taken_out"]]
    assert f"{lost} is taken out of the fleet, as it is lost" in said.text
    assert "on GPU" not in said.text
    stored = read_results(kept / "asv").figures
    figures = {(figure.machine, figure.commit): figure for figure in stored}
    commits = toy.git("rev-list", "--reverse", "HEAD~10..HEAD").split()
    assert figures.keys() == {(kind, commit) for kind in (KIND, OTHER_KIND) for commit in commits}
    for (_, commit), figure in figures.items():
        assert len(figure.samples) == ROUNDS
        expected = 5 + (1 + commits.index(commit)) % 7
        assert figure.median == pytest.approx(expected, abs=0.01)
    with pytest.raises(Refused, match=r"several kinds.*--kind"):
        kvtrail(toy, "compare", "HEAD~1", "HEAD", "--fleet", cluster.address)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (("compare", "HEAD~1", "HEAD~2"), "slower"),
        (("fixed", "HEAD~3", "HEAD~2", "HEAD"), "wholly fixed"),
        (("swap", "HEAD~3", "HEAD", "old", "new"), "step_ms: the change belongs to the labels"),
        (("bisect", "HEAD~15", "HEAD~2"), "first slower commit: "),
    ],
)
def test_questions_are_measured_on_several_hosts_at_once_but_on_no_disturbed_one(
    kvtrail,
    cluster: Cluster,
    declared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    question: tuple[str, ...],
    answer: str,
) -> None:
    """Steps of 5, but of the third commit from the end, and under the label "new"."""
    first = tmp_path / "first"

    def look(place: Place, is_alone: object) -> list[str]:
        """The first host that looks is disturbed."""
        with suppress(FileExistsError):
            first.symlink_to(place.device)
        return ["other load"] * (os.readlink(first) == place.device)

    monkeypatch.setattr(fleet, "disturbances", look)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    labelled = f'{TABLES}\n[axis]\nlabels = ["old", "new"]\n'
    benches = [
        f"""
        step={6 if number == 13 else 5}  # commit {number}
        if [ "$KVTRAIL_LABEL" = new ]; then step=6; fi
        printf '{{"step": %s.00%d}}' $step $(($$ % 10)) > "$KVTRAIL_RESULT"
        """
        for number in range(16)
    ]
    axis = () if question[0] == "swap" else ("--axis", "commits")
    where = ("--margin", "5", "--fleet", "auto", "--kind", KIND)
    said = kvtrail(declared(labelled, *benches), *question, *axis, *where)
    assert answer in said.text
    lost = os.readlink(first)
    assert f"{lost[:-2]} is taken out of the fleet, as it is disturbed: other load" in said.text
    assert said.record["warnings"]
    hosts = {f"{name}/0" for name in said.record["results"]["hosts"]}
    rounds = [list(readings_in(one)) for one in said.record["samples"]]
    for lives in rounds:
        assert {one["device"] for one in lives} < hosts - {lost}
        assert len({one["device"] for one in lives}) == 1
    lives = list(chain.from_iterable(rounds))
    assert any(a["device"] != b["device"] and overlap(a, b) for a, b in combinations(lives, 2))


def test_lives_see_the_users_environment_and_end_though_the_command_was_killed(
    cluster: Cluster, declared, tmp_path: Path
) -> None:
    noted = tmp_path / "noted"
    sleepy = f'env > {noted}.env; echo "$$ $KVTRAIL_TREE" > {noted}; exec sleep 1000'
    toy = declared(TABLES, sleepy, "exit 1")
    command = [sys.executable, "-m", "asv_bench", "compare", "HEAD~1", "HEAD"]
    command += ["--fleet", cluster.address, "--kind", KIND]
    users = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    users |= {"PYTHONPATH": str(RULER.parent)}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=toy.root, env=users, **silent) as process:
        deadline = time.monotonic() + 120
        while not (noted.exists() and noted.read_text().endswith("\n")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
    life, tree = noted.read_text().split()
    while Path(tree).exists() or Path("/proc", life, "cmdline").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    seen = Path(f"{noted}.env").read_text()
    assert f"KVTRAIL_MACHINE={KIND}\n" in seen
    assert not re.search("^(RAY_|OMP_NUM_THREADS=)|runtime_resources", seen, re.MULTILINE)


def test_rounds_of_peers_stay_on_one_host_each_and_are_spread_over_all(
    kvtrail, cluster: Cluster, declared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that are scripts."""
    engine = tmp_path / "python"
    windows = {name: ["STEP"] for name in ("step_ms", "tokens_per_s", "ttft_ms", "tpot_ms")}
    told: dict[str, Any] = {"settings": "", "chosen": {}, "versions": {}, "failed": {}}
    told |= {"startup_s": "STEP", "figures": {"single-quick": windows}}
    told |= {"tokens": {"single-quick": [[1]]}}
    engine.write_text(
        f"""#!/bin/sh
        [ "$1" = -P ] && exit 0
        sleep 0.2
        case $KVTRAIL_LABEL in */torch) step=2.5;; *) step=1.25;; esac
        file="$PEERS_FOLDER/$KVTRAIL_LABEL"
        echo '{json.dumps(told)}' | sed "s/\\"STEP\\"/$step/g" > "$file-$$"
        mv "$file-$$" "$file-$step.json"
        echo "{{\\"startup_s\\": $step}}" > "$KVTRAIL_RESULT"
        """
    )
    engine.chmod(0o755)
    toy = declared(TABLES, bench(5))
    monkeypatch.setattr("asv_bench.peers.contest.REPOSITORY", toy.root)
    on_disk = {"dtype": "", "floors_ms": {"single-quick": None}}
    monkeypatch.setattr("asv_bench.peers.contest.apart", lambda *_, **__: on_disk)
    monkeypatch.setattr("asv_bench.peers.contest.Contest.compare_tokens", lambda _: [])
    arguments = ["peers", "--fleet", cluster.address, "--kind", KIND, "--rounds", "12", "--quick"]
    arguments += ["--workloads", "single"]
    for name in ("kvtrail", "torch"):
        arguments += ["--peer", f"{name}={engine}"]
    with pytest.raises(Refused, match=f"the hosts are {KIND}, not .*: start it"):
        kvtrail(toy, *arguments)
    monkeypatch.setenv("KVTRAIL_MACHINE", KIND)
    said = kvtrail(toy, *arguments)
    assert said.code == 0, said.text
    [contest] = said.record["samples"]
    rounds = [
        [lives[name]["reading"] for name in ("kvtrail", "torch")] for lives in contest["rounds"]
    ]
    assert all([one["value"] for one in readings] == [1.25, 2.5] for readings in rounds)
    # Every host had rounds, and none of them runs on two, or beside another one.
    assert len(rounds) == 12
    hosts = {f"{name}/0" for name in said.record["results"]["hosts"]}
    assert {one["device"] for one, _ in rounds} == hosts
    assert all(one["device"] == other["device"] for one, other in rounds)
    for one, other in combinations(chain.from_iterable(rounds), 2):
        assert one["device"] != other["device"] or not overlap(one, other)
    rows = said.record["results"]["rows"]
    assert [row["lives"] for row in rows] == [12] * 2
    assert [row["times"] and row["times"]["estimate"] for row in rows] == [None, 2]


def test_a_calibration_plants_its_delays_on_the_hosts(kvtrail, cluster: Cluster, declared) -> None:
    body = """
        add=$(printf "%.0f" "${KVTRAIL_DELAY_S:-0}e6")
        at=$((add % 1000 * 10 + $$ % 10))
        printf '{"step": %d.%04d}' $((5 + add / 1000)) $at > "$KVTRAIL_RESULT"
        """
    where = ("--fleet", cluster.address, "--kind", KIND)
    asked = ("--null", "1", "--planted", "20", "--metric", "step_ms")
    said = kvtrail(declared(TABLES, body), "calibrate", *asked, *where)
    assert said.code == 0, said.text
    null, slow = said.record["results"]["trials"]
    assert (null["verdict"], slow["verdict"]) == ("equivalent", "slower")
    assert slow["effect"] == pytest.approx(0.2, abs=0.01)
    assert len(said.record["results"]["hosts"]) > 1


def test_files_are_searched_on_all_hosts_though_one_is_lost(
    kvtrail, cluster: Cluster, declared, tmp_path: Path
) -> None:
    """Parts of the commit, made on the way; one of them no host can measure."""
    log = tmp_path / "log"
    log.touch()
    body = f"""
        step=5
        if grep -q new lib/d; then step=6; fi
        if grep -q new lib/c; then grep -q new lib/b || exit 1; fi
        printf x >> {log}
        printf '{{"step": %s.00%d}}' $step $(($$ % 10)) > "$KVTRAIL_RESULT"
        """
    toy = declared(TABLES, body)
    for text in ("old", "new"):
        toy.change(text, {f"lib/{name}": text for name in "abcd"})
    # Both ends are known to each host by then.
    losing = after(30, log, cluster.lose_one)
    where = ("--fleet", cluster.address, "--kind", KIND)
    said = kvtrail(toy, "bisect", "HEAD", "--files", "--margin", "5", *where)
    losing.join()
    assert said.code == 3, said.text
    assert "lib/d makes it slower: +" in said.text
    assert " on GPU " not in said.text
    assert "lib/c, lib/d: cannot be tried" in said.text
    assert "is taken out of the fleet, as it is lost" in said.text
    assert len(said.record["warnings"]) == 1
    ends = set(toy.git("rev-list", "-2", "HEAD").split())
    lives = [one for one in readings_in(said.record["samples"]) if one["commit"] not in ends]
    assert len({one["device"] for one in lives}) > 1
