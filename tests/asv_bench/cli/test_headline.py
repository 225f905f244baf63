"""`run headline`: who may write the committed file, what a row is made of, and what is resumed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import asv_bench.cli.headline as headline
from asv_bench.cli.commands import build_app
from asv_bench.cli.headline import HEADLINE, child_figures, headline_row, measured_or_kept
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.working_tree import WorkingTree
from asv_bench.output.record import write_json
from asv_bench.process.machine import machine_facts

ROW = {
    *("workload", "engine", "batch", "step_ms", "tokens_per_s", "ttft_ms", "tpot_ms"),
    *("itl_p99_ms", "floor_ms", "fraction_of_floor"),
}


def child_record(
    step_ms: float = 0.4, floor_ms: float | None = 0.2, workload: str = "scheduler"
) -> dict[str, Any]:
    def summary(value: float) -> dict[str, float]:
        return {"mean": -1.0, "p50": value, "p95": -1.0, "p99": value + 1}

    result = {
        "step_ms": step_ms,
        "total_tokens_per_s": summary(1000.0),
        "ttft_ms": summary(5.0),
        "tpot_ms": summary(0.3),
        "itl_ms": summary(0.3),
        "floor_ms": floor_ms,
        "fraction_of_floor": None if floor_ms is None else floor_ms / step_ms,
    }
    return {
        "settings": {"workload": {"name": workload, "batch_size": 64}},
        "gpu_state": {"before": None, "after": None},
        "results": {"modes": {"online": result}},
    }


def run(*arguments: str, command: Sequence[str] = ("headline",)) -> Result:
    return CliRunner().invoke(build_app(), [*command, *arguments])


def refusal(*arguments: str) -> str:
    done = run(*arguments)
    assert isinstance(done.exception, Refused)
    return str(done.exception)


def test_only_a_reference_machine_writes_the_committed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = HEADLINE.read_bytes()
    own, reference = (replace(machine_facts(), name=name) for name in ("own-box", "h200"))
    monkeypatch.setattr(headline, "machine_facts", lambda: own)
    for arguments in ([], ["--quick"], ["--workloads", "single"]):
        said = refusal(*arguments)
        assert "this one is 'own-box'; say where its own goes with --output" in said
    monkeypatch.setattr(headline, "machine_facts", lambda: reference)
    for arguments in (["--quick"], ["--workloads", "single"], ["--model", "random:gpt2"]):
        assert "at full size with the built-in model" in refusal(*arguments)
    assert HEADLINE.read_bytes() == before
    # The table never takes the place of the figures.
    assert str(tmp_path / "own.md") in refusal("--output", str(tmp_path / "own.md"))


def test_a_row_is_the_median_over_processes() -> None:
    row = headline_row([child_figures(child_record(step)) for step in (0.5, 0.3, 0.4)])
    assert set(row) == ROW
    assert (row["workload"], row["engine"], row["batch"]) == ("scheduler", "kvtrail", 64)
    assert (row["step_ms"], row["fraction_of_floor"]) == (0.4, pytest.approx(0.5))
    assert (row["tokens_per_s"], row["ttft_ms"], row["itl_p99_ms"]) == (1000.0, 5.0, 1.3)
    row = headline_row([child_figures(child_record(floor_ms=None))])
    assert (row["floor_ms"], row["fraction_of_floor"]) == (None, None)


def test_a_throttled_gpu_is_reported(tmp_path: Path) -> None:
    path, notes = tmp_path / "wide-0.json", list[str]()
    record = child_record()
    record["gpu_state"]["before"] = {"throttled": False, "clock_events": []}
    record["gpu_state"]["after"] = {"throttled": True, "clock_events": ["sw_power_cap"]}
    write_json(path, record)
    measured_or_kept("wide, process 1", "wide", [], path, notes)
    assert notes == ["wide, process 1: the GPU was throttled after the runs (sw_power_cap)."]


def test_a_failed_process_is_not_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_apart(command: list[str]) -> subprocess.CompletedProcess[str]:
        assert command[1:7] == ["-m", "asv_bench", "run", "wide", "--mode", "online"]
        assert command[-3:] == ["--quick", "--json", str(tmp_path / "x.json")]
        return subprocess.CompletedProcess(command, 1, "", "error: no memory left.\n")

    monkeypatch.setattr(headline, "run_apart", run_apart)
    with pytest.raises(MeasurementFailed, match=r"exit code 1.* said:\nerror: no memory left"):
        measured_or_kept("wide", "wide", ["--quick"], tmp_path / "x.json", [])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs are kept, of a tree that is as it was committed."""
    runs = tmp_path / "runs"
    monkeypatch.setattr("asv_bench.output.record.RUNS", runs)
    monkeypatch.setattr(headline, "working_tree", lambda _: WorkingTree("0" * 40))
    return runs


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    output = str(tmp_path / "own.json")
    return ["--output", output, "--processes", "3", "--workloads", "wide,single"]


def scripted(monkeypatch: pytest.MonkeyPatch, most: int = 99) -> list[tuple[str, str]]:
    """Processes that leave their records as real ones do; all after `most` of them fail."""
    ran: list[tuple[str, str]] = []

    def run_process(label: str, workload: str, arguments: object, path: Path) -> None:
        if len(ran) == most:
            raise MeasurementFailed("no time left")
        ran.append((workload, label[-1]))
        write_json(path, child_record(step_ms=2.0 * int(label[-1]) - 1, workload=workload))

    monkeypatch.setattr(headline, "run_process", run_process)
    return ran


def turns(*processes: str) -> list[tuple[str, str]]:
    return [(name, process) for process in processes for name in ("wide", "single")]


@pytest.mark.parametrize("command", [["headline"], ["run", "headline"]])
def test_workloads_take_turns_and_the_file_has_the_schema(
    command: list[str], arguments: list[str], monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    ran = scripted(monkeypatch)
    done = run(*arguments, command=command)
    assert done.exit_code == 0, done.output
    assert ran == turns("1", "2", "3")
    content = json.loads(Path(arguments[1]).read_text())
    assert list(content) == ["commit", "machine", "rows"]
    assert content["machine"]["name"] == machine_facts().name
    assert [row["workload"] for row in content["rows"]] == ["wide", "single"]
    assert all(set(row) == ROW and row["step_ms"] == 3.0 for row in content["rows"])
    (record,) = runs.glob("headline-*.json")
    assert len(json.loads(record.read_text())["results"]["processes"]) == 6


def test_a_run_that_was_cut_short_keeps_whole_rounds_and_goes_on_where_it_was(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    output = Path(arguments[1])
    first = scripted(monkeypatch, most=3)
    assert isinstance(run(*arguments).exception, MeasurementFailed)
    content = json.loads(output.read_text())
    assert content["incomplete"] == "2 of 6 processes"
    assert [(row["workload"], row["step_ms"]) for row in content["rows"]] == [
        ("wide", 1.0),
        ("single", 1.0),
    ]
    title, _, *table = output.with_suffix(".md").read_text().splitlines()
    assert title.endswith(", 2 of 6 processes")
    assert [line.split(" | ")[3] for line in table[2:]] == ["1.000", "1.000"]

    second = scripted(monkeypatch)
    done = run(*arguments, "--resume")
    assert done.exit_code == 0, done.output
    assert "3 processes had run before." in done.output
    assert first + second == turns("1", "2", "3")
    content = json.loads(output.read_text())
    assert "incomplete" not in content
    assert [row["step_ms"] for row in content["rows"]] == [3.0, 3.0]
    (record,) = runs.glob("headline-*.json")
    assert json.loads(record.read_text())["notes"] == ["3 processes had run before."]
    assert "was cut short: nothing was measured" in refusal(*arguments, "--resume")


def test_what_a_process_left_wrong_is_named_and_measured_again(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    scripted(monkeypatch, most=5)
    run(*arguments)
    (torn,) = runs.glob("*/wide-0.json")
    torn.write_text(torn.read_text()[:50])
    (foreign,) = runs.glob("*/single-0.json")
    foreign.write_text("{}")
    other = runs / "headline-of-another" / "run.json"
    other.parent.mkdir()
    other.write_text('{"settings": ')
    ran = scripted(monkeypatch)
    done = run(*arguments, "--resume")
    assert done.exit_code == 0, done.output
    assert ran == [*turns("1"), ("single", "3")]
    said = " ".join(done.output.split())
    assert f"{torn} is not JSON" in said
    assert f"{foreign} is not the record of a process" in said
    assert f"{other} is not JSON" in said


def test_only_the_same_run_is_resumed(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    scripted(monkeypatch, most=1)
    run(*arguments)
    assert len(list(runs.glob("*/wide-0.json"))) == 1
    ran = scripted(monkeypatch)
    assert "no headline of this commit" in refusal(*arguments, "--resume", "--processes", "7")
    with monkeypatch.context() as other:
        other.setenv("OMP_NUM_THREADS", "2")
        assert "no headline of this commit" in refusal(*arguments, "--resume")
    for tree, sentence in (
        (WorkingTree("1" * 40), "no headline of this commit"),
        (WorkingTree("0" * 40, ("engine/x.py",)), "the tree differs from its commit"),
    ):
        monkeypatch.setattr(headline, "working_tree", lambda _, tree=tree: tree)
        assert sentence in refusal(*arguments, "--resume")
    assert ran == []


@pytest.mark.thorough
def test_a_real_process_end_to_end(tmp_path: Path, runs: Path) -> None:
    output = tmp_path / "own.json"
    arguments = ["--quick", "--workloads", "single", "--processes", "1", "--device", "cpu"]
    done = run("--output", str(output), *arguments)
    assert done.exit_code == 0, done.output + repr(done.exception)
    (row,) = json.loads(output.read_text())["rows"]
    assert row["workload"] == "single-quick"
    assert row["step_ms"] == pytest.approx(1e3 / row["tokens_per_s"], rel=1e-6)
    assert 0 < row["tpot_ms"] < row["step_ms"] * 2
