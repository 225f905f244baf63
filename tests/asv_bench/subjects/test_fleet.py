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
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from asv_bench.errors import Interrupted, Refused
from asv_bench.fleet import fleet
from asv_bench.fleet.host import Look
from asv_bench.history.asv_results import Figure, read_results
from asv_bench.measure.log import RULER
from asv_bench.peers.model import Checkpoint

ray = pytest.importorskip("ray", reason="fleets need Ray, which is not installed")

pytestmark = pytest.mark.thorough
STORE_BYTES = 80 << 20
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

        options: dict[str, Any] = {"object_store_memory": STORE_BYTES}
        head = {**options, "num_cpus": 0, "include_dashboard": False}
        self._ray = RayCluster(initialize_head=True, head_node_args=head)
        self.address: str = self._ray.address
        self._nodes = [
            self._ray.add_node(
                wait=False, num_cpus=1, env_vars={"KVTRAIL_MACHINE": kind}, **options
            )
            for kind in (OTHER_KIND, *[KIND] * 4)
        ]
        self._ray.wait_for_nodes()

    def lose_one(self) -> None:
        """As a machine that loses its power."""
        self._ray.remove_node(self._nodes.pop(), allow_graceful=False)

    def end(self) -> None:
        self._ray.shutdown()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        made = Cluster()
        yield made
        made.end()


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts find themselves undisturbed, whatever else this machine does."""
    monkeypatch.setattr(fleet, "disturbances", lambda place, is_alone: [])
    monkeypatch.setattr("asv_bench.measure.log.FOLDER", tmp_path / "work" / "lives")
    monkeypatch.setattr("asv_bench.cli.report.publish", lambda *_: None)


def figures_in(folder: Path) -> list[Figure]:
    """What is stored of commits."""
    return list(read_results(folder / "asv").figures)


def log_in(folder: Path) -> tuple[Path, str]:
    """A file that has a letter for each life; what a life runs."""
    log = folder / "lives.log"
    log.touch()
    return log, f"printf x >> {log}"


def lived(log: Path) -> int:
    """How many lives began."""
    return log.stat().st_size


def after(lives: int, log: Path, action: Callable[[], None]) -> threading.Thread:
    """Do something as soon as more lives began, in a thread."""

    def wait() -> None:
        while lived(log) <= lives:
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def span(first: dict[str, Any], last: dict[str, Any] | None = None) -> tuple[str, float, float]:
    """Where and when a reading, or several to the last of them, was made."""
    last = last or first
    return first["device"], first["started_at"], last["started_at"] + last["process_s"]


def overlap(one: tuple[str, float, float], other: tuple[str, float, float]) -> bool:
    """Whether two readings were made at the same time."""
    return one[1] < other[2] and other[1] < one[2]


def test_all_lives_are_measured_once_though_a_host_is_lost(
    kvtrail, cluster: Cluster, declared, tmp_path: Path
) -> None:
    log, note = log_in(tmp_path)
    toy = declared(TABLES, *[bench(5 + number % 7, note) for number in range(41)])
    losing = after(80, log, cluster.lose_one)
    kept = tmp_path / "kept"
    arguments = ("history", "HEAD~40..HEAD", "--fleet", cluster.address, "--kind", KIND)
    said = kvtrail(toy.toy, *arguments, "--results", str(kept))
    losing.join()
    assert said.code == 0, said.text
    hosts = said.record["results"]["hosts"]
    lost = [name for name, host in hosts.items() if host["taken_out"]]
    assert len(hosts) == 4
    assert len(lost) == 1
    assert f"{lost[0]} is taken out of the fleet, as it is lost" in said.text
    figures = figures_in(kept)
    assert {figure.commit for figure in figures} == set(said.record["settings"]["commits"])
    assert len(figures) == 40
    assert {len(figure.samples) for figure in figures} == {ROUNDS}
    assert {figure.machine for figure in figures} == {KIND}
    for number, commit in enumerate(toy.toy.git("rev-list", "--reverse", "HEAD~40..HEAD").split()):
        [figure] = [one for one in figures if one.commit == commit]
        assert figure.median == pytest.approx(5 + (number + 1) % 7, abs=0.01)
    # What is kept is over: the next command counts nothing of it again.
    [kept_lives] = (tmp_path / "work" / "lives").iterdir()
    assert "finished" in kept_lives.read_text().splitlines()[-1]


def test_kinds_of_hosts_have_series_of_their_own_also_after_an_interruption(
    kvtrail, cluster: Cluster, declared, tmp_path: Path
) -> None:
    log, note = log_in(tmp_path)
    benches = [bench(step, note) for step in (5, 6, 7)]
    toy = declared(TABLES, *benches)
    kept = tmp_path / "kept"
    arguments = ("history", "HEAD~2..HEAD", "--fleet", cluster.address, "--results", str(kept))
    interrupting = after(10, log, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted, match="The same command goes on with them"):
        kvtrail(toy.toy, *arguments)
    interrupting.join()
    # What was measured is kept to go on with, and nothing is filed that would be filed again.
    assert not kept.exists() or figures_in(kept) == []
    before = lived(log)
    said = kvtrail(toy.toy, *arguments)
    assert said.code == 0, said.text
    [going_on] = re.findall(r"going on with (\d+) lives", said.text)
    figures = figures_in(kept)
    assert Counter(figure.machine for figure in figures) == {KIND: 2, OTHER_KIND: 2}
    assert {len(figure.samples) for figure in figures} == {ROUNDS}
    # Beside the lives that were missing, each host tries each commit once at most.
    tried = 2 * len(said.record["results"]["hosts"]) + 1
    assert lived(log) - before <= 2 * 2 * ROUNDS - int(going_on) + tried
    with pytest.raises(Refused, match=r"several kinds.*--kind"):
        kvtrail(toy.toy, "compare", "HEAD~1", "HEAD", "--fleet", cluster.address)


def test_a_comparison_is_spread_over_hosts_and_a_disturbed_one_is_taken_out(
    kvtrail, cluster: Cluster, declared, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = declared(TABLES, bench(5), bench(5.2))
    arguments = ("compare", "HEAD~1", "HEAD", "--fleet", cluster.address, "--kind", KIND)
    said = kvtrail(toy.toy, *arguments)
    assert said.code == 3, said.text
    assert said.verdicts == {"step_ms": "slower"}
    pairs = said.record["samples"]
    assert {one["base"]["device"] for one in pairs} == {
        f"{name}/0" for name in said.record["results"]["hosts"]
    }
    # A pair never leaves its host, and every host begins with either commit in turns.
    assert all(one["base"]["device"] == one["head"]["device"] for one in pairs)

    name = list(said.record["results"]["hosts"])[1]
    monkeypatch.setattr(fleet, "disturbances", disturbance_of(f"{name}/0"))
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    arguments = ("compare", "HEAD~1", "HEAD", "--fleet", "auto", "--kind", KIND, "--fresh")
    said = kvtrail(toy.toy, *arguments)
    assert said.code == 3, said.text
    assert f"{name} is taken out of the fleet, as it is disturbed: other load" in said.text
    assert f"{name}/0" not in {one["base"]["device"] for one in said.record["samples"]}
    assert said.record["warnings"]


def disturbance_of(device: str) -> Look:
    """What finds one host disturbed."""
    return lambda place, is_alone: ["other load"] if place.device == device else []


def test_a_bisection_probes_several_commits_at_once(kvtrail, cluster: Cluster, declared) -> None:
    benches = [bench(5 if number < 9 else 5.3, f"# {number}") for number in range(17)]
    toy = declared(TABLES, *benches)
    arguments = ("bisect", "HEAD~16", "HEAD", "--fleet", cluster.address, "--kind", KIND)
    said = kvtrail(toy.toy, *arguments)
    assert said.code == 3, said.text
    assert said.record["results"]["finding"]["suspects"] == [toy.toy.git("rev-parse", "HEAD~7")]
    search = [one["pair"] for one in said.record["samples"] if one["stage"] == "search"]
    spans = [span(one) for pair in search for one in (pair["base"], pair["head"])]
    assert any(a[0] != b[0] and overlap(a, b) for a, b in combinations(spans, 2))


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
    variables = dict(
        line.split("=", 1) for line in Path(f"{noted}.env").read_text().splitlines() if "=" in line
    )
    assert variables["KVTRAIL_MACHINE"] == KIND
    assert not [name for name in variables if name.startswith("RAY_") or name == "OMP_NUM_THREADS"]
    assert "runtime_resources" not in variables.get("PYTHONPATH", "")


def test_rounds_of_peers_stay_on_one_host_each_and_are_spread_over_all(
    kvtrail, cluster: Cluster, declared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that are scripts; one host is lost in the middle."""
    log, note = log_in(tmp_path)
    engine = tmp_path / "python"
    windows = {name: ["STEP"] for name in ("step_ms", "tokens_per_s", "ttft_ms", "tpot_ms")}
    told: dict[str, Any] = {"settings": "", "chosen": {}, "versions": {}, "failed": {}}
    told |= {"startup_s": "STEP", "figures": {"single-quick": windows}}
    told |= {"tokens": {"single-quick": [[1]]}}
    engine.write_text(
        f"""#!/bin/sh
        [ "$1" = -P ] && exit 0
        {note}
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
    model = Checkpoint("model", "float32", 64, None, {"single-quick": None})
    answers = {"checkpoint": asdict(model), "likelihoods": {}}
    monkeypatch.setattr("asv_bench.peers.contest.apart", lambda _, asked, *__: answers[asked])
    arguments = ["peers", "--fleet", cluster.address, "--kind", KIND, "--rounds", "12", "--quick"]
    arguments += ["--workloads", "single"]
    for name in ("kvtrail", "torch"):
        arguments += ["--peer", f"{name}={engine}"]
    with pytest.raises(Refused, match=f"the hosts are {KIND}, not .*: start it"):
        kvtrail(toy.toy, *arguments)
    monkeypatch.setenv("KVTRAIL_MACHINE", KIND)
    losing = after(8, log, cluster.lose_one)
    said = kvtrail(toy.toy, *arguments)
    losing.join()
    assert said.code == 0, said.text
    hosts = said.record["results"]["hosts"]
    left = {f"{name}/0" for name, host in hosts.items() if not host["taken_out"]}
    assert len(left) == len(hosts) - 1
    assert said.record["machine"]["name"] == KIND
    [contest] = said.record["samples"]
    spans = []
    for number, lives in enumerate(contest["rounds"]):
        readings = [lives[name]["reading"] for name in ("kvtrail", "torch")]
        assert [one["value"] for one in readings] == [1.25, 2.5]
        assert len({one["device"] for one in readings}) == 1
        spans.append(span(*(readings if number % 2 == 0 else readings[::-1])))
    # Every host had rounds, and none of them holds anything of another one.
    assert len(spans) == 12
    assert {device for device, *_ in spans} >= left
    assert not any(a[0] == b[0] and overlap(a, b) for a, b in combinations(spans, 2))
    rows = said.record["results"]["rows"]
    assert [row["lives"] for row in rows] == [12] * 2
    assert [row["times"] and row["times"]["estimate"] for row in rows] == [None, 2]


def test_rounds_of_three_commits_and_of_four_cells_run_on_hosts(
    kvtrail, cluster: Cluster, declared
) -> None:
    labelled = f'{TABLES}\n[axis]\nlabels = ["old", "new"]\n'
    by_label = 'if [ "$KVTRAIL_LABEL" = new ]; then step=6; else step=$step; fi'
    benches = [
        f"""
        step={step}; {by_label}  # commit {number}
        printf '{{"step": %s.00%d}}' $step $(($$ % 10)) > "$KVTRAIL_RESULT"
        """
        for number, step in enumerate((5, 6, 5))
    ]
    toy = declared(labelled, *benches).toy
    fleet = ("--fleet", cluster.address, "--kind", KIND)
    commits = ("HEAD~2", "HEAD~1", "HEAD", "--axis", "commits", "--margin", "5")
    said = kvtrail(toy, "fixed", *commits, *fleet)
    assert said.record["results"]["fixed"][0]["state"] == "wholly fixed", said.text
    assert said.record["results"]["hosts"]
    said = kvtrail(toy, "swap", "HEAD~2", "HEAD", "old", "new", "--margin", "5", *fleet)
    assert "step_ms: the change belongs to the labels" in said.text
    assert len(said.record["results"]["cells"]) == 4
