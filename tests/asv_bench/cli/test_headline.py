"""`headline`: who may write the committed file, and what a row is made of."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import asv_bench.cli.headline as headline
import asv_bench.run.jobs as jobs
from asv_bench.__main__ import build_app
from asv_bench.cli.headline import HEADLINE
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.working_tree import WorkingTree
from asv_bench.output.record import write_json
from asv_bench.process.machine import machine_facts
from asv_bench.run.jobs import (
    Job,
    child_figures,
    engine_jobs,
    headline_row,
    run_job,
    throttle_warnings,
)

ROW = {
    "workload",
    "engine",
    "batch",
    "step_ms",
    "tokens_per_s",
    "ttft_ms",
    "tpot_ms",
    "itl_p99_ms",
    "floor_ms",
    "fraction_of_floor",
}


def child_record(step_ms: float = 0.4, floor_ms: float | None = 0.2) -> dict[str, Any]:
    def summary(value: float) -> dict[str, float]:
        return {"mean": -1.0, "p50": value, "p95": -1.0, "p99": value + 1}

    return {
        "settings": {"workload": {"name": "scheduler", "batch_size": 64}},
        "gpu_state": {"before": None, "after": None},
        "results": {
            "modes": {
                "online": {
                    "step_ms": step_ms,
                    "total_tokens_per_s": summary(1000.0),
                    "ttft_ms": summary(5.0),
                    "tpot_ms": summary(0.3),
                    "itl_ms": summary(0.3),
                    "floor_ms": floor_ms,
                    "fraction_of_floor": None if floor_ms is None else floor_ms / step_ms,
                }
            }
        },
    }


@pytest.fixture
def job() -> Job:
    return engine_jobs(["wide"], 1, ["--device", "cpu"])[0]


def test_only_a_reference_machine_writes_the_committed_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(name: str, *arguments: str) -> str:
        facts = replace(machine_facts(), name=name)
        monkeypatch.setattr(headline, "machine_facts", lambda: facts)
        done = CliRunner().invoke(build_app(), ["headline", *arguments])
        assert isinstance(done.exception, Refused)
        return str(done.exception)

    assert "this one is 'own-box'; say where its own goes with --output" in refused("own-box")
    assert "at full size with the built-in model" in refused("h200", "--quick")


@pytest.mark.parametrize("arguments", [[], ["--quick"], ["--workloads", "single"]])
def test_elsewhere_nothing_is_measured_or_changed(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRAIL_MACHINE", "box")
    before = HEADLINE.read_bytes() if HEADLINE.exists() else None
    done = CliRunner().invoke(build_app(), ["headline", *arguments])
    assert isinstance(done.exception, Refused)
    assert (HEADLINE.read_bytes() if HEADLINE.exists() else None) == before


def test_the_table_never_takes_the_place_of_the_figures(tmp_path: Path) -> None:
    output = tmp_path / "own.md"
    done = CliRunner().invoke(build_app(), ["headline", "--output", str(output)])
    assert isinstance(done.exception, Refused)
    assert str(output) in str(done.exception)


def test_a_row_is_the_median_over_processes() -> None:
    figures = [child_figures(child_record(step)) for step in (0.5, 0.3, 0.4)]
    row = headline_row(figures)
    assert set(row) == ROW
    assert (row["workload"], row["engine"], row["batch"]) == ("scheduler", "kvtrail", 64)
    assert row["step_ms"] == 0.4
    assert row["fraction_of_floor"] == pytest.approx(0.5)
    assert (row["tokens_per_s"], row["ttft_ms"], row["itl_p99_ms"]) == (1000.0, 5.0, 1.3)


def test_without_a_floor_the_row_says_so() -> None:
    row = headline_row([child_figures(child_record(floor_ms=None))])
    assert row["floor_ms"] is None
    assert row["fraction_of_floor"] is None


def test_a_throttled_gpu_is_reported(job: Job) -> None:
    record = child_record()
    assert throttle_warnings(job.label, record["gpu_state"]) == []
    record["gpu_state"]["after"] = {"throttled": True, "clock_events": ["sw_power_cap"]}
    (sentence,) = throttle_warnings(job.label, record["gpu_state"])
    assert "wide, process 1" in sentence
    assert "throttled after the runs (sw_power_cap)" in sentence


def test_a_failed_process_is_not_a_figure(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_apart(command: list[str]) -> subprocess.CompletedProcess[str]:
        assert command[1:5] == ["-m", "asv_bench", "run", "wide"]
        assert command[-2:] == ["--json", str(tmp_path / "x.json")]
        return subprocess.CompletedProcess(command, 1, "", "error: no memory left.\n")

    monkeypatch.setattr(jobs, "run_apart", run_apart)
    with pytest.raises(MeasurementFailed, match=r"exit code 1.* said:\nerror: no memory left"):
        run_job(job, tmp_path / "x.json")


def test_workloads_take_turns_and_the_file_has_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, int]] = []

    def run_job(job: Job, record: Path) -> dict[str, Any]:
        order.append((job.workload, job.process))
        content = child_record(step_ms=1.0 + job.process)
        content["settings"]["workload"]["name"] = job.workload
        return content

    monkeypatch.setattr(jobs, "run_job", run_job)
    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "runs")
    output = tmp_path / "own.json"
    arguments = ["--output", str(output), "--processes", "3", "--workloads", "wide,single"]
    done = CliRunner().invoke(build_app(), ["headline", *arguments])
    assert done.exit_code == 0, done.output
    assert order == [(name, n) for n in range(3) for name in ("wide", "single")]
    content = json.loads(output.read_text())
    assert list(content) == ["commit", "machine", "rows"]
    assert content["machine"]["name"] == machine_facts().name
    assert [row["workload"] for row in content["rows"]] == ["wide", "single"]
    assert all(set(row) == ROW and row["step_ms"] == 2.0 for row in content["rows"])
    (record,) = (tmp_path / "runs").glob("headline-*.json")
    assert len(json.loads(record.read_text())["results"]["processes"]) == 6


def test_what_was_measured_before_a_failure_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole rounds of the workloads only, so that all rows are medians of as many processes."""

    def run_job(job: Job, record: Path) -> dict[str, Any]:
        if (job.workload, job.process) == ("single", 2):
            raise MeasurementFailed("no memory left")
        content = child_record(step_ms=1.0 + 2 * job.process)
        content["settings"]["workload"]["name"] = job.workload
        return content

    monkeypatch.setattr(jobs, "run_job", run_job)
    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "runs")
    output = tmp_path / "own.json"
    arguments = ["--output", str(output), "--workloads", "wide,single"]
    done = CliRunner().invoke(build_app(), ["headline", *arguments])
    assert isinstance(done.exception, MeasurementFailed)
    content = json.loads(output.read_text())
    assert content["incomplete"] == "4 of 10 processes"
    assert [(row["workload"], row["step_ms"]) for row in content["rows"]] == [
        ("wide", 2.0),
        ("single", 2.0),
    ]
    title, _, *table = output.with_suffix(".md").read_text().splitlines()
    assert title.endswith(", 4 of 10 processes")
    assert [line.split(" | ")[3] for line in table[2:]] == ["2.000", "2.000"]


@pytest.fixture
def kept_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs are kept, of a tree that is as it was committed."""
    runs = tmp_path / "runs"
    monkeypatch.setattr("asv_bench.output.record.RUNS", runs)
    monkeypatch.setattr(headline, "working_tree", lambda _: WorkingTree("0" * 40))
    return runs


def scripted_jobs(monkeypatch: pytest.MonkeyPatch, most: int) -> list[tuple[str, int]]:
    """Processes that leave their records as real ones do; all after `most` of them fail."""
    ran: list[tuple[str, int]] = []

    def run_job(job: Job, record: Path) -> dict[str, Any]:
        if len(ran) == most:
            raise MeasurementFailed("no time left")
        ran.append((job.workload, job.process))
        content = child_record(step_ms=1.0 + 2 * job.process)
        content["settings"]["workload"]["name"] = job.workload
        write_json(record, content)
        return content

    monkeypatch.setattr(jobs, "run_job", run_job)
    return ran


def test_a_run_that_was_cut_short_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_runs: Path
) -> None:
    output = tmp_path / "own.json"
    arguments = ["headline", "--output", str(output), "--processes", "3"]
    arguments += ["--workloads", "wide,single"]
    first = scripted_jobs(monkeypatch, most=3)
    assert isinstance(CliRunner().invoke(build_app(), arguments).exception, MeasurementFailed)
    second = scripted_jobs(monkeypatch, most=99)
    done = CliRunner().invoke(build_app(), [*arguments, "--resume"])
    assert done.exit_code == 0, done.output
    assert "3 processes had run before." in done.output
    assert first == [("wide", 0), ("single", 0), ("wide", 1)]
    assert second == [("single", 1), ("wide", 2), ("single", 2)]
    content = json.loads(output.read_text())
    assert "incomplete" not in content
    assert [row["step_ms"] for row in content["rows"]] == [3.0, 3.0]
    (record,) = kept_runs.glob("headline-*.json")
    assert json.loads(record.read_text())["notes"] == ["3 processes had run before."]
    again = CliRunner().invoke(build_app(), [*arguments, "--resume"])
    assert isinstance(again.exception, Refused)
    assert "was cut short: nothing was measured" in str(again.exception)


def test_what_a_process_left_wrong_is_named_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_runs: Path
) -> None:
    arguments = ["headline", "--output", str(tmp_path / "own.json"), "--processes", "2"]
    arguments += ["--workloads", "wide,single"]
    scripted_jobs(monkeypatch, most=3)
    CliRunner().invoke(build_app(), arguments)
    (torn,) = kept_runs.glob("*/wide-0.json")
    torn.write_text(torn.read_text()[:50])
    (foreign,) = kept_runs.glob("*/single-0.json")
    foreign.write_text("{}")
    other = kept_runs / "headline-of-another" / "run.json"
    other.parent.mkdir()
    other.write_text('{"settings": ')
    ran = scripted_jobs(monkeypatch, most=99)
    done = CliRunner().invoke(build_app(), [*arguments, "--resume"])
    assert done.exit_code == 0, done.output
    assert ran == [("wide", 0), ("single", 0), ("single", 1)]
    said = " ".join(done.output.split())
    assert f"{torn} is not JSON" in said
    assert f"{foreign} is not the record of a process" in said
    assert f"{other} is not JSON" in said


def test_only_the_same_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_runs: Path
) -> None:
    arguments = ["headline", "--output", str(tmp_path / "own.json"), "--workloads", "single"]
    scripted_jobs(monkeypatch, most=1)
    CliRunner().invoke(build_app(), arguments)
    assert len(list(kept_runs.glob("*/single-0.json"))) == 1
    ran = scripted_jobs(monkeypatch, most=99)

    def refusal(*more: str) -> str:
        done = CliRunner().invoke(build_app(), [*arguments, "--resume", *more])
        assert isinstance(done.exception, Refused)
        return str(done.exception)

    assert "no headline of this commit" in refusal("--processes", "7")
    monkeypatch.setattr(headline, "working_tree", lambda _: WorkingTree("1" * 40))
    assert "no headline of this commit" in refusal()
    monkeypatch.setattr(headline, "working_tree", lambda _: WorkingTree("0" * 40, ("engine/x.py",)))
    assert "the tree differs from its commit" in refusal()
    assert ran == []


def test_a_real_process_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "runs")
    output = tmp_path / "own.json"
    arguments = ["--quick", "--workloads", "single", "--processes", "1", "--device", "cpu"]
    done = CliRunner().invoke(build_app(), ["headline", "--output", str(output), *arguments])
    assert done.exit_code == 0, done.output + repr(done.exception)
    (row,) = json.loads(output.read_text())["rows"]
    assert row["workload"] == "single-quick"
    assert row["step_ms"] == pytest.approx(1e3 / row["tokens_per_s"], rel=1e-6)
    assert 0 < row["tpot_ms"] < row["step_ms"] * 2
