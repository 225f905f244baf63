"""The command from its options to its files, with processes that measure nothing but once."""

from __future__ import annotations

import json
import re
import shutil
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from fake_rungs import FakeProcesses
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.measure.lives import Place
from asv_bench.measure.places import CPU
from asv_bench.measure.processes import LifeFailed
from asv_bench.studies.ladder import command, ladder_page, rung_process
from asv_bench.studies.ladder.engine_in_turns import TURN_STEPS
from asv_bench.studies.ladder.ladder_page import read_records, write_page
from asv_bench.studies.ladder.ladder_tables import agreement
from asv_bench.studies.ladder.rung_counters import COUNTERS
from asv_bench.studies.ladder.rung_process import RungProcesses, RungSettings
from asv_bench.studies.ladder.rungs import RUNGS

SECONDS = {0: 4e-3, 1: 3e-3, 2: 1e-3, 5: 1e-3, 6: 1.2e-3, 7: 0.5e-3}


@pytest.fixture
def processes(monkeypatch):
    """Stand in for the real ones; a rung takes what `SECONDS` says, within half a per cent."""
    fake = FakeProcesses(SECONDS, noise=0.002)
    monkeypatch.setattr(command, "RungProcesses", lambda settings: fake)
    monkeypatch.setattr(command, "devices_named", lambda devices: (CPU,))
    return fake


def _run(*arguments):
    done = CliRunner().invoke(build_app(), ["lab", "ladder", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_margin_says_which_difference_matters(processes, tmp_path):
    done = _run("--output", tmp_path, "--pairs", 8, "--claims", "036", "--margin", 50)
    assert done.exit_code == 0, done.output
    [record] = tmp_path.glob("*.json")
    [claim] = json.loads(record.read_text())["results"]["claims"]
    # It is a quarter faster.
    assert claim["finding"] == "equivalent"
    assert "equivalent is within 50 %" in " ".join((tmp_path / "ladder.md").read_text().split())


def test_a_run_prints_its_tables_and_writes_record_page_and_picture(processes, tmp_path):
    done = _run("--output", tmp_path, "--machine", "mine", "--pairs", 8)
    assert done.exit_code == 0, done.output
    assert "Every rung generates the lowest one's tokens." in done.output
    times = re.search(r"to 7-shared-table a step became (\S+) times", done.output)[1]
    assert float(times) == pytest.approx(8, rel=0.03)
    assert "036 block-table rows cached: faster" in done.output
    assert "ladder: 70 processes or so" in done.output
    record = json.loads((tmp_path / "ladder-mine.json").read_text())
    assert [rung["rung"] for rung in record["results"]["rungs"]] == [
        rung.label for rung in RUNGS if rung.needs == "any"
    ]
    findings = {claim["seed"]: claim["finding"] for claim in record["results"]["claims"]}
    assert findings == {
        "036": "faster", "038": "faster", "064": "equivalent", "065": "slower",
    }  # fmt: skip
    assert record["commit"]
    assert record["settings"]["plan"]["looks"][-1]["pairs"] == 8
    pairs = {claim["seed"]: claim["pairs"] for claim in record["results"]["claims"]}
    assert len(processes.ran) == 6 + 2 * sum(pairs.values())
    # Figures of each claim.
    ratios = sum(pairs[seed] * count for seed, count in zip(pairs, (2, 2, 3, 2), strict=True))
    assert sum("log_ratio" in sample for sample in record["samples"]) == ratios
    page = (tmp_path / "ladder.md").read_text()
    assert r"| 2 → 5 \* |" in page
    assert "stands in for it" in page
    assert f"took turns of {TURN_STEPS} steps" in page
    assert "Left out on this device" in page
    assert "![Waterfall of the rungs on mine](ladder-mine.svg)" in page
    svg = ElementTree.parse(tmp_path / "ladder-mine.svg").getroot()
    assert "0 rebuild" in "".join(svg.itertext())
    assert re.search(r"0\.(5|49)\d* ms  -5\d %", "".join(svg.itertext()))


def test_rendering_again_changes_nothing(processes, tmp_path):
    _run("--output", tmp_path, "--machine", "mine", "--rungs", "0-2", "--quick")
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    done = _run("--render", "--output", tmp_path)
    assert done.exit_code == 0
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert processes.ran


def test_quick_runs_say_so_and_try_with_fewer_pairs(processes, tmp_path):
    done = _run("--output", tmp_path, "--rungs", "0-2", "--claims", "036", "--quick")
    assert "Quick: a tenth of each workload" in done.output
    assert 0 < sum(not check for *_, check in processes.ran) <= 2 * 8


def test_claims_may_be_left_out(processes, tmp_path):
    done = _run("--output", tmp_path, "--claims", "", "--rungs", "2,7")
    assert done.exit_code == 0
    assert len(processes.ran) == 2
    assert "claims, tried here" not in done.output


def test_claims_whose_processes_fail_end_with_a_code_of_their_own(processes, tmp_path, monkeypatch):
    measure = processes.measure

    def fails_in_pairs(rung, workloads, place, *, check=False, variables=None):
        if not check:
            raise LifeFailed("it ended with exit code 1: no such thing")
        return measure(rung, workloads, place, check=check)

    monkeypatch.setattr(processes, "measure", fails_in_pairs)
    done = _run("--output", tmp_path, "--machine", "mine", "--rungs", "0-2", "--quick")
    assert done.exit_code == 1
    assert "no such thing" in done.output
    record = json.loads((tmp_path / "ladder-mine.json").read_text())
    assert {claim["finding"] for claim in record["results"]["claims"]} == {"failed"}


@pytest.mark.parametrize("claims", ["062", "036,062"])
def test_a_claim_that_was_asked_for_and_cannot_be_tried_is_named(processes, tmp_path, claims):
    done = _run("--output", tmp_path, "--rungs", "0-2", "--claims", claims, "--quick")
    assert done.exit_code == 5
    assert "Not tried" in done.output
    assert "claims 062." in done.output


def test_a_run_without_any_pair_that_counts_is_no_success(processes, tmp_path):
    processes.throttled = {0, 1, 2}
    done = _run("--output", tmp_path, "--rungs", "0-1", "--claims", "036", "--quick")
    assert done.exit_code == 5


def test_the_help_says_what_the_exit_codes_mean():
    assert "5: a claim" in " ".join(_run("--help").output.replace("│", " ").split())


@pytest.mark.thorough
def test_what_is_edited_meanwhile_is_not_measured(tmp_path, monkeypatch):
    for name in ("engine", "kernels", "asv_bench"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(command.REPOSITORY / name, tmp_path / name, ignore=ignored)
    monkeypatch.setattr(rung_process, "REPOSITORY", tmp_path)
    begun = RungProcesses(RungSettings.on(CPU, "random:gpt2-tiny", quick=True))
    for edited in ("engine/__init__.py", "kernels/__init__.py"):
        (tmp_path / edited).write_text("raise RuntimeError('edited')\n")
    for edited in (tmp_path / "asv_bench" / "studies" / "ladder").glob("*.py"):
        edited.write_text("raise RuntimeError('edited')\n")
    answer = begun.measure(RUNGS[1], ["streaming-small"], Place())
    assert answer.workloads["streaming-small"]["digests"]


def test_other_tokens_end_the_run(processes, tmp_path):
    processes.checks = {2: ["c", "d", "x"]}
    with pytest.raises(MeasurementFailed, match="rung 2-batched-append generated other tokens"):
        _run("--output", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rungs", "3-4"], "none of --rungs 3-4 runs on cpu"),
        (["--rungs", "0-11"], "--rungs is '0-11'"),
        (["--claims", "1"], "--claims names '1'"),
        (["--pairs", "5"], "take at least 7"),
        (["--quick", "--output", command.REPORTS], "whole ladders of the reference machines"),
        (["--render", "--output", "/nowhere"], "holds no ladder-MACHINE.json"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_runs(processes, arguments, sentence):
    with pytest.raises(Refused, match=sentence):
        _run(*arguments)
    assert not processes.ran


def test_a_gpu_may_be_demanded(processes):
    with pytest.raises(MeasurementFailed, match="--require-gpu"):
        _run("--require-gpu")


def test_an_interruption_keeps_what_was_measured(processes, tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "try_claims", interrupted)
    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "runs")
    done = _run("--output", tmp_path)
    assert done.exit_code == 130
    [path] = (tmp_path / "runs").iterdir()
    record = json.loads(path.read_text())
    assert len(record["results"]["rungs"]) == 6
    assert "The run was interrupted before its end." in record["notes"]
    assert processes.is_stopped


def test_whole_ladders_of_reference_machines_go_to_the_reports(tmp_path):
    reference = SimpleNamespace(name="h200", is_reference=True)
    own = SimpleNamespace(name="own-box", is_reference=False)
    assert command._target(reference, None, None, is_whole=True) == (
        command.REPORTS / "ladder-h200.json"
    )
    assert command._target(reference, None, None, is_whole=False).parent == command.RUNS
    assert command._target(own, None, None, is_whole=True).parent == command.RUNS
    assert command._target(own, "h200", command.REPORTS, is_whole=True).name == "ladder-h200.json"


def test_gpus_come_first_on_the_page(processes, tmp_path):
    for name, gpu in (("a", None), ("b", "NVIDIA H200")):
        _run("--output", tmp_path, "--machine", name, "--rungs", "0-2", "--quick")
        path = tmp_path / f"ladder-{name}.json"
        record = json.loads(path.read_text())
        record["machine"]["gpu"] = gpu
        path.write_text(json.dumps(record))
    assert list(read_records(tmp_path)) == ["b", "a"]
    page = write_page(tmp_path).read_text()
    assert page.index("## b") < page.index("## a")
    assert page.startswith(ladder_page.INTRODUCTION)


def test_tokens_that_part_are_not_called_the_same():
    plain = {"rung": "8-graph", "parted": 0}
    fused = {"rung": "9-fused", "parted": 4}
    assert agreement([plain]) == "Every rung generates the lowest one's tokens."
    assert agreement([plain, fused]).startswith(
        "Every rung generates the lowest one's tokens, but for near ties"
    )
    assert "at a proven near tie: 4 in 9-fused." in agreement([plain, fused])


@pytest.fixture(scope="module")
def real() -> RungProcesses:
    return RungProcesses(RungSettings.on(CPU, "random:gpt2-tiny", quick=True))


@pytest.mark.thorough
def test_a_real_process_checks_and_measures(real):
    answer = real.measure(RUNGS[2], ["streaming-small"], Place(), check=True)
    assert answer.check["parted"] == 0
    assert len(answer.check["digests"]) == 12
    measured = answer.workloads["streaming-small"]
    assert len(measured["runs"]) == 3
    assert len(measured["digests"]) == 32
    assert all(0 < value < 10 for value in measured["figures"].values())
    assert measured["figures"] == min(measured["runs"], key=lambda run: run["step_time"])
    assert answer.process_s > 0


@pytest.mark.thorough
def test_counters_show_what_each_rung_saves():
    settings = RungSettings("random:gpt2-tiny", "cuda", "float16", quick=True, repeats=None)
    counted = RungProcesses(settings).count(RUNGS)
    steps = [counted[rung.label] for rung in RUNGS]
    layers, batch = 2, 64
    assert all(set(step) == set(COUNTERS) for step in steps)
    # One copy a step for all layers' tables, where there was one a layer.
    assert steps[0]["copies"] - steps[1]["copies"] == layers - 1
    # A batched append saves the calls of B tokens a layer, and their operators.
    assert steps[1]["python_calls"] - steps[2]["python_calls"] > layers * batch
    assert steps[1]["operators"] - steps[2]["operators"] > 4 * layers * (batch - 2)
    # Attention of a layer, then its append too.
    assert [step["launches"] for step in steps[2:5]] == [layers, 2 * layers, 2 * layers]
    # Neither rows nor positions travel where the whole batch is appended to at one position.
    assert steps[3]["copies"] - steps[4]["copies"] == 2 * layers
    # No named tuple is made for each token.
    assert steps[4]["python_calls"] - steps[5]["python_calls"] == layers * batch
    assert [step["graph_replays"] for step in steps] == [0] * 8 + [1] * 3
    assert steps[7]["copies"] == 0, "the device writes tokens where the host reads them"
    assert steps[10]["operators"] < 10
