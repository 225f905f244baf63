"""`run`, its presets and `run headline`: what they print, refuse and write down."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from click.testing import Result
from toy_project import run_ruler
from typer.testing import CliRunner

from asv_bench.__main__ import main
from asv_bench.cli import run as headline
from asv_bench.cli.commands import build_app
from asv_bench.cli.run import COLUMNS, HEADLINE, figures_of, headline_row
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.explain.trace import read_events
from asv_bench.output.record import REPOSITORY, write_json
from asv_bench.output.table import Table
from asv_bench.process.machine import machine_facts
from asv_bench.run.measure import Measurement
from asv_bench.run.settings import RunFlags, settle
from asv_bench.workloads.named import WORKLOADS

# The names that the write-ups use.
FLAGS = """
--hf-model-id --checkpoint-path --tokenizer-name --device --bf16 --prompt --prompts --pretok
--num-requests --max-batch-size --max-new-tokens --temperature --top-k --top-p --do-sample
--no-stop-on-eos --mode --no-prefix-cache --keep-prefix-cache-across-runs --profile
--profile-dir --warmup-runs --repeat-runs --print-per-run --paged-attn --cuda-graph
--prompt-repeats --unique-prompts --pretok-base-token-ids --tokenize-workers --stream-interval
--submit-interval-ms --submit-schedule --prefill-max-batch-size --prefill-max-tokens
--prefill-admission-policy --prefill-admission-lookahead --prefill-force-fifo-every
--max-active-requests --max-inflight-requests --decode-first --nvtx
"""

SMALL: dict[str, Any] = {"device": "cpu", "num_requests": 3, "max_batch_size": 4}
SMALL |= {"max_new_tokens": 5, "warmup_runs": 0, "repeat_runs": 1}
WORDS = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]


def measured(tmp_path: Path, *arguments: str, command: str = "scheduler") -> dict[str, Any]:
    path = tmp_path / "run.json"
    done = CliRunner().invoke(
        build_app(),
        [*command.split(), *WORDS, "--json", str(path), *arguments],
        env={"COLUMNS": "120"},
    )
    assert done.exit_code == 0, done.output + repr(done.exception)
    content: dict[str, Any] = json.loads(path.read_text())
    content["printed"] = done.output
    return content


@pytest.mark.parametrize("command", ["scheduler", "streaming"])
def test_every_flag_of_the_write_ups_is_there(command: str) -> None:
    group: Any = typer.main.get_command(build_app())
    known = {
        name for one in group.commands[command].params for name in one.opts + one.secondary_opts
    }
    assert set(FLAGS.split()) <= known


def test_every_workload_is_listed_and_can_be_run() -> None:
    listed = CliRunner().invoke(build_app(), ["run", "--list"]).output.splitlines()
    assert [line.split()[0] for line in listed] == list(WORKLOADS)
    group: Any = typer.main.get_command(build_app())
    assert set(group.commands["run"].commands) == {*WORKLOADS, "headline"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--cuda-graph"], "CUDA graphs need a CUDA device"),
        (["--dtype", "int4"], "dtype is 'int4'; it must be one of auto"),
        (["--quantization", "int3"], "quantization is 'int3'; it must be 'fp8'"),
        (["--hf-model-id", "random:nothing"], "random:nothing"),
    ],
)
def test_a_refusal_is_one_sentence_and_exit_code_two(
    arguments: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["asv_bench", "scheduler", "--device", "cpu", *arguments])
    with pytest.raises(SystemExit, match=r"^2$"):
        main()
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert sentence in said


def test_the_record_holds_samples_machine_and_settings(tmp_path: Path) -> None:
    content = measured(tmp_path, "--repeat-runs=2", "--warmup-runs=1", "--print-per-run")
    assert content["command"] == "scheduler"
    assert len(content["samples"]) == 2
    for sample in content["samples"]:
        assert sample["generated_tokens"] == 15
        assert [len(request["token_times_s"]) for request in sample["requests"]] == [5, 5, 5]
    assert content["settings"]["engine"]["model"] == "random:gpt2-tiny"
    assert content["settings"]["flags"]["num_requests"] == 3
    assert content["results"]["engine"]["dtype"] == "float32"
    result = content["results"]["modes"]["online"]
    walls = [sample["wall_s"] for sample in content["samples"]]
    assert result["step_ms"] == pytest.approx(1e3 * sum(walls) / 2 / 5)
    assert result["total_tokens_per_s"]["mean"] == pytest.approx(
        (15 / walls[0] + 15 / walls[1]) / 2
    )
    assert result["same_tokens_each_run"] is True
    assert result["floor_ms"] is None
    for word in ("TTFT", "TPOT", "ITL", "latency", "decode time", "p50", "mean", "run 2 online"):
        assert word in content["printed"]


def test_modes_and_runs_generate_the_same_tokens_unless_another_seed_draws(tmp_path: Path) -> None:
    def digests(*arguments: str) -> set[str]:
        content = measured(tmp_path, *arguments, command="run scheduler")
        assert all(mode["same_tokens_each_run"] for mode in content["results"]["modes"].values())
        return {sample["token_digest"] for sample in content["samples"]}

    greedy = digests("--mode=all")
    sampled = digests("--temperature=2", "--repeat-runs=2")
    other = digests("--temperature=2", "--seed=5")
    assert [*map(len, (greedy, sampled, other, greedy | sampled | other))] == [1, 1, 1, 3]


@pytest.mark.thorough
@pytest.mark.thorough
def test_ranks_generate_the_tokens_of_one_and_the_record_has_their_memory(tmp_path: Path) -> None:
    one = measured(tmp_path)
    two = measured(tmp_path, "--tensor-parallel-size=2", "--prefix-cache", "--repeat-runs=2")
    digests = {sample["token_digest"] for sample in one["samples"] + two["samples"]}
    assert len(digests) == 1
    first, second = two["results"]["modes"]["online"]["ranks"]
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["cache"] == second["cache"] > 0
    assert "ranks" not in one["results"]["modes"]["online"]


def test_weights_in_eight_bits_are_asked_for_by_an_option(tmp_path: Path) -> None:
    content = measured(tmp_path, "--quantization=fp8", "--model=random:qwen3-tiny")
    assert content["settings"]["engine"]["quantization"] == "fp8"


def test_profile_and_nvtx_leave_a_trace_with_the_ranges_named(tmp_path: Path) -> None:
    # With text, whose tokenizer is the engine's: it is imported with its ranges all the same.
    words = '{"model": {"type": "WordLevel", "vocab": {"fox": 7}, "unk_token": "fox"}}'
    (tmp_path / "words.json").write_text(words)
    done = run_ruler(
        *(REPOSITORY, "scheduler", *WORDS, "--nvtx", "--profile", "--prompt", "fox"),
        *("--tokenizer-name", str(tmp_path / "words.json"), "--profile-dir", str(tmp_path)),
        *("--json", str(tmp_path / "run.json")),
    )
    assert done.returncode == 0, done.stderr
    (trace,) = tmp_path.glob("*.trace.json.gz")
    assert {"schedule", "forward", "sampling"} <= {entry.name for entry in read_events(trace)}
    assert len(json.loads((tmp_path / "run.json").read_text())["samples"]) == 1


def test_the_table_and_the_record_have_the_percentiles(tmp_path: Path) -> None:
    arguments = ["--num-requests=4", "--stream-interval=2", "--repeat-runs=2"]
    content = measured(tmp_path, *arguments, command="streaming")
    result = content["results"]["modes"]["online"]
    requests = [request for sample in content["samples"] for request in sample["requests"]]
    gaps = [1e3 * gap for request in requests for gap in np.diff(request["token_times_s"])]
    assert len(gaps) == 2 * 4 * 4
    first = [1e3 * (one["token_times_s"][0] - one["submitted_s"]) for one in requests]
    # Times in the record are rounded to 0.1 us.
    assert result["itl_ms"]["p99"] == pytest.approx(np.percentile(gaps, 99), abs=1e-3)
    assert result["ttft_ms"]["p95"] == pytest.approx(np.percentile(first, 95), abs=1e-3)
    assert result["delivery_gap_ms"]["p50"] > 0
    for word in ("p50", "p95", "p99", "TTFT", "TPOT", "ITL", "gap between deliveries"):
        assert word in content["printed"]


@pytest.mark.usefixtures("nothing_hidden")
@pytest.mark.parametrize(("prefix_cache", "kept", "engines"), [(0, 0, 1), (1, 1, 1), (1, 0, 4)])
def test_runs_share_an_engine_unless_its_prefix_cache_would_outlive_one(
    prefix_cache: bool, kept: bool, engines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what they share is hidden from the collector, but no engine of one run."""
    import engine

    built: list[Any] = []
    real = engine.Engine
    monkeypatch.setattr(engine, "Engine", lambda config: built.append(config) or real(config))
    flags: dict[str, Any] = {"prefix_cache": bool(prefix_cache)}
    flags |= {"keep_prefix_cache_across_runs": bool(kept)}
    flags |= {"warmup_runs": 1, "repeat_runs": 2}
    settings = settle("scheduler", RunFlags(**(SMALL | flags)))
    heard = [(run, gc.get_freeze_count() > 0) for run in Measurement(settings).runs("online")]
    assert [(run is None, is_hidden) for run, is_hidden in heard] == [
        (number == 0, engines == 1) for number in range(3)
    ]
    assert (len(built), gc.get_freeze_count()) == (engines, 0)
    assert len({run.token_digest for run, _ in heard[1:] if run is not None}) == 1


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


def test_a_row_is_the_median_over_processes() -> None:
    row = headline_row([figures_of(child_record(step_ms=step)) for step in (0.5, 0.3, 0.4)])
    assert set(row) == ROW
    assert (row["workload"], row["engine"], row["batch"]) == ("scheduler", "kvtrail", 64)
    assert (row["step_ms"], row["fraction_of_floor"]) == (0.4, pytest.approx(0.5))
    assert (row["tokens_per_s"], row["ttft_ms"], row["itl_p99_ms"]) == (1000.0, 5.0, 1.3)
    row = headline_row([figures_of(child_record(floor_ms=None))])
    assert (row["floor_ms"], row["fraction_of_floor"]) == (None, None)


def test_a_failed_process_is_not_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$@"\necho error: no memory left. >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(headline.sys, "executable", str(program))
    with pytest.raises(MeasurementFailed) as caught:
        headline.run_process("it", "wide", ["--quick"], tmp_path / "x.json")
    asked = f"-m asv_bench run wide --mode online --quick --json {tmp_path / 'x.json'}"
    ended = f"it ended with exit code 1: {asked}\nerror: no memory left."
    assert str(caught.value) == f"it could not be measured: {ended}"


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


def test_the_readme_has_the_figures_of_the_records_that_it_names() -> None:
    text = (REPOSITORY / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| .*\(\[record\]\((.*)\.md\)\) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) >= 2
    for path, cells in rows:
        results = json.loads((REPOSITORY / f"{path}.json").read_text("utf-8"))["results"]["rows"]
        steps = {row["engine"]: f"{row['step_ms']:.3f}" for row in results}
        engines = ("kvtrail", "vllm", "transformers-static")
        assert [cell.strip(" *") for cell in cells.split("|")] == [steps[one] for one in engines]


@pytest.mark.parametrize("path", sorted((REPOSITORY / "reports").glob("headline*.json")), ids=str)
def test_the_table_beside_a_record_is_of_its_rows(path: Path) -> None:
    stored = json.loads(path.read_text("utf-8"))
    rows = [[row[column.key] for column in COLUMNS] for row in stored["rows"]]
    title, _, *lines = path.with_suffix(".md").read_text("utf-8").splitlines()
    assert stored["commit"] in title
    assert lines == Table(COLUMNS, rows).to_markdown().splitlines()
