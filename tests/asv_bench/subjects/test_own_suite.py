"""kvtrail's own benchmarks: what of a commit is measured, by which lives, and where.

Commits are unpacked from any kind of checkout, whole or not at all, and nothing else is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from measured_rounds import pair_of_lives
from toy_project import ToyProject, git, make_project
from toy_repository import ToyRepository

from asv_bench.errors import Refused
from asv_bench.git import trees
from asv_bench.measure import lives as lives_module
from asv_bench.measure.life import Work
from asv_bench.measure.lives import Lives
from asv_bench.measure.places import Place, shared_out
from asv_bench.measure.processes import Ended, Job, Processes
from asv_bench.measure.samples import CommitUnusable, Metric
from asv_bench.measure.trees import Laid
from asv_bench.measure.turns import TURNS_VARIABLE
from asv_bench.process.environment import TRIAL_VARIABLE
from asv_bench.process.gpu import GpuConditions
from asv_bench.subjects.own_suite import BenchmarkLife, OwnSuite, engine_of
from asv_bench.subjects.subject_file import SubjectTable


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ToyProject:
    return make_project(tmp_path_factory.mktemp("toy") / "project", commits=3, measures=False)


@pytest.fixture
def toy(original: ToyProject, tmp_path: Path) -> ToyProject:
    shutil.copytree(original.root, tmp_path / "project")
    return ToyProject(tmp_path / "project", list(original.commits))


@pytest.fixture
def suite(toy: ToyProject) -> OwnSuite:
    return OwnSuite(toy.root)


def step_of(directory: Path) -> str:
    return (directory / "engine" / "__init__.py").read_text()


def test_a_commit_is_found_by_every_kind_of_name(toy: ToyProject, suite: OwnSuite) -> None:
    first, second, third = toy.commits
    toy.git("tag", "v1", first)
    toy.git("tag", "--annotate", "--message", "a tag with an object of its own", "v2", second)
    toy.git("branch", "topic", second)
    names = {"HEAD": third, "HEAD~2": first, "v1": first, "v2": second, "topic": second}
    names |= {"main^": second, first: first, first[:9]: first}
    assert {name: suite.resolve(name).hash for name in names} == names
    assert suite.resolve("v1").subject == "step 1 <b>"
    for name in ("nowhere", "HEAD~99", "f" * 40, "--all", "", "HEAD:engine"):
        with pytest.raises(Refused, match=r"names no commit|no commit called") as refused:
            suite.resolve(name)
        assert "--unshallow" not in str(refused.value)
    shallow = toy.root.with_name("shallow")
    git(toy.root, "clone", "--quiet", "--depth=1", toy.root.as_uri(), str(shallow))
    with pytest.raises(Refused, match=r"no commit called 'HEAD~1'.*git fetch --unshallow"):
        OwnSuite(shallow).resolve("HEAD~1")


def test_the_repository_is_left_as_it_was_and_a_tree_unpacked_as_it_stands(
    toy: ToyProject, suite: OwnSuite
) -> None:
    toy.set_engine(7)
    toy.git("stash")
    toy.set_engine(8)
    toy.git("add", "--all")
    toy.set_engine(9)
    (toy.root / "untracked").write_text("")
    before = ToyRepository(toy.root).state()
    found = {name: step_of(engine_of(suite, suite.resolve(name).hash)) for name in ("HEAD~2", ".")}
    assert found == {"HEAD~2": "STEP = 1\n", ".": "STEP = 9\n"}
    after = ToyRepository(toy.root).state()
    assert [line for line in after if not line.startswith(".asv/")] == before
    assert suite.resolve(".").hash not in toy.commits


def test_a_commit_is_laid_out_once_and_again_where_it_is_half_made(
    toy: ToyProject, suite: OwnSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = toy.root / ".asv" / "verdicts" / "commits"
    with monkeypatch.context() as patch:
        patch.setattr(trees, "_exact", MagicMock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine_of(suite, toy.commits[0])
    assert not list(folder.iterdir())
    directory = engine_of(suite, toy.commits[0])
    assert sorted(path.name for path in directory.iterdir()) == ["COMMIT", "engine", "kernels"]
    assert (directory / "COMMIT").read_text() == toy.commits[0] + "\n"
    assert directory == folder / toy.commits[0]
    (directory / "engine" / "mark").write_text("kept")
    assert (engine_of(suite, toy.commits[0]) / "engine" / "mark").is_file()
    shutil.rmtree(directory)
    (directory / "engine").mkdir(parents=True)
    assert step_of(engine_of(suite, toy.commits[0])) == "STEP = 1\n"


def test_a_commit_without_an_engine_or_that_git_lacks_is_unusable(
    toy: ToyProject, suite: OwnSuite
) -> None:
    toy.git("rm", "--quiet", "-r", "engine", "kernels")
    commit = toy.commit("nothing to measure")
    unusable = {commit: "has none of engine, kernels", "f" * 40: "git could not unpack it"}
    for name, said in unusable.items():
        with pytest.raises(CommitUnusable, match=said) as caught:
            engine_of(suite, name)
        assert caught.value.is_lacking == (name == commit)


def test_commits_are_the_same_where_engine_and_kernels_are(
    toy: ToyProject, suite: OwnSuite
) -> None:
    (toy.root / "README.md").write_text("only this is new\n")
    documented = toy.commit("document it")
    assert suite.are_same(toy.commits[2], documented)
    assert suite.are_same(documented, suite.resolve(".").hash)
    assert not suite.are_same(toy.commits[1], documented)
    (toy.root / "engine" / "__init__.py").chmod(0o755)
    assert not suite.are_same(documented, suite.resolve(".").hash)
    (toy.root / "engine" / "__init__.py").chmod(0o644)
    (toy.root / "kernels" / "new.py").write_text("")
    assert not suite.are_same(documented, suite.resolve(".").hash)
    toy.git("rm", "--quiet", "-r", "engine", "kernels/__init__.py")
    (toy.root / "kernels" / "new.py").unlink()
    lacking = toy.commit("nothing to measure")
    assert not suite.are_same(lacking, lacking)


BENCHMARKS = {"a.step": "a.step", "a.ttft": "a.ttft", "b.time(1)": "b.time-0"}
RUN_OF = {"a.step": "a-run", "a.ttft": "a-run", "b.time-0": None}
STEPS = ("a.step", "a.ttft")
Outcome = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a process was asked."""

    commit: str
    benchmarks: tuple[str, ...]
    device: str
    cores: tuple[int, ...]
    repeats: int
    turns: str | None


@dataclass
class Scripted(Processes):
    """Answers as a process would; `change` says what of an answer goes otherwise."""

    change: Callable[[int, Outcome], Outcome] = lambda number, outcome: {}
    asked: list[Asked] = field(default_factory=list)
    measured: list[Asked] = field(default_factory=list)

    def run(self, job: Job, timeout_s: float) -> Ended:
        told = job.variables
        number, device = len(self.asked), told.get("CUDA_VISIBLE_DEVICES", "cpu")
        *_, verb, _, repeated, names = (*job.command[:6], tuple(job.command[6:]))
        assert verb == "run"
        repeats = int(repeated)
        turns = told.get(TURNS_VARIABLE)
        asked = Asked(told["KVTRAIL_LABEL"], names, device, job.cores, repeats, turns)
        self.asked.append(asked)
        self.measured += [] if TRIAL_VARIABLE in told else [asked]
        outcomes = []
        for turn in range(repeats):
            for name in names:
                outcome = {"name": name, "absence": None, "windows": ()}
                outcome |= {"samples": (1.0 + number + turn,), "run": RUN_OF[name], "seconds": 0.45}
                outcomes.append(outcome | self.change(number, outcome))
        answer = {"span": (0.0, 1.0), "outcomes": outcomes}
        Path(told["KVTRAIL_RESULT"]).write_text(json.dumps(answer))
        return Ended(1.0, 1, "")


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Sees nothing of a GPU, unless a test says what."""
    watch = MagicMock()
    watch.return_value.peak_memory_bytes.return_value = None
    watch.return_value.conditions.return_value = None
    monkeypatch.setattr(lives_module, "GpuWatch", watch)
    return watch.return_value


def lives_of(toy: ToyProject, processes: Processes, *devices: str) -> Lives:
    life = BenchmarkLife(toy.root, BENCHMARKS, is_compared=True, is_on_gpu=bool(devices))

    def lay_out(name: str) -> tuple[Laid]:
        folder = engine_of(OwnSuite(toy.root), name)
        return (Laid(folder, folder, folder, name),)

    metrics = tuple(Metric(name, "seconds") for name in BENCHMARKS)
    table = SubjectTable(name="toy", measure="true")
    work = Work(life, table, metrics, lists_packages=False)
    return Lives(work, shared_out(devices or ["cpu"]), lay_out, processes)


def test_figures_of_one_run_come_from_one_process_and_others_from_others(
    original: ToyProject,
) -> None:
    runner = Scripted()
    base, head = original.commits[:2]
    source = lives_of(original, runner)
    pairs = pair_of_lives(source, base, head, head_first=True)
    # Each commit runs everything once, unmeasured, before anything is measured.
    tried = [(asked.commit, asked.benchmarks) for asked in runner.asked[:2]]
    assert tried == [(base, tuple(RUN_OF)), (head, tuple(RUN_OF))]
    # 0.9 s for both figures of a take 3 repeats, whose least is the figure; 0.45 s of b take 5.
    assert [(asked.commit, asked.benchmarks, asked.repeats) for asked in runner.measured] == [
        *((head, STEPS, 3), (base, STEPS, 3)),
        *((head, ("b.time-0",), 5), (base, ("b.time-0",), 5)),
    ]
    assert set(pairs) == set(BENCHMARKS)
    step = pairs["a.step"]
    assert (step.head_first, step.base.commit, step.head.commit) == (True, base, head)
    assert (step.head.samples, step.head.value) == ((3.0, 4.0, 5.0), 3.0)
    pair_of_lives(source, base, head, metrics=["b.time(1)"])
    assert [asked.benchmarks for asked in runner.measured[4:]] == [("b.time-0",)] * 2


def test_runs_with_windows_take_turns_on_a_cpu_and_readings_hold_them_all(
    original: ToyProject,
) -> None:
    commits, together = original.commits[:2], threading.Barrier(2)

    class InTurns(Scripted):
        def run(self, job: Job, timeout_s: float) -> Ended:
            if TURNS_VARIABLE in job.variables:
                together.wait(30)  # never met by processes that run one after the other
            return super().run(job, timeout_s)

    def windowed(number: int, outcome: Outcome) -> Outcome:
        [figure] = outcome["samples"]
        # One window of the first process is disturbed.
        windows = (figure, figure * (9 if figure == 3.0 else 1), figure, figure, figure)
        return {"windows": windows} if outcome["name"] in STEPS else {}

    runner = InTurns(change=windowed)
    pairs = pair_of_lives(lives_of(original, runner), *commits, head_first=True)
    step = pairs["a.step"]
    assert sorted([step.base.value, step.head.value]) == pytest.approx([3.0, 4.0])
    assert sorted([*step.base.samples, *step.head.samples]) == [3.0] * 4 + [4.0] * 5 + [27.0]
    assert (step.base.commit, step.head.commit) == tuple(commits)
    assert len(pairs["b.time(1)"].base.samples) == 5
    first, second = (asked for asked in runner.measured if asked.turns is not None)
    assert first.turns != second.turns
    assert first.benchmarks == second.benchmarks == STEPS
    assert first.cores == second.cores
    assert (len(first.cores), first.repeats, second.repeats) == (1, 1, 1)
    # On a GPU processes run one after the other.
    on_gpu = InTurns(change=windowed)
    pair_of_lives(lives_of(original, on_gpu, "GPU-a"), *commits)
    assert {asked.turns for asked in on_gpu.asked} == {None}


def test_both_halves_of_a_pair_are_on_the_device_that_was_asked_for(
    original: ToyProject, watch: MagicMock
) -> None:
    braked = GpuConditions(1980, 1980, 1980, ("hw_power_brake_slowdown",), 60, 10)
    watch.conditions.return_value = braked
    runner = Scripted()
    source = lives_of(original, runner, "GPU-a", "GPU-b")
    pairs = pair_of_lives(source, *original.commits[:2], metrics=["a.step"], device="GPU-b")
    assert [asked.device for asked in runner.asked] == ["GPU-b"] * 4
    assert pairs["a.step"].base.device == pairs["a.step"].head.device == "GPU-b"
    # A GPU's workloads have their full size: one run a process.
    assert {asked.repeats for asked in runner.asked} == {1}
    assert "The host held the GPU back" in (pairs["a.step"].discarded or "")


def test_each_device_has_its_own_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(2, 12)))
    assert shared_out(["cpu"]) == [Place(name="cpu")]
    cores = [place.cores for place in shared_out(["GPU-a", "GPU-b", "GPU-c"])]
    assert cores == [(2, 3, 4), (5, 6, 7), (8, 9, 10)]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert [place.cores for place in shared_out(["a", "b", "c"])] == [(0,), (1,), (0,)]
