"""`scheduler`: every flag does what its name says or is refused, and the record says it all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from asv_bench.__main__ import build_app, main
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.explain.trace import read_trace
from asv_bench.output.record import REPOSITORY
from asv_bench.run.flags import SchedulerFlags
from asv_bench.run.measure import Measurement
from asv_bench.run.settings import settle
from asv_bench.workloads.run_sample import RunSample

# The names that the write-ups use.
FLAGS = """
--hf-model-id --checkpoint-path --tokenizer-name --device --bf16 --prompt --prompts --pretok
--num-requests --max-batch-size --max-new-tokens --temperature --top-k --top-p --do-sample
--no-stop-on-eos --mode --no-prefix-cache --keep-prefix-cache-across-runs --profile
--profile-dir --warmup-runs --repeat-runs --print-per-run --paged-attn --cuda-graph
"""

SMALL: dict[str, Any] = {
    "device": "cpu",
    "num_requests": 3,
    "max_batch_size": 4,
    "max_new_tokens": 5,
    "warmup_runs": 0,
    "repeat_runs": 1,
}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(), ["scheduler", *arguments])


def options(command: str) -> set[str]:
    group: Any = typer.main.get_command(build_app())
    return {
        name
        for parameter in group.commands[command].params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def measured(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "run.json"
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    done = run(*small, "--json", str(path), *arguments)
    assert done.exit_code == 0, done.output + repr(done.exception)
    content: dict[str, Any] = json.loads(path.read_text())
    content["printed"] = done.output
    return content


def test_every_flag_of_the_write_ups_is_there() -> None:
    assert set(FLAGS.split()) <= options("scheduler")


def test_without_flags_it_is_the_workload_of_the_write_ups() -> None:
    settings = settle("scheduler", SchedulerFlags(device="cpu"))
    assert settings.workload.name == "scheduler"
    assert settings.plan.lengths == (1,) * 64
    assert settings.modes == ("online",)
    assert settings.engine["max_batch_size"] == 64
    assert not settings.engine["prefix_cache"]
    assert settings.sampling == {"max_new_tokens": 512, "ignore_eos": True}
    assert (settings.flags.warmup_runs, settings.flags.repeat_runs) == (1, 3)


def test_a_changed_workload_loses_its_name() -> None:
    assert settle("scheduler", SchedulerFlags(device="cpu", num_requests=9)).workload.name == (
        "custom"
    )
    quick = settle("scheduler", SchedulerFlags(device="cpu", quick=True, workload="wide"))
    assert quick.workload.name == "wide-quick"


# What each flag changes: (given, the part of the settings, what it must be there).
EFFECTS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "hf_model_id": ({"hf_model_id": "random:gpt2"}, "engine.model", "random:gpt2"),
    "checkpoint_path": ({"checkpoint_path": Path("/")}, "engine.model", "/"),
    "device": ({"device": "cuda:1"}, "engine.device", "cuda:1"),
    "bf16": ({"bf16": True}, "engine.dtype", "bfloat16"),
    "dtype": ({"dtype": "float16"}, "engine.dtype", "float16"),
    "workload": ({"workload": "single"}, "workload.batch_size", 1),
    "quick": ({"quick": True}, "workload.new_tokens", 32),
    "prompt": ({"prompt": "a b c"}, "workload.mean_context", 3 + 5 / 2),
    "prompts": ({"prompts": ["a", "b c"]}, "plan.lengths", (1, 2, 1)),
    "num_requests": ({"num_requests": 7}, "workload.num_requests", 7),
    "max_new_tokens": ({"max_new_tokens": 9}, "sampling.max_new_tokens", 9),
    "do_sample": ({"do_sample": True}, "sampling.temperature", 1.0),
    "temperature": ({"do_sample": True, "temperature": 0.5}, "sampling.temperature", 0.5),
    "top_k": ({"do_sample": True, "top_k": 4}, "sampling.top_k", 4),
    "top_p": ({"do_sample": True, "top_p": 0.5}, "sampling.top_p", 0.5),
    "stop_on_eos": ({"stop_on_eos": True}, "sampling.ignore_eos", False),
    "seed": ({"seed": 11}, "engine.seed", 11),
    "max_batch_size": ({"max_batch_size": 2}, "engine.max_batch_size", 2),
    "prefix_cache": ({"prefix_cache": True}, "fresh_engine_per_run", True),
    "keep_prefix_cache_across_runs": (
        {"prefix_cache": True, "keep_prefix_cache_across_runs": True},
        "fresh_engine_per_run",
        False,
    ),
    "cuda_graph": ({"device": "cuda", "cuda_graph": True}, "engine.decode", "graph"),
    "mode": ({"mode": "all"}, "modes", ("naive", "online", "offline")),
}
# Flags whose effect a test of their own below shows.
SHOWN_ELSEWHERE = {
    "tokenizer_name",
    "pretok",
    "paged_attn",
    "warmup_runs",
    "repeat_runs",
    "print_per_run",
    "nvtx",
    "profile",
    "profile_dir",
    "json",
}


def test_no_flag_is_left_out_of_these_tests() -> None:
    assert {entry.name for entry in fields(SchedulerFlags)} == EFFECTS.keys() | SHOWN_ELSEWHERE


@pytest.mark.parametrize("name", EFFECTS)
def test_effect(name: str) -> None:
    given, where, expected = EFFECTS[name]
    base = {} if name in ("quick", "workload") else SMALL
    value: Any = settle("scheduler", SchedulerFlags(**{**base, **given}))
    plain: Any = settle("scheduler", SchedulerFlags(**base))
    for part in where.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
        plain = plain.get(part) if isinstance(plain, dict) else getattr(plain, part)
    assert value == expected
    if name != "keep_prefix_cache_across_runs":
        assert plain != expected


def test_eager_decoding_can_be_asked_for() -> None:
    flags = SchedulerFlags(**{**SMALL, "cuda_graph": False})
    assert settle("scheduler", flags).engine["decode"] == "eager"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"paged_attn": False}, "--no-paged-attn cannot be had"),
        ({"cuda_graph": True}, "--cuda-graph needs a GPU"),
        ({"bf16": True, "dtype": "float16"}, "contradict"),
        ({"dtype": "int4"}, "--dtype is 'int4'; it must be one of auto, float32"),
        ({"mode": "turbo"}, "--mode is 'turbo'; it must be one of naive, online, offline, all"),
        ({"workload": "huge"}, "no workload 'huge'"),
        ({"hf_model_id": "gpt2", "checkpoint_path": Path("/")}, "both name a model"),
        ({"checkpoint_path": Path("/nowhere")}, "/nowhere is not a directory"),
        ({"temperature": 0.7}, "--temperature has no effect on greedy decoding"),
        ({"top_k": 5}, "--top-k has no effect"),
        ({"top_p": 0.5}, "--top-p has no effect"),
        ({"do_sample": True, "temperature": 0.0}, "must be above 0"),
        ({"keep_prefix_cache_across_runs": True}, "needs --prefix-cache"),
        ({"profile_dir": Path("x")}, "add --profile"),
        ({"prompt": "a", "prompts": ["b"]}, "--prompt and --prompts"),
        ({"prompt": "  "}, "a prompt is empty"),
        ({"prompt": "caf\udce9"}, "is no UTF-8; give text"),
        ({"prompts": ["one", "\ud83e"]}, "is no UTF-8; give text"),
        ({"prompts": ["@/nowhere/prompts.txt"]}, "cannot be read"),
        ({"pretok": False}, "has no tokenizer; name one"),
        ({"tokenizer_name": "/nowhere/at/all/really"}, "cannot be loaded"),
        ({"nvtx": True}, "--nvtx comes too late"),
    ],
)
def test_what_cannot_be_honoured_is_refused(given: dict[str, Any], sentence: str) -> None:
    from engine.running import ranges

    assert not ranges.ENABLED
    with pytest.raises(Refused, match=sentence):
        settle("scheduler", SchedulerFlags(**{**SMALL, **given}))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--no-paged-attn"], "error: --no-paged-attn cannot be had"),
        (["--hf-model-id", "random:nothing", "--device", "cpu"], "random:nothing"),
        (["--checkpoint-path", "tests", "--device", "cpu"], "config.json"),
    ],
)
def test_a_refusal_is_one_sentence_and_exit_code_two(
    arguments: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["asv_bench", "scheduler", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert sentence in said


def test_a_failed_measurement_exits_with_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: Any) -> None:
        raise MeasurementFailed("request [0] ended with 'error'.")

    monkeypatch.setattr("asv_bench.cli.scheduler.measure_and_report", fail)
    monkeypatch.setattr(sys, "argv", ["asv_bench", "scheduler", "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: request [0] ended with 'error'.\n"


def test_a_bug_is_not_passed_off_as_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise ValueError("shapes do not match")

    monkeypatch.setattr("asv_bench.cli.scheduler.measure_and_report", fail)
    monkeypatch.setattr(sys, "argv", ["asv_bench", "scheduler", "--device", "cpu"])
    with pytest.raises(ValueError, match="shapes"):
        main()


def test_the_record_holds_samples_machine_and_settings(tmp_path: Path) -> None:
    content = measured(tmp_path, "--repeat-runs=2", "--warmup-runs=1", "--print-per-run")
    assert content["command"] == "scheduler"
    assert content["machine"]["cores"] == os.cpu_count()
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


def test_all_modes_generate_the_same_tokens(tmp_path: Path) -> None:
    content = measured(tmp_path, "--mode=all")
    assert list(content["results"]["modes"]) == ["naive", "online", "offline"]
    assert len({sample["token_digest"] for sample in content["samples"]}) == 1


def test_sampling_is_the_same_in_every_run_and_differs_from_greedy(tmp_path: Path) -> None:
    sampled = measured(tmp_path, "--do-sample", "--temperature=2", "--repeat-runs=2")
    assert sampled["results"]["modes"]["online"]["same_tokens_each_run"] is True
    greedy = measured(tmp_path)
    assert sampled["samples"][0]["token_digest"] != greedy["samples"][0]["token_digest"]
    other = measured(tmp_path, "--do-sample", "--temperature=2", "--seed=5", "--repeat-runs=1")
    assert other["samples"][0]["token_digest"] != sampled["samples"][0]["token_digest"]


def test_a_prompt_without_a_tokenizer_is_said_to_be_fixed_ids(tmp_path: Path) -> None:
    content = measured(tmp_path, "--prompt", "tell me more")
    assert any("no tokenizer" in note for note in content["notes"])
    assert "no tokenizer" in content["printed"]
    assert content["settings"]["workload"]["prompt_lengths"] == [3, 3, 3]


def test_prompts_can_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\n\ntwo words\n")
    flags = SchedulerFlags(**{**SMALL, "prompts": [f"@{tmp_path / 'prompts.txt'}"]})
    assert settle("scheduler", flags).plan.lengths == (1, 2, 1)


@pytest.mark.parametrize(("kept", "engines"), [(True, 1), (False, 3)])
def test_a_prefix_cache_outlives_a_run_only_where_that_is_asked_for(
    kept: bool, engines: int
) -> None:
    from engine import Engine

    built: list[Engine] = []

    def build(config: Any) -> Engine:
        built.append(Engine(config))
        return built[-1]

    flags = SchedulerFlags(
        **{**SMALL, "prefix_cache": True, "keep_prefix_cache_across_runs": kept, "repeat_runs": 2}
    )
    measurement = Measurement(settle("scheduler", flags), build)
    result = measurement.run_mode("online", lambda sample: None)
    assert len(built) == engines
    assert len({sample.token_digest for sample in result.samples}) == 1


def test_a_prefix_cache_has_room_beside_the_running_requests() -> None:
    plain = settle("scheduler", SchedulerFlags(**SMALL)).engine["num_kv_blocks"]
    cached = settle("scheduler", SchedulerFlags(**SMALL, prefix_cache=True)).engine
    assert cached["num_kv_blocks"] == 2 * plain


def test_warm_up_runs_are_run_and_not_measured() -> None:
    flags = SchedulerFlags(**{**SMALL, "warmup_runs": 2, "repeat_runs": 3})
    heard: list[RunSample | None] = []
    result = Measurement(settle("scheduler", flags)).run_mode("offline", heard.append)
    assert heard == [None, None, *result.samples]
    assert len(result.samples) == 3


def test_every_command_is_registered() -> None:
    group: Any = typer.main.get_command(build_app())
    assert set(group.commands) == {
        "bench",
        "bisect",
        "calibrate",
        "changes",
        "compare",
        "counters",
        "headline",
        "history",
        "ladder",
        "memcheck",
        "peers",
        "profile",
        "report",
        "roofline",
        "scheduler",
        "streaming",
        "tune",
    }


def test_profile_and_nvtx_leave_a_trace_with_the_ranges_named(tmp_path: Path) -> None:
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    # With text, whose tokenizer is the engine's: it is imported with its ranges all the same.
    words = '{"model": {"type": "WordLevel", "vocab": {"fox": 7}, "unk_token": "fox"}}'
    (tmp_path / "words.json").write_text(words)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "asv_bench", "scheduler", *small, "--nvtx", "--profile"),
            *("--prompt", "fox", "--tokenizer-name", str(tmp_path / "words.json")),
            *("--profile-dir", str(tmp_path), "--json", str(tmp_path / "run.json")),
        ],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    (trace,) = tmp_path.glob("*.trace.json.gz")
    summary = read_trace(trace)
    assert {"schedule", "forward", "sampling"} <= {entry.name for entry in summary.ranges}
    assert len(json.loads((tmp_path / "run.json").read_text())["samples"]) == 1
