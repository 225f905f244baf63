"""`run headline`: who may write the committed file, what a row is made of, what README says."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import asv_bench.cli.run as headline
from asv_bench.cli.commands import build_app
from asv_bench.cli.run import HEADLINE, headline_row, headline_table, process_at
from asv_bench.errors import MeasurementFailed, Refused
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
    for arguments in (["--quick"], ["--workloads", "single"]):
        assert "at full size" in refusal(*arguments)
    assert HEADLINE.read_bytes() == before
    # The table never takes the place of the figures.
    assert str(tmp_path / "own.md") in refusal("--output", str(tmp_path / "own.md"))


def test_a_row_is_the_median_over_processes(tmp_path: Path) -> None:
    def figures_of(**given: Any) -> dict[str, Any]:
        write_json(tmp_path / "process.json", child_record(**given))
        return process_at(tmp_path / "process.json")

    row = headline_row([figures_of(step_ms=step) for step in (0.5, 0.3, 0.4)])
    assert set(row) == ROW
    assert (row["workload"], row["engine"], row["batch"]) == ("scheduler", "kvtrail", 64)
    assert (row["step_ms"], row["fraction_of_floor"]) == (0.4, pytest.approx(0.5))
    assert (row["tokens_per_s"], row["ttft_ms"], row["itl_p99_ms"]) == (1000.0, 5.0, 1.3)
    row = headline_row([figures_of(floor_ms=None)])
    assert (row["floor_ms"], row["fraction_of_floor"]) == (None, None)


def test_a_failed_process_is_not_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_apart(command: list[str]) -> subprocess.CompletedProcess[str]:
        assert command[1:7] == ["-m", "asv_bench", "run", "wide", "--mode", "online"]
        assert command[-3:] == ["--quick", "--json", str(tmp_path / "x.json")]
        return subprocess.CompletedProcess(command, 1, "", "error: no memory left.\n")

    monkeypatch.setattr(headline, "run_apart", run_apart)
    with pytest.raises(MeasurementFailed, match=r"exit code 1.* said:\nerror: no memory left"):
        headline.run_process("wide", "wide", ["--quick"], tmp_path / "x.json")


@pytest.mark.parametrize("command", [["headline"], ["run", "headline"]])
def test_workloads_take_turns_and_an_interrupted_run_keeps_whole_rounds(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    contents: list[dict[str, Any]] = []
    output = tmp_path / "own.json"

    def run_process(label: str, workload: str, arguments: object, path: Path) -> None:
        if output.exists():
            contents.append(json.loads(output.read_text()))
        ran.append(label)
        write_json(path, child_record(step_ms=2.0 * int(label[-1]) - 1, workload=workload))

    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "runs")
    monkeypatch.setattr(headline, "run_process", run_process)
    arguments = ["--output", str(output), "--processes", "3", "--workloads", "wide,single"]
    done = run(*arguments, command=command)
    assert done.exit_code == 0, done.output
    turns = [f"{name}, process {process}" for process in (1, 2, 3) for name in ("wide", "single")]
    assert ran == turns
    contents.append(json.loads(output.read_text()))
    left = [one.pop("incomplete", "") for one in contents[::2]]
    assert left == ["2 of 6 processes", "4 of 6 processes", ""]
    assert [[row["step_ms"] for row in one["rows"]] for one in contents[::2]] == [
        *([1.0, 1.0], [2.0, 2.0], [3.0, 3.0])
    ]
    assert list(contents[-1]) == ["commit", "machine", "rows"]
    assert contents[-1]["machine"]["name"] == machine_facts().name
    assert [row["workload"] for row in contents[-1]["rows"]] == ["wide", "single"]
    (record,) = (tmp_path / "runs").glob("headline-*.json")
    assert len(json.loads(record.read_text())["results"]["processes"]) == 6


@pytest.mark.thorough
def test_a_real_process_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "runs")
    output = tmp_path / "own.json"
    arguments = ["--quick", "--workloads", "single", "--processes", "1"]
    done = run("--output", str(output), *arguments)
    assert done.exit_code == 0, done.output + repr(done.exception)
    (row,) = json.loads(output.read_text())["rows"]
    assert row["workload"] == "single-quick"
    assert row["step_ms"] == pytest.approx(1e3 / row["tokens_per_s"], rel=1e-6)
    assert 0 < row["tpot_ms"] < row["step_ms"] * 2


ROOT = Path(__file__).parents[3]


def test_the_readme_has_the_figures_of_the_records_that_it_names() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| .*\(\[record\]\((.*)\.md\)\) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) >= 2
    for path, cells in rows:
        results = json.loads((ROOT / f"{path}.json").read_text("utf-8"))["results"]["rows"]
        steps = {row["engine"]: f"{row['step_ms']:.3f}" for row in results}
        engines = ("kvtrail", "vllm", "transformers-static")
        assert [cell.strip(" *") for cell in cells.split("|")] == [steps[one] for one in engines]


@pytest.mark.parametrize("path", sorted((ROOT / "reports").glob("headline*.json")), ids=str)
def test_the_table_beside_a_record_is_of_its_rows(path: Path) -> None:
    table = headline_table(json.loads(path.read_text("utf-8"))["rows"], "").to_markdown()
    title, _, *lines = path.with_suffix(".md").read_text("utf-8").splitlines()
    assert json.loads(path.read_text("utf-8"))["commit"] in title
    assert lines == table.splitlines()
