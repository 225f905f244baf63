"""Peers: transformers run the engine's own model, and a peer that fails costs its row alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpt2_checkpoints import save_reference
from rich.console import Console
from typer.testing import CliRunner

import asv_bench.cli.headline as headline
from asv_bench.__main__ import build_app
from asv_bench.errors import MeasurementFailed
from asv_bench.memory.floor import weight_elements
from asv_bench.output.record import write_json
from asv_bench.peers.child import PeerTask, measure_peer, require_engine_tokens, run_figures
from asv_bench.peers.model import load_peer_model
from asv_bench.peers.runs import DYNAMIC, PEERS, STATIC, run_peer
from asv_bench.run import jobs
from asv_bench.run.jobs import Job, Measured, measure_jobs, peer_jobs, run_job
from asv_bench.run.tables import headline_table
from asv_bench.workloads.drive import run_workload
from asv_bench.workloads.named import Workload
from asv_bench.workloads.run_sample import RequestTrace, RunSample

MODEL = "random:gpt2-tiny"
TASK = PeerTask(
    peer=DYNAMIC,
    workload="streaming",
    quick=True,
    model=MODEL,
    device="cpu",
    dtype="auto",
    repeats=1,
)


@pytest.fixture(scope="module")
def peer_model() -> Any:
    return load_peer_model(MODEL, device="cpu", dtype="auto")


def figures(workload: str, engine: str, step_ms: float) -> dict[str, Any]:
    row: dict[str, Any] = {"workload": workload, "engine": engine, "batch": 8, "step_ms": step_ms}
    return row | dict.fromkeys(
        ("tokens_per_s", "ttft_ms", "tpot_ms", "itl_p99_ms", "floor_ms", "fraction_of_floor"), 1.0
    )


def left_by(job: Job, step_ms: float = 1.0) -> dict[str, Any]:
    """The record of a process."""
    return {
        "task": {},
        "transformers": "5",
        "dtype": "float16",
        "compiled": True,
        "warm_up_s": 1.0,
        "gpu_state": {"before": None, "after": None},
        "figures": figures(job.workload, job.engine, step_ms),
        "samples": [],
    }


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Job], dict[str, Any]]], None]:
    """Let a function stand for the processes; what it returns is what they leave."""

    def install(leave: Callable[[Job], dict[str, Any]]) -> None:
        def run(job: Job, record: Path) -> dict[str, Any]:
            content = leave(job)
            write_json(record, content)
            return content

        monkeypatch.setattr(jobs, "run_job", run)

    return install


def rows(measured: Measured) -> list[tuple[str, float]]:
    return [(row["engine"], row["step_ms"]) for row in measured.rows()]


@pytest.mark.parametrize("peer", PEERS)
def test_greedy_ids_are_the_engines(peer_model: Any, peer: str) -> None:
    """Mixed prompt lengths, padded on the left; both caches; more requests than fit a batch."""
    from engine import Engine

    workload = Workload("mixed", 7, 3, (1, 4, 9), 24, unique_prompts=True)
    prompts = workload.prompts(peer_model.shape.vocab_size)
    theirs = run_peer(peer_model.model, workload, prompts, peer, streamed=False)
    engine = Engine(workload.engine_config(MODEL, device="cpu"))
    ours = run_workload(engine, workload, engine.model_config.vocab_size)
    assert [trace.token_ids for trace in theirs.traces] == [
        trace.token_ids for trace in ours.traces
    ]
    assert theirs.token_digest == ours.token_digest
    # A model that repeats one token would agree with a broken one.
    assert len(set(theirs.traces[0].token_ids)) > 5


def test_the_peer_has_the_engines_sizes_and_numbers(peer_model: Any) -> None:
    from engine.models.registry import RANDOM_CONFIGS

    ours = RANDOM_CONFIGS["gpt2-tiny"]
    assert weight_elements(peer_model.shape) == weight_elements(ours)
    assert peer_model.dtype == "float32"
    assert peer_model.model.lm_head.weight is peer_model.model.transformer.wte.weight


def test_half_precision_gets_the_same_rounded_weights() -> None:
    from engine.models.registry import load_model

    loaded = load_peer_model(MODEL, device="cpu", dtype="float16")
    ours = load_model(MODEL, device=torch.device("cpu"), dtype=torch.float16).model
    block = loaded.model.transformer.h[1]
    assert torch.equal(block.mlp.c_fc.weight.T, ours.blocks[1].feed_forward.into.weight)
    assert torch.equal(loaded.model.transformer.wte.weight, ours.token_embedding)


def test_other_families_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for name in ("random:llama-tiny", str(tmp_path)):
        with pytest.raises(MeasurementFailed, match="of the family llama; peers decode GPT-2 only"):
            load_peer_model(name, device="cpu", dtype="auto")


@pytest.mark.parametrize(("dtype", "compared"), [("auto", 1), ("float16", 0)])
def test_full_precision_is_compared_with_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, compared: int
) -> None:
    """A checkpoint that both read; in half precision near ties would part them."""
    asked: list[str] = []

    def require(task: PeerTask, workload: Workload, sample: RunSample) -> None:
        asked.append(workload.name)
        require_engine_tokens(task, workload, sample)

    monkeypatch.setattr("asv_bench.peers.child.require_engine_tokens", require)
    save_reference(tmp_path)
    outcome = measure_peer(replace(TASK, model=str(tmp_path), dtype=dtype))
    assert outcome["dtype"] == ("float32" if dtype == "auto" else dtype)
    assert outcome["figures"]["engine"] == DYNAMIC
    assert asked == ["streaming-quick"] * compared


def test_token_times_come_from_the_streamed_run(peer_model: Any) -> None:
    workload = Workload("two", 2, 2, (1, 4), 6)
    prompts = workload.prompts(peer_model.shape.vocab_size)
    plain = run_peer(peer_model.model, workload, prompts, STATIC, streamed=False)
    streamed = run_peer(peer_model.model, workload, prompts, STATIC, streamed=True)
    assert plain.generated_tokens == streamed.generated_tokens == 12
    assert plain.token_digest == streamed.token_digest
    assert not plain.traces[0].token_times_s
    times = streamed.traces[1].token_times_s
    assert len(times) == 6
    assert streamed.started_s < times[0] < times[-1] <= streamed.started_s + streamed.wall_s


def test_figures_take_throughput_and_latency_from_their_own_runs() -> None:
    workload = Workload("one", 2, 2, (1,), 4)
    plain = [
        RunSample("offline", 0.0, wall, 0, [RequestTrace(0.0, [1] * 4) for _ in range(2)])
        for wall in (0.4, 0.8, 0.5)
    ]
    traces = [RequestTrace(0.0, [1] * 4, [1.0, 2.0, 3.0, 5.0]) for _ in range(2)]
    streamed = RunSample("offline", 0.0, 5.0, 3, traces)
    found = run_figures(workload, plain, streamed, 100.0)
    assert found["step_ms"] == pytest.approx(125.0)
    assert found["tokens_per_s"] == pytest.approx(16.0)
    assert found["fraction_of_floor"] == pytest.approx(0.8)
    assert found["ttft_ms"] == pytest.approx(1000.0)
    assert found["tpot_ms"] == pytest.approx(4000 / 3)
    assert found["itl_p99_ms"] == pytest.approx(2000.0, rel=0.05)


def test_other_tokens_than_the_engines_are_no_measurement(peer_model: Any) -> None:
    workload = TASK.shape()
    prompts = workload.prompts(peer_model.shape.vocab_size)
    sample = run_peer(peer_model.model, workload, prompts, DYNAMIC, streamed=False)
    require_engine_tokens(TASK, workload, sample)
    sample.traces[3].token_ids[-1] ^= 1
    with pytest.raises(MeasurementFailed, match="different tokens for request 3 of streaming"):
        require_engine_tokens(TASK, workload, sample)


def test_a_run_that_is_cut_short_is_no_measurement(peer_model: Any) -> None:
    class Short:
        device = peer_model.model.device

        def generate(self, ids: Any, **options: Any) -> Any:
            assert options["do_sample"] is False
            return torch.cat([ids, ids[:, -1:]], dim=1)

    workload = Workload("one", 1, 1, (3,), 2)
    with pytest.raises(MeasurementFailed, match="generated 1 tokens for request 0"):
        run_peer(Short(), workload, [[1, 2, 3]], DYNAMIC, streamed=False)


def test_peers_take_turns_and_compile_once() -> None:
    turns = peer_jobs(["wide", "single"], 2, model=MODEL, device="cpu", quick=True)
    assert [(job.process, job.workload, job.engine) for job in turns] == [
        (0, "wide", DYNAMIC),
        (0, "wide", STATIC),
        (0, "single", DYNAMIC),
        (0, "single", STATIC),
        (1, "wide", DYNAMIC),
        (1, "single", DYNAMIC),
    ]


def wide(processes: int) -> list[Job]:
    return peer_jobs(["wide"], processes, model=MODEL, device="cuda", quick=False)


def test_a_failed_peer_costs_its_own_row(tmp_path: Path, script: Any) -> None:
    asked: list[str] = []

    def leave(job: Job) -> dict[str, Any]:
        asked.append(job.label)
        if job.engine == DYNAMIC and job.process == 1:
            raise MeasurementFailed(f"{job.label} could not be measured.")
        return left_by(job)

    script(leave)
    measured = measure_jobs(wide(3), tmp_path, Console(quiet=True))
    # Neither is the third process started, nor the first one's figure kept.
    assert len(asked) == 3
    assert rows(measured) == [(STATIC, 1.0)]
    assert measured.notes == [f"{DYNAMIC} on wide, process 2 could not be measured."]


def test_rows_are_medians_over_processes_and_handed_on_as_they_come(
    tmp_path: Path, script: Any
) -> None:
    """So that a session that is cut short has written what it measured."""
    seen: list[tuple[int, list[tuple[str, float]]]] = []
    script(lambda job: left_by(job, step_ms=(5.0, 1.0, 2.0)[job.process]))
    measure_jobs(
        wide(3),
        tmp_path,
        Console(quiet=True),
        lambda measured, ended: seen.append((ended, rows(measured))),
    )
    assert seen == [
        (2, [(DYNAMIC, 5.0), (STATIC, 5.0)]),
        (3, [(DYNAMIC, 3.0), (STATIC, 5.0)]),
        (4, [(DYNAMIC, 2.0), (STATIC, 5.0)]),
    ]
    assert len(list(tmp_path.glob("wide-*.json"))) == 4


def test_processes_that_have_run_do_not_run_again(tmp_path: Path, script: Any) -> None:
    """Those that failed do: what kept them may have gone."""

    def failing(job: Job) -> dict[str, Any]:
        if job.engine == STATIC:
            raise MeasurementFailed("It failed.")
        return left_by(job, step_ms=5.0 + job.process)

    script(failing)
    measure_jobs(wide(2), tmp_path, Console(quiet=True))
    ran: list[str] = []

    def leave(job: Job) -> dict[str, Any]:
        ran.append(job.engine)
        return left_by(job, step_ms=1.0)

    script(leave)
    measured = measure_jobs(wide(2), tmp_path, Console(quiet=True))
    assert ran == [STATIC]
    assert rows(measured) == [(DYNAMIC, 5.5), (STATIC, 1.0)]


def test_a_missing_compiler_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = wide(1)[1]

    def run_apart(command: list[str]) -> subprocess.CompletedProcess[str]:
        assert json.loads(command[-2])["peer"] == STATIC
        said = "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found\n"
        return subprocess.CompletedProcess(command, 1, "", said)

    monkeypatch.setattr(jobs, "run_apart", run_apart)
    with pytest.raises(MeasurementFailed, match=r"static on wide, process 1 .* no working C or"):
        run_job(job, tmp_path / "x.json")


def test_rows_stand_beside_the_engines() -> None:
    measured = Measured()
    for engine in ("kvtrail", *reversed(PEERS)):
        for name in ("wide", "single"):
            row = figures(name, engine, 1.0 if engine == "kvtrail" else 2.0)
            measured.by_row[name, engine] = [{"figures": row}]
    assert [(row["workload"], row["engine"]) for row in measured.rows()] == [
        (name, engine) for name in ("wide", "single") for engine in ("kvtrail", DYNAMIC, STATIC)
    ]
    text = headline_table(measured.rows(), "a machine").to_markdown()
    lines = text.splitlines()
    assert lines[0] == "a machine"
    assert lines[2].startswith("| workload | engine | batch | step ms |")
    assert lines[3].startswith("| --- | --- | ---: |")
    assert lines[5] == (
        "| wide | transformers-dynamic | 8 | 2.000 | 1 | 1.00 | 1.000 | 1.000 | 1.000 | 100.0 % |"
    )


@pytest.mark.thorough
def test_headline_measures_peers_in_the_same_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes: the engine's and two peers', one after the other, into one file."""
    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "runs")
    monkeypatch.setattr(headline, "HEADLINE", tmp_path / "untouched.json")
    output, table = tmp_path / "own.json", tmp_path / "own.md"
    arguments = ["--quick", "--workloads", "single", "--processes", "1", "--device", "cpu"]
    arguments += ["--peers"]
    done = CliRunner().invoke(build_app(), ["headline", "--output", str(output), *arguments])
    assert done.exit_code == 0, done.output + repr(done.exception)
    rows = json.loads(output.read_text())["rows"]
    assert [row["engine"] for row in rows] == ["kvtrail", DYNAMIC, STATIC]
    assert len({tuple(row) for row in rows}) == 1
    assert all(row["step_ms"] > 0 and row["ttft_ms"] > 0 for row in rows)
    assert table.read_text().count("single-quick") == 3
    (record,) = (tmp_path / "runs").glob("headline-*.json")
    processes = json.loads(record.read_text())["results"]["processes"]
    assert [entry.get("compiled") for entry in processes] == [None, False, False]
