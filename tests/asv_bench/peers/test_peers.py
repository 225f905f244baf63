"""Peers: every engine gets the same model and prompts, and one that fails costs its row alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.errors import NothingMeasured, Refused
from asv_bench.output.table import Table
from asv_bench.peers import lives
from asv_bench.peers.catalog import KINDS, find_peers
from asv_bench.peers.checkpoint import Checkpoint, CheckpointTask, write_checkpoint
from asv_bench.peers.contest import Contest
from asv_bench.peers.lives.life import Task, live
from asv_bench.peers.rounds import Lived, PeerRounds, Round
from asv_bench.peers.tables import rest_table, speed_table
from asv_bench.workloads.named import Workload

LIVES = str(Path(lives.__file__).parent)
MIXED = Workload("mixed", 5, 3, (1, 4, 9), 20, unique_prompts=True)
TREE = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def drivers_and_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a life's own interpreter sees."""
    monkeypatch.syspath_prepend(LIVES)
    monkeypatch.setenv("KVTRAIL_TREE", str(TREE))


def task_of(checkpoint: Checkpoint, folder: Path, workload: Workload = MIXED) -> Task:
    return Task(
        model=checkpoint.folder,
        dtype=checkpoint.dtype,
        device="cpu",
        prompts=workload.prompts(checkpoint.sizes["vocab_size"]),
        new_tokens=[workload.new_tokens] * workload.num_requests,
        batch=workload.batch_size,
        max_length=workload.max_length,
        steps=workload.steps,
        engine=workload.engine_settings(),
        drivers={kind.name: kind.driver for kind in KINDS},
        warmups=0,
        windows=1,
        facts=str(folder),
    )


def on_disk(model: str, folder: Path) -> Checkpoint:
    return write_checkpoint(
        CheckpointTask(model=model, dtype="auto", device="cpu", folder=str(folder / "model"))
    )


@pytest.mark.parametrize("model", ["gpt2-tiny", "llama-tiny", "qwen3-tiny"])
def test_engines_that_run_here_generate_the_same_tokens(model: str, tmp_path: Path) -> None:
    """Prompts of several lengths, and more requests than fit a batch."""
    from engine import Engine, EngineConfig, SamplingParams

    task = task_of(on_disk(f"random:{model}", tmp_path), tmp_path)
    ids = {}
    for name in ("kvtrail", "transformers-dynamic", "torch"):
        figures, facts = live(name, task)
        ids[name] = facts["token_ids"]
        tokens = sum(task.new_tokens)
        seconds = figures["step_ms"][0] * task.steps / 1e3
        assert figures["tokens_per_s"][0] == pytest.approx(tokens / seconds)
        assert figures["ttft_ms"][0] > 0
        assert facts["versions"]["torch"]
    assert ids["transformers-dynamic"] == ids["torch"] == ids["kvtrail"]
    # A model that repeats one token would agree with a broken one.
    assert len(set(ids["kvtrail"][0])) > 5
    # And it is the model that its name means to the engine.
    engine = Engine(EngineConfig(model=f"random:{model}", device="cpu", prefix_cache=False))
    params = SamplingParams(max_new_tokens=MIXED.new_tokens, ignore_eos=True)
    own = [list(done.token_ids) for done in engine.generate(task.prompts, params)]
    assert own == ids["kvtrail"]


class Recorder:
    """Stands for another project's engine: keeps what it is told, generates tokens of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.told = {"model": arguments[0] if arguments else None, **options}

    def generate(self, prompts: Any = None, params: Any = None, **options: Any) -> list[Any]:
        asked = options.get("sampling_params", params)
        assert len(asked) == len(options.get("input_ids", prompts))
        self.asked = asked
        return [self.answer(one) for one in asked]

    def answer(self, asked: Any) -> Any:
        ids = list(range(asked.max_tokens))
        return {"token_ids": ids}


class VllmLike(Recorder):
    def answer(self, asked: Any) -> Any:
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(range(asked.max_tokens)))])


class SglangLike(Recorder):
    def answer(self, asked: Any) -> Any:
        return {"output_ids": list(range(asked["max_new_tokens"]))}


class MiniLike(Recorder):
    def answer(self, asked: Any) -> Any:
        return {"token_ids": list(range(asked.max_tokens - 1))}


@pytest.mark.parametrize(
    ("name", "modules", "engine", "fair"),
    [
        (
            "vllm",
            {"vllm": "LLM"},
            VllmLike,
            {"enable_prefix_caching": False, "max_num_seqs": 3, "max_model_len": 29},
        ),
        (
            "sglang",
            {"sglang": "Engine"},
            SglangLike,
            {"disable_radix_cache": True, "cuda_graph_max_bs": 3, "context_length": 29},
        ),
        ("nano-vllm", {"nanovllm": "LLM"}, Recorder, {"enforce_eager": False, "max_num_seqs": 3}),
        (
            "mini-sglang",
            {"minisgl": "", "minisgl.llm": "LLM", "minisgl.core": ""},
            MiniLike,
            {"cache_type": "naive", "cuda_graph_max_bs": 3},
        ),
    ],
)
def test_other_projects_are_asked_for_the_same_work(
    name: str,
    modules: dict[str, str],
    engine: type[Recorder],
    fair: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Recorder] = []

    def build(*arguments: Any, **options: Any) -> Recorder:
        made.append(engine(*arguments, **options))
        return made[-1]

    for module, face in modules.items():
        stand_in = ModuleType(module)
        stand_in.__dict__.update({"SamplingParams": SimpleNamespace, face or "unused": build})
        monkeypatch.setitem(sys.modules, module, stand_in)
    sizes = {"vocab_size": 64}
    task = task_of(Checkpoint("a folder", "float32", sizes, 1.0, 1.0, None), tmp_path)
    figures, facts = live(name, task)
    (peer,) = made
    assert peer.told.items() >= fair.items()
    assert "a folder" in peer.told.values()
    assert figures["tokens_per_s"][0] > 0
    missing = 1 if name == "mini-sglang" else 0
    assert [len(ids) for ids in facts["token_ids"]] == [MIXED.new_tokens - missing] * 5
    for asked in peer.asked:
        params = asked if isinstance(asked, dict) else vars(asked)
        assert params["ignore_eos"] is True
        assert params["temperature"] < 1e-4
        assert MIXED.new_tokens in (params.get("max_tokens"), params.get("max_new_tokens"))


def test_a_run_that_is_cut_short_is_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = ModuleType("nanovllm")
    stand_in.__dict__.update({"SamplingParams": SimpleNamespace, "LLM": MiniLike})
    monkeypatch.setitem(sys.modules, "nanovllm", stand_in)
    checkpoint = Checkpoint("a folder", "float32", {"vocab_size": 64}, 1.0, 1.0, None)
    with pytest.raises(SystemExit, match="got 0 tokens where 1 were asked for"):
        live("nano-vllm", task_of(checkpoint, tmp_path))


def test_peers_are_found_by_name_or_by_their_interpreter(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    (tmp_path / "vllm.py").write_text("raise RuntimeError('not to be imported')")
    found = find_peers(["torch", f"vllm={other}", f"sglang={other}"])
    assert found.interpreters == {
        "kvtrail": sys.executable,
        "torch": sys.executable,
        "vllm": str(other),
    }
    assert found.absent == ["sglang: absent, its Python has no package sglang"]
    with pytest.raises(Refused, match="no peer 'vlm'; there are kvtrail, transformers-dynamic"):
        find_peers(["vlm"])
    with pytest.raises(Refused, match="nowhere, which is to run vllm, is no file"):
        find_peers(["vllm=nowhere"])


def cells(table: Table) -> list[dict[str, Any]]:
    return table.to_json()


def test_tables_say_how_tokens_differ_and_leave_out_what_is_unknown() -> None:
    row = {
        "workload": "wide",
        "engine": "vllm",
        "step_ms": 2.0,
        "step_ms_range": [1.9, 2.2],
        "times": {"estimate": 4.0, "low": 3.5, "high": 4.5, "confidence": 0.75},
        "tokens_per_s": 1.0,
        "ttft_ms": 1.0,
        "tpot_ms": 1.0,
        "fraction_of_floor": 0.5,
        "startup_s": 40.0,
        "peak_gpu_bytes": 2**31,
        "peak_rss_bytes": None,
        "tokens": {"same": 3, "requests": 4, "first_difference": 17},
        "settings": "graphs",
        "versions": {"vllm": "0.24.0"},
    }
    speed = speed_table([row], "here").to_markdown()
    assert "| wide | vllm | 2.000 1.900-2.200 | 4.00 3.50-4.50 |" in speed
    (rest,) = cells(rest_table([row]))
    assert rest["tokens"] == "3 of 4 requests, the first difference after 17 tokens"
    assert (rest["peak_gpu_gib"], rest["peak_rss_gib"]) == (2.0, None)
    assert rest["settings"] == "graphs; vllm 0.24.0"


def test_engines_that_are_all_absent_are_a_sentence() -> None:
    done = CliRunner().invoke(build_app(), ["peers", "--quick", "--peer", "sglang"])
    assert isinstance(done.exception, NothingMeasured)
    assert "sglang: absent" in done.output


def test_workloads_that_are_over_stay_where_a_later_one_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint("a folder", "float32", {"vocab_size": 64}, 1.0, 1.0, None)

    def live(rounds: PeerRounds, one: Round, device: str) -> Lived:
        if one.contest.workload.name == "wide-quick":
            raise KeyboardInterrupt
        return Lived()

    monkeypatch.setattr("asv_bench.cli.peers.checkpoint_in", lambda *_: checkpoint)
    monkeypatch.setattr(PeerRounds, "_live", live)
    monkeypatch.setattr(Contest, "rows", lambda self, _: [{"workload": self.workload.name}])
    record = tmp_path / "peers.json"
    arguments = ["--workloads", "single,wide", "--peer", "torch", "--json", str(record)]
    CliRunner().invoke(build_app(), ["peers", "--quick", *arguments])
    assert json.loads(record.read_text())["results"] == {"rows": [{"workload": "single-quick"}]}


@pytest.mark.thorough
def test_engines_take_turns_and_one_that_fails_costs_its_row_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes of two engines, and of one that breaks while it loads."""
    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "runs")
    broken = tmp_path / "python"
    broken.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    broken.chmod(0o755)
    (tmp_path / "vllm.py").write_text("raise RuntimeError('no such architecture')")
    record, page, drawing = (tmp_path / f"peers.{kind}" for kind in ("json", "md", "svg"))
    arguments = ["peers", "--quick", "--workloads", "single", "--model", "random:qwen3-tiny"]
    arguments += ["--peer", "torch", "--peer", f"vllm={broken}", "--rounds", "2", "--windows", "2"]
    arguments += ["--json", str(record), "--markdown", str(page), "--svg", str(drawing)]
    done = CliRunner().invoke(build_app(), arguments)
    assert done.exit_code == 0, done.output + repr(done.exception)
    told = json.loads(record.read_text())
    rows = {row["engine"]: row for row in told["results"]["rows"]}
    assert set(rows) == {"kvtrail", "torch"}
    assert rows["torch"]["tokens"] == {"same": 1, "requests": 1, "first_difference": -1}
    assert rows["torch"]["times"]["low"] <= rows["torch"]["times"]["estimate"]
    assert rows["kvtrail"]["startup_s"] > 0.1
    assert rows["kvtrail"]["peak_rss_bytes"] > 2**26
    (note,) = told["notes"]
    assert note.startswith("vllm on single-quick is left out: it ended with exit code 1: ")
    assert "no such architecture" in done.output
    (sample,) = told["samples"]
    assert [len(life["step_ms"]["samples"]) for life in sample["lives"]["torch"]] == [2, 2]
    cell = sample["cells"]["torch"]
    assert cell["packages"]["torch"]
    assert cell["variables"]["DO_NOT_TRACK"] == "1"
    assert page.read_text().count("| single-quick | torch |") == 2
    assert ">torch<" in drawing.read_text()
    assert sample["checkpoint"]["folder"] == "model-0"
