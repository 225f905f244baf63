"""The ladder, a finished study: its record and page, its claims, and what it refuses.

All but what shows that its record and page still read is `thorough`.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.measure.places import CPU, Place
from asv_bench.measure.processes import LifeFailed
from asv_bench.measure.turns import TURNS_VARIABLE, Turns
from asv_bench.process.gpu import GpuConditions
from asv_bench.studies.ladder import command, engine_in_turns, rung_process
from asv_bench.studies.ladder.claims import CLAIMS, FIGURES, trials_here
from asv_bench.studies.ladder.engine_in_turns import TURNS_OF_BLOCK, EngineInTurns
from asv_bench.studies.ladder.ladder_run import try_claims
from asv_bench.studies.ladder.paired_turns import paired_seconds
from asv_bench.studies.ladder.rung_counters import COUNTERS
from asv_bench.studies.ladder.rung_process import RungAnswer, RungProcesses, RungSettings
from asv_bench.studies.ladder.rung_run import STEP_TIME
from asv_bench.studies.ladder.rungs import RUNGS, Rung
from asv_bench.workloads.drive import RequestTrace, RunSample

ON_CPU = [rung for rung in RUNGS if rung.needs == "any"]


@dataclass
class FakeProcesses:
    """Answers at once: a rung takes the seconds that a test gives it, within 0.05 % or so."""

    seconds: Mapping[int, float]
    checks: Mapping[int, Sequence[str]] = field(default_factory=dict)
    fails: set[int] = field(default_factory=set)
    throttled: set[int] = field(default_factory=set)
    ran: list[tuple[int, bool]] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(1)

    def measure(
        self,
        rung: Rung,
        workloads: Sequence[str],
        place: Place,
        *,
        check: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> RungAnswer:
        """Rungs of a pair take turns, and no other."""
        assert (TURNS_VARIABLE in (variables or {})) != check
        if rung.number in self.fails and not check:
            raise LifeFailed("it ended with exit code 1: no such thing")
        if variables:
            mine, _, theirs = variables[TURNS_VARIABLE].partition(os.pathsep)
            turns = Turns({TURNS_VARIABLE: os.pathsep.join((mine, theirs))})
            turns.wait()
            self.firsts.append(rung.number)
            turns.pass_on()
        self.ran.append((rung.number, check))
        factor = float(np.exp(0.0005 * self._random.standard_normal()))
        figures = dict.fromkeys((STEP_TIME, *FIGURES), self.seconds[rung.number] * factor)
        measured = {"figures": figures, "runs": [figures], "digests": ["a", "b"], "turns": []}
        checked = list(self.checks.get(rung.number, ["c", "d", "e"]))
        events = ("sw_thermal_slowdown",) if rung.number in self.throttled else ()
        return RungAnswer(
            dict.fromkeys(workloads, measured),
            {"digests": checked, "parted": 0} if check else None,
            GpuConditions(1980.0, 1980.0, 1980.0, events, 40, 3),
            1.0,
            0.5,
        )

    def count(self, rungs: Sequence[Rung]) -> dict[str, dict[str, int]]:
        return {rung.label: dict.fromkeys(COUNTERS, rung.number) for rung in rungs}

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> FakeProcesses:
    """Stand in for the real ones."""
    fake = FakeProcesses({0: 4e-3, 1: 3e-3, 2: 1e-3, 5: 1e-3, 6: 1.2e-3, 7: 0.5e-3})
    monkeypatch.setattr(command, "RungProcesses", lambda settings: fake)
    monkeypatch.setattr(command, "devices_named", lambda devices: (CPU,))
    return fake


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(build_app(), ["lab", "ladder", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_the_committed_records_make_the_committed_page(tmp_path: Path) -> None:
    (tmp_path / "verdicts").mkdir()
    records = list(command.REPORTS.glob("ladder-*.json"))
    for path in (*records, *command.REPORTS.glob("verdicts/ladder-*.json")):
        shutil.copy(path, tmp_path / path.relative_to(command.REPORTS))
    run("--render", "--output", tmp_path)
    assert (tmp_path / "ladder.md").read_text() == (command.REPORTS / "ladder.md").read_text()
    assert len(records) > 0
    for record in records:
        svg = ElementTree.parse(tmp_path / f"{record.stem}.svg").getroot()
        assert "0 rebuild" in "".join(svg.itertext())


def test_a_run_leaves_a_record_of_rungs_and_claims_and_their_page(
    processes: FakeProcesses, tmp_path: Path
) -> None:
    done = run("--output", tmp_path, "--machine", "mine", "--pairs", 8)
    assert done.exit_code == 0, done.output
    assert "Every rung generates the lowest one's tokens." in done.output
    record = json.loads((tmp_path / "ladder-mine.json").read_text())
    rungs, claims = record["results"]["rungs"], record["results"]["claims"]
    assert [rung["rung"] for rung in rungs] == [rung.label for rung in ON_CPU]
    findings = {claim["seed"]: claim["finding"] for claim in claims}
    assert findings == {"036": "faster", "038": "faster", "064": "equivalent", "065": "slower"}
    assert record["settings"]["plan"]["looks"][-1]["pairs"] == 8
    pairs = [claim["pairs"] for claim in claims]
    assert len(processes.ran) == len(ON_CPU) + 2 * sum(pairs)
    # A ratio for each figure that a claim reports.
    ratios = sum(count * figures for count, figures in zip(pairs, (2, 2, 3, 2), strict=True))
    assert sum("log_ratio" in sample for sample in record["samples"]) == ratios
    page = (tmp_path / "ladder.md").read_text()
    assert r"| 2 → 5 \* |" in page
    assert "Left out on this device" in page


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("claims", "fault", "code", "said"),
    [
        ("036", {}, 0, "036 block-table rows cached: faster"),
        ("", {}, 0, "ladder.md"),
        ("062", {}, 5, "claims 062."),
        ("036,062", {}, 5, "claims 062."),
        # No pair that counts.
        ("036", {"throttled": {0, 1}}, 5, "was throttled during both"),
        ("036", {"fails": {0}}, 1, "no such thing"),
    ],
)
def test_the_exit_code_says_what_became_of_the_claims(
    processes: FakeProcesses, tmp_path: Path, claims: str, fault: dict[str, Any], code: int, said
) -> None:
    for name, rungs in fault.items():
        setattr(processes, name, rungs)
    done = run("--output", tmp_path, "--rungs", "0-2", "--claims", claims, "--quick")
    assert done.exit_code == code
    assert said in done.output


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rungs", "3-4"], "none of --rungs 3-4 runs on cpu"),
        (["--rungs", "0-11"], "--rungs is '0-11'"),
        (["--claims", "1"], "--claims names '1'"),
        (["--pairs", "5"], "take at least 7"),
        (["--quick", "--output", command.REPORTS], "whole ladders of the reference machines"),
        (["--render", "--output", "/nowhere"], "holds no ladder-MACHINE.json"),
        (["--require-gpu"], "there is no GPU"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_runs(
    processes: FakeProcesses, arguments: list[object], sentence: str
) -> None:
    with pytest.raises((Refused, MeasurementFailed), match=sentence):
        run(*arguments)
    assert not processes.ran


@pytest.mark.thorough
def test_other_tokens_end_the_run(processes: FakeProcesses, tmp_path: Path) -> None:
    processes.checks = {2: ["c", "d", "x"]}
    with pytest.raises(MeasurementFailed, match="rung 2-batched-append generated other tokens"):
        run("--output", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_an_interruption_keeps_what_was_measured(
    processes: FakeProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "try_claims", interrupted)
    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "runs")
    assert run("--output", tmp_path).exit_code == 130
    [path] = (tmp_path / "runs").iterdir()
    assert len(json.loads(path.read_text())["results"]["rungs"]) == len(ON_CPU)
    assert processes.is_stopped


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rungs", "device", "pairs"),
    [
        (RUNGS, "cuda", ["036 0 1", "038 1 2", "062 3 4", "064 4 5", "065 5 6"]),
        # What needs kernels is left out, and the nearest rung stands in for the one before.
        (ON_CPU, "cpu", ["036 0 1", "038 1 2", "064 2 5", "065 5 6"]),
        # None stands in for a rung that was left out.
        ([RUNGS[0], RUNGS[2]], "cpu", []),
    ],
)
def test_a_machine_tries_the_claims_whose_rungs_it_runs(
    rungs: list[Rung], device: str, pairs: list[str]
) -> None:
    trials = trials_here(CLAIMS, rungs, device)
    found = [f"{one.claim.seed} {one.base.number} {one.head.number}" for one in trials]
    assert found == pairs


@pytest.mark.thorough
def test_pairs_say_how_much_faster_a_rung_is_and_take_turns_in_both_orders() -> None:
    fake, samples = FakeProcesses({0: 2e-3, 1: 1e-3}), []
    watcher = SimpleNamespace(ran=lambda *_: None, found=lambda *_: None)
    places = [Place(name="one")]
    trials = trials_here(CLAIMS[:1], RUNGS, "cuda")
    [claim] = try_claims(fake, trials, places, ComparisonPlan.with_cap(12), watcher, samples)
    assert claim.comparison.verdict is Verdict.FASTER
    throughput, tpot = claim.figures
    assert throughput.change == pytest.approx(1.0, rel=0.05)
    assert throughput.interval[0] < throughput.change < throughput.interval[1]
    assert (throughput.before, tpot.after) == pytest.approx((500, 1.0), rel=0.05)
    assert fake.firsts[:8] == [0, 1, 1, 0, 1, 0, 0, 1]


@pytest.mark.thorough
def test_tokens_come_when_they_would_have_without_the_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_in_turns, "TURN_STEPS", 3)
    # A step takes 10 ms, and each turn of the other process a fifth of a second.
    counting = SimpleNamespace(step=lambda: time.sleep(0.01) or [time.perf_counter()])
    other = SimpleNamespace(are_shared=True, pass_on=lambda: None, wait=lambda: time.sleep(0.2))
    engine = EngineInTurns(counting, other)
    times = [engine.step()[0] for _ in range(12)]
    assert len(engine.waits) == 3
    trace = RequestTrace(0.0, list(range(12)), list(times))
    of_turns = engine.take_waits_out(RunSample("online", 0.0, 1.0, 11, [trace]))
    assert len(of_turns) == 2
    assert all(0.01 <= seconds < 0.05 for seconds in of_turns)
    assert times[-1] - times[0] > 0.4
    assert 0.11 <= trace.token_times_s[-1] - trace.token_times_s[0] < 0.4


@pytest.mark.thorough
def test_disturbed_turns_of_either_are_left_out_and_common_load_cancels() -> None:
    base = np.full(8 * TURNS_OF_BLOCK, 2.0)
    head = 1.1 * base
    base[[3, 40]] *= 5
    head[[0, 17, 60]] *= 9
    assert paired_seconds([base], [head]) == pytest.approx((2.0, 2.2))
    load = np.exp(np.random.default_rng(0).normal(0, 0.3, (2, 8 * TURNS_OF_BLOCK)))
    base_s, head_s = paired_seconds(load, 1.01 * load)
    assert head_s / base_s == pytest.approx(1.01)
    assert paired_seconds([], []) is None


@pytest.mark.thorough
def test_a_real_process_measures_what_stood_there_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("engine", "kernels", "asv_bench"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(command.REPOSITORY / name, tmp_path / name, ignore=ignored)
    monkeypatch.setattr(rung_process, "REPOSITORY", tmp_path)
    begun = RungProcesses(RungSettings.on(CPU, "random:gpt2-tiny", quick=True))
    for edited in ("engine/__init__.py", "kernels/__init__.py"):
        (tmp_path / edited).write_text("raise RuntimeError('edited')\n")
    answer = begun.measure(RUNGS[2], ["streaming-small"], Place(), check=True)
    assert answer.check["parted"] == 0
    measured = answer.workloads["streaming-small"]
    assert (len(measured["runs"]), len(measured["digests"])) == (3, 32)
    assert all(0 < value < 10 for value in measured["figures"].values())


@pytest.mark.thorough
def test_counters_show_what_each_rung_saves() -> None:
    settings = RungSettings("random:gpt2-tiny", "cuda", "float16", quick=True, repeats=None)
    counted = RungProcesses(settings).count(RUNGS)
    steps = [counted[rung.label] for rung in RUNGS]
    layers, batch = 2, 64
    # One copy a step for all layers' tables, where there was one a layer.
    assert steps[0]["copies"] - steps[1]["copies"] == layers - 1
    # A batched append saves the calls of B tokens a layer.
    assert steps[1]["python_calls"] - steps[2]["python_calls"] > layers * batch
    # Attention of a layer, then its append too.
    assert [step["launches"] for step in steps[2:5]] == [layers, 2 * layers, 2 * layers]
    # Neither rows nor positions travel where the whole batch is appended to at one position.
    assert steps[3]["copies"] - steps[4]["copies"] == 2 * layers
    assert [step["graph_replays"] for step in steps] == [0] * 8 + [1] * 3
