"""What is asked of lives of kvtrail's own benchmarks, and what becomes of what they say."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from measured_rounds import one_life, pair_of_lives
from toy_project import ToyProject, make_project

from asv_bench.errors import MeasurementFailed
from asv_bench.measure import lives as lives_module
from asv_bench.measure.lives import Lives, Place, repeats_for
from asv_bench.measure.places import shared_out
from asv_bench.measure.processes import Ended, Job, Processes
from asv_bench.measure.samples import CommitUnusable, GpuConditions, Pair, SampleFailed
from asv_bench.measure.trees import Laid
from asv_bench.measure.turns import TURNS_VARIABLE
from asv_bench.process.environment import TRIAL_VARIABLE
from asv_bench.subjects.own_suite import BenchmarkLife, OwnSuite
from asv_bench.subjects.subject import Metric, Work
from asv_bench.subjects.subject_file import SubjectTable

BENCHMARKS = {"a.step": "a.step", "a.ttft": "a.ttft", "b.time(1)": "b.time-0"}
RUN_OF = {"a.step": "a-run", "a.ttft": "a-run", "b.time-0": None}


@dataclass(frozen=True)
class Outcome:
    name: str
    status: str
    samples: tuple[float, ...]
    reason: str
    run: str | None
    seconds: float
    windows: tuple[float, ...] = ()


@dataclass(frozen=True)
class Asked:
    commit: str
    benchmarks: tuple[str, ...]
    device: str
    cores: tuple[int, ...]
    repeats: int


@dataclass
class Scripted(Processes):
    """Answers as a process would; `change` makes an answer go wrong."""

    change: Callable[[int, Outcome], Outcome] = lambda number, outcome: outcome
    seconds: float = 0.9
    asked: list[Asked] = field(default_factory=list)

    def run(self, job: Job, timeout_s: float) -> Ended:
        told = job.variables
        wanted = json.loads(Path(told["KVTRAIL_WORK"]).read_text())
        number = len(self.asked)
        benchmarks, repeats = tuple(wanted["benchmarks"]), wanted["repeats"]
        device = told.get("CUDA_VISIBLE_DEVICES", "cpu")
        self.asked.append(Asked(told["KVTRAIL_LABEL"], benchmarks, device, job.cores, repeats))
        outcomes = [
            self.change(
                number,
                Outcome(
                    name, "measured", (1.0 + number + turn,), "", RUN_OF[name], self.seconds / 2
                ),
            )
            for turn in range(repeats)
            for name in benchmarks
        ]
        answer = {"span": (0.0, 1.0), "outcomes": [vars(one) for one in outcomes]}
        Path(told["KVTRAIL_RESULT"]).write_text(json.dumps(answer))
        return Ended(1.0, 1, "")


class NoWatch:
    """Sees nothing of a GPU."""

    seen: GpuConditions | None = None

    def __init__(self, device: str) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def peak_memory_bytes(self) -> None:
        pass

    def conditions(self, begun: float, ended: float) -> GpuConditions | None:
        return self.seen


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives_module, "GpuWatch", NoWatch)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> ToyProject:
    return make_project(tmp_path_factory.mktemp("toy") / "project", commits=2)


def lives_of(
    toy: ToyProject, processes: Processes, *devices: str, is_compared: bool = True
) -> Lives:
    is_on_gpu = bool(devices)
    life = BenchmarkLife(toy.root, BENCHMARKS, is_compared=is_compared, is_on_gpu=is_on_gpu)
    suite = OwnSuite(toy.root)

    def lay_out(name: str) -> Laid:
        folder = suite.folder_of(name)
        return Laid(folder, folder, folder, name)

    metrics = tuple(Metric(name, "seconds") for name in BENCHMARKS)
    table = SubjectTable(name="toy", measure="true")
    work = Work(life, "", table, metrics, lists_packages=False)
    return Lives(work, shared_out(devices or ["cpu"]), lay_out, processes)


def test_figures_of_one_run_come_from_one_process_and_others_from_others(toy: ToyProject) -> None:
    runner = Scripted()
    base, head = toy.commits
    source = lives_of(toy, runner)
    pairs = pair_of_lives(source, base, head, head_first=True)
    warm, measured = runner.asked[:2], runner.asked[2:]
    # Each commit runs everything once, unmeasured, before anything is measured.
    assert [(asked.commit, asked.benchmarks) for asked in warm] == [
        (base, tuple(RUN_OF)),
        (head, tuple(RUN_OF)),
    ]
    assert [(asked.commit, asked.benchmarks) for asked in measured] == [
        (head, ("a.step", "a.ttft")),
        (base, ("a.step", "a.ttft")),
        (head, ("b.time-0",)),
        (base, ("b.time-0",)),
    ]
    assert set(pairs) == set(BENCHMARKS)
    step = pairs["a.step"]
    assert step.head_first
    assert (step.base.commit, step.head.commit) == (base, head)
    # 0.9 s for both figures of a take 3 repeats, whose least is the figure; 0.45 s of b take 5.
    assert [asked.repeats for asked in measured] == [3, 3, 5, 5]
    assert step.head.samples == (3.0, 4.0, 5.0)
    assert step.head.value == 3.0
    pair_of_lives(source, base, head, metrics=["b.time(1)"])
    assert [(asked.commit, asked.benchmarks) for asked in runner.asked[6:]] == [
        (base, ("b.time-0",)),
        (head, ("b.time-0",)),
    ]


def test_runs_with_windows_take_turns_on_a_cpu_and_readings_hold_them_all(
    toy: ToyProject,
) -> None:
    together = threading.Barrier(2)

    @dataclass
    class InTurns(Scripted):
        turns: list[str | None] = field(default_factory=list)

        def run(self, job: Job, timeout_s: float) -> Ended:
            turns = job.variables.get(TURNS_VARIABLE)
            if TRIAL_VARIABLE not in job.variables:
                self.turns.append(turns)
            if turns is not None:
                together.wait(30)  # never met by processes that run one after the other
            return super().run(job, timeout_s)

    def windowed(number: int, outcome: Outcome) -> Outcome:
        figure = outcome.samples[0]
        is_windowed = outcome.name.startswith("a.")
        # One window of the first process is disturbed.
        windows = (figure, figure * (9 if figure == 3.0 else 1), figure, figure, figure)
        return replace(outcome, windows=windows if is_windowed else ())

    runner = InTurns(change=windowed)
    pairs = pair_of_lives(lives_of(toy, runner), *toy.commits, head_first=True)
    step = pairs["a.step"]
    assert sorted([step.base.value, step.head.value]) == pytest.approx([3.0, 4.0])
    assert sorted([*step.base.samples, *step.head.samples]) == [3.0] * 4 + [4.0] * 5 + [27.0]
    assert (step.base.commit, step.head.commit) == tuple(toy.commits)
    assert len(pairs["b.time(1)"].base.samples) == 5
    first, second = (turns for turns in runner.turns if turns is not None)
    assert first != second
    taking_turns = [asked for asked in runner.asked if "a.step" in asked.benchmarks][2:]
    assert taking_turns[0].cores == taking_turns[1].cores
    assert [(len(asked.cores), asked.repeats) for asked in taking_turns] == [(1, 1)] * 2
    # On a GPU processes run one after the other.
    on_gpu = InTurns(change=windowed)
    pair_of_lives(lives_of(toy, on_gpu, "GPU-a"), *toy.commits)
    assert set(on_gpu.turns) == {None}


def test_both_halves_of_a_pair_are_on_the_device_that_was_asked_for(toy: ToyProject) -> None:
    runner = Scripted()
    source = lives_of(toy, runner, "GPU-a", "GPU-b")
    pairs = pair_of_lives(source, *toy.commits, metrics=["a.step"], device="GPU-b")
    assert [asked.device for asked in runner.asked] == ["GPU-b"] * 4
    assert pairs["a.step"].base.device == pairs["a.step"].head.device == "GPU-b"
    # A GPU's workloads have their full size: one run a process.
    assert {asked.repeats for asked in runner.asked} == {1}


def test_a_commit_is_prepared_once_whatever_came_of_it(toy: ToyProject) -> None:
    def fail(number: int, outcome: Outcome) -> Outcome:
        return Outcome(outcome.name, "failed", (), "ImportError: no torch", None, 0.1)

    runner = Scripted(change=fail)
    source = lives_of(toy, runner)
    for _ in range(2):
        with pytest.raises(CommitUnusable, match="ImportError: no torch") as caught:
            source.prepare(toy.commits[0])
        assert not caught.value.is_lacking
    assert len(runner.asked) == 1


def test_what_one_commit_lacks_is_told_and_the_rest_is_measured(toy: ToyProject) -> None:
    def skip(number: int, outcome: Outcome) -> Outcome:
        if outcome.name == "a.ttft":
            return Outcome(outcome.name, "skipped", (), "not yet", None, 0.1)
        return outcome

    source = lives_of(toy, Scripted(change=skip))
    absences = source.prepare(toy.commits[0])
    assert {name: absence.reason for name, absence in absences.items()} == {"a.ttft": "not yet"}
    assert not absences["a.ttft"].has_failed
    assert set(pair_of_lives(source, *toy.commits)) == {"a.step", "b.time(1)"}


def test_a_spoilt_pair_carries_its_sentence(
    toy: ToyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    braked = GpuConditions(1980, 1980, 1980, ("hw_power_brake_slowdown",), 60, 10)
    monkeypatch.setattr(NoWatch, "seen", braked)
    pairs = pair_of_lives(lives_of(toy, Scripted(), "GPU-a"), *toy.commits, metrics=["a.step"])
    assert "The host held the GPU back" in (pairs["a.step"].discarded or "")


def test_short_runs_are_repeated_up_to_a_bound() -> None:
    assert [repeats_for(seconds) for seconds in (5.0, 2.0, 1.9, 0.5, 0.3, 0.001, 0.0)] == [
        *(1, 1, 2, 4, 7, 7, 7),
    ]


def test_each_device_has_its_own_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(2, 12)))
    assert shared_out(["cpu"]) == [Place(name="cpu")]
    first, second, third = shared_out(["GPU-a", "GPU-b", "GPU-c"])
    assert (first.cores, second.cores, third.cores) == ((2, 3, 4), (5, 6, 7), (8, 9, 10))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert [place.cores for place in shared_out(["a", "b", "c"])] == [(0,), (1,), (0,)]


def test_commits_are_tried_at_the_same_time_each_on_its_own_device(toy: ToyProject) -> None:
    both = threading.Barrier(2, timeout=60)

    def meet(number: int, outcome: Outcome) -> Outcome:
        if outcome.name == "a.step" and number < 2:
            # Passed only if two processes that try different commits run at once.
            both.wait()
        return outcome

    runner = Scripted(change=meet)
    source = lives_of(toy, runner, "GPU-0", "GPU-1")
    with ThreadPoolExecutor(2) as pool:
        for pair in [
            pool.submit(source.round, [commit, commit], device=device)
            for commit, device in zip(toy.commits, source.devices, strict=True)
        ]:
            pair.result(timeout=120)
    tried = {asked.commit: asked.device for asked in runner.asked[:2]}
    assert tried == dict(zip(toy.commits, source.devices, strict=True))
    busy = {(asked.commit, asked.device) for asked in runner.asked}
    assert busy == set(tried.items())


def test_a_count_of_nothing_is_a_figure_of_a_history_and_no_end_of_a_comparison(
    toy: ToyProject,
) -> None:
    def nothing(number: int, outcome: Outcome) -> Outcome:
        return replace(outcome, samples=(0.0,)) if outcome.name == "a.step" else outcome

    head = toy.commits[-1]
    source = lives_of(toy, Scripted(change=nothing), is_compared=False)
    assert source.prepare(head) == {}
    assert one_life(source, head)["a.step"].value == 0
    compared = lives_of(toy, Scripted(change=nothing))
    absence = compared.prepare(head)["a.step"]
    assert absence.reason == "it gave 0, and only positive figures have a ratio"
    assert not absence.has_failed
    reading = one_life(source, head)["a.step"]
    with pytest.raises(MeasurementFailed, match="only positive figures can be compared"):
        Pair(reading, reading, head_first=False)


def test_a_process_that_fails_costs_a_life_its_own_figures_only(toy: ToyProject) -> None:
    def failing(number: int, outcome: Outcome) -> Outcome:
        # All of the first process succeeds: it tries the commit.
        fails = number and outcome.name == "b.time-0"
        return replace(outcome, status="failed", samples=(), reason="gone") if fails else outcome

    with pytest.raises(SampleFailed, match="gone") as failed:
        one_life(lives_of(toy, Scripted(change=failing)), toy.commits[0])
    assert failed.value.benchmarks == ("b.time(1)",)
    assert failed.value.round is not None
    assert set(failed.value.round.readings[0]) == {"a.step", "a.ttft"}
