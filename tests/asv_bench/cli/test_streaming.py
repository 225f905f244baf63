"""`streaming`: its own flags, prompts of every kind, and percentiles of what readers see."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from asv_bench.__main__ import build_app
from asv_bench.errors import Refused
from asv_bench.run.flags import SchedulerFlags, StreamingFlags
from asv_bench.run.settings import settle
from asv_bench.workloads.prompts import made_unique

# The names that the write-ups use.
FLAGS = """
--prompt-repeats --unique-prompts --pretok-base-token-ids --tokenize-workers --stream-interval
--submit-interval-ms --submit-schedule --prefill-max-batch-size --prefill-max-tokens
--prefill-admission-policy --prefill-admission-lookahead --prefill-force-fifo-every
--max-active-requests --max-inflight-requests --decode-first --nvtx
"""

SMALL: dict[str, Any] = {
    "device": "cpu",
    "num_requests": 4,
    "max_batch_size": 4,
    "max_new_tokens": 5,
    "warmup_runs": 0,
    "repeat_runs": 1,
}
PACK = {"prefill_admission_policy": "pack"}


def options(command: str) -> set[str]:
    import typer

    group: Any = typer.main.get_command(build_app())
    return {
        name
        for parameter in group.commands[command].params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def measured(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "run.json"
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    done = CliRunner().invoke(
        build_app(), ["streaming", *small, "--json", str(path), *arguments], env={"COLUMNS": "120"}
    )
    assert done.exit_code == 0, done.output + repr(done.exception)
    content: dict[str, Any] = json.loads(path.read_text())
    content["printed"] = done.output
    return content


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of whole words, as save_pretrained would leave it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = Tokenizer(WordLevel({"[UNK]": 0, "Hello": 1, "big": 2, "world": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    return folder


def test_every_flag_of_the_write_ups_is_there() -> None:
    assert set(FLAGS.split()) <= options("streaming")
    assert options("scheduler") < options("streaming")


def test_without_flags_it_is_the_workload_of_the_write_ups() -> None:
    settings = settle("streaming", StreamingFlags(device="cpu"))
    assert settings.workload.name == "streaming"
    assert settings.plan.lengths == (1, 4) * 64
    assert settings.engine["prefill_max_batch_size"] == 128
    assert settings.engine["admission"] == "fifo"
    assert set(settings.feed.due_s) == {0.0}
    assert settings.feed.max_inflight is None


EFFECTS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "prompt_repeats": ({"prompt_repeats": "2,3"}, "plan.lengths", (2, 3, 2, 3)),
    "pretok_base_token_ids": ({"pretok_base_token_ids": "5,6"}, "plan.lengths", (2, 8, 2, 8)),
    "submit_interval_ms": ({"submit_interval_ms": 2.0}, "feed.due_s", [0.0, 0.002, 0.004, 0.006]),
    "prefill_max_batch_size": ({"prefill_max_batch_size": 3}, "engine.prefill_max_batch_size", 3),
    "prefill_max_tokens": ({"prefill_max_tokens": 32}, "engine.prefill_max_tokens", 32),
    "prefill_admission_policy": (PACK, "engine.admission", "pack"),
    "prefill_admission_lookahead": (
        {**PACK, "prefill_admission_lookahead": 3},
        "engine.admission_lookahead",
        3,
    ),
    "prefill_force_fifo_every": (
        {**PACK, "prefill_force_fifo_every": 6},
        "engine.force_fifo_every",
        6,
    ),
    "max_active_requests": ({"max_active_requests": 2}, "engine.max_active_requests", 2),
    "max_inflight_requests": ({"max_inflight_requests": 3}, "feed.max_inflight", 3),
    "decode_first": ({"decode_first": True}, "engine.decode_first", True),
}
SHOWN_ELSEWHERE = {"unique_prompts", "tokenize_workers", "stream_interval", "submit_schedule"}


def test_no_flag_is_left_out_of_these_tests() -> None:
    own = {entry.name for entry in fields(StreamingFlags)}
    own -= {entry.name for entry in fields(SchedulerFlags)}
    assert own == EFFECTS.keys() | SHOWN_ELSEWHERE


@pytest.mark.parametrize("name", EFFECTS)
def test_effect(name: str) -> None:
    given, where, expected = EFFECTS[name]
    value: Any = settle("streaming", StreamingFlags(**{**SMALL, **given}))
    plain: Any = settle("streaming", StreamingFlags(**SMALL))
    for part in where.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
        plain = plain.get(part) if isinstance(plain, dict) else getattr(plain, part)
    assert value == expected
    assert plain != expected


def test_the_engine_knows_every_field_that_the_flags_set() -> None:
    from engine import EngineConfig

    given = {key: value for effect in EFFECTS.values() for key, value in effect[0].items()}
    settings = settle("streaming", StreamingFlags(**{**SMALL, **given}))
    config = EngineConfig(**settings.engine)
    assert config.max_inflight_requests == 3
    assert config.prefill_max_batch_size == 3


def test_poisson_arrivals_have_the_mean_gap_and_are_the_same_each_time() -> None:
    flags = StreamingFlags(
        device="cpu", num_requests=4000, submit_interval_ms=10.0, submit_schedule="poisson"
    )
    due = np.array(settle("streaming", flags).feed.due_s)
    gaps = np.diff(due)
    assert due[0] == 0.0
    assert gaps.mean() == pytest.approx(0.010, rel=0.1)
    assert gaps.std() == pytest.approx(0.010, rel=0.15)
    assert settle("streaming", flags).feed.due_s == due.tolist()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"mode": "offline", "submit_interval_ms": 1.0}, "--submit-interval-ms is about requests"),
        ({"mode": "all", "max_inflight_requests": 2}, "--max-inflight-requests is about requests"),
        ({"mode": "naive", "submit_schedule": "poisson"}, "--submit-schedule is about requests"),
        ({"submit_schedule": "poisson"}, "poisson needs --submit-interval-ms"),
        ({"submit_schedule": "tidal"}, "must be one of uniform, poisson"),
        ({"prefill_admission_policy": "best"}, "must be one of fifo, pack"),
        ({"prefill_admission_lookahead": 4}, "belongs to --prefill-admission-policy pack"),
        ({"prefill_force_fifo_every": 4}, "belongs to --prefill-admission-policy pack"),
        ({"pretok_base_token_ids": "1", "prompt": "a"}, "both say what is submitted"),
        ({"pretok_base_token_ids": "1", "pretok": False}, "leaves nothing to tokenize"),
        ({"pretok_base_token_ids": "1,x"}, "whole numbers of at least 0"),
        ({"prompt_repeats": "0,2"}, "whole numbers of at least 1"),
        ({"tokenize_workers": 2}, "--tokenize-workers is about text"),
    ],
)
def test_what_cannot_be_honoured_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        settle("streaming", StreamingFlags(**{**SMALL, **given}))


def test_unique_prompts_keep_their_lengths() -> None:
    flags = StreamingFlags(**{**SMALL, "num_requests": 40, "unique_prompts": True})
    plan = settle("streaming", flags).plan
    prompts = [prompt for prompt in plan.build(64) if not isinstance(prompt, str)]
    assert len({tuple(prompt) for prompt in prompts}) == 40
    assert plan.lengths == (1, 4) * 20
    assert all(0 <= token_id < 64 for prompt in prompts for token_id in prompt)
    with pytest.raises(Refused, match="only 5 different prompts of 1 tokens"):
        made_unique([[0]] * 6, 5)


def test_base_token_ids_are_repeated() -> None:
    flags = StreamingFlags(**{**SMALL, "pretok_base_token_ids": "5,6", "prompt_repeats": "1,2"})
    assert settle("streaming", flags).plan.build(64)[:2] == [[5, 6], [5, 6, 5, 6]]


def test_text_is_tokenized_before_the_clock_or_within(tokenizer: Path) -> None:
    given = {**SMALL, "tokenizer_name": str(tokenizer), "prompt": "Hello big world"}
    before = settle("streaming", StreamingFlags(**given, prompt_repeats="1"))
    assert before.plan.build(64) == [[1, 2, 3]] * 4
    within = settle("streaming", StreamingFlags(**given, pretok=False, tokenize_workers=2))
    assert within.plan.build(64)[:2] == ["Hello big world", " ".join(["Hello big world"] * 4)]
    assert within.feed.workers == 2
    assert before.plan.lengths == (3,) * 4
    assert within.plan.lengths == (3, 12) * 2


def test_tokenizing_workers_change_no_token(tokenizer: Path, tmp_path: Path) -> None:
    text = ["--tokenizer-name", str(tokenizer), "--prompt", "Hello world"]
    before = measured(tmp_path, *text)
    within = measured(tmp_path, *text, "--no-pretok", "--tokenize-workers=2")
    inline = measured(tmp_path, *text, "--no-pretok")
    digests = {content["samples"][0]["token_digest"] for content in (before, within, inline)}
    assert len(digests) == 1


def test_the_table_and_the_record_have_the_percentiles(tmp_path: Path) -> None:
    content = measured(tmp_path, "--stream-interval=2", "--repeat-runs=2")
    result = content["results"]["modes"]["online"]
    gaps = [
        1e3 * (later - earlier)
        for sample in content["samples"]
        for request in sample["requests"]
        for earlier, later in zip(
            request["token_times_s"], request["token_times_s"][1:], strict=False
        )
    ]
    assert len(gaps) == 2 * 4 * 4
    # Times in the record are rounded to 0.1 us.
    assert result["itl_ms"]["p99"] == pytest.approx(np.percentile(gaps, 99), abs=1e-3)
    first = [
        1e3 * (request["token_times_s"][0] - request["submitted_s"])
        for sample in content["samples"]
        for request in sample["requests"]
    ]
    assert result["ttft_ms"]["p95"] == pytest.approx(np.percentile(first, 95), abs=1e-3)
    assert result["delivery_gap_ms"]["p50"] > result["itl_ms"]["p50"]
    for word in ("p50", "p95", "p99", "TTFT", "TPOT", "ITL", "gap between deliveries"):
        assert word in content["printed"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-inflight-requests=2", "--submit-interval-ms=1", "--decode-first"],
        ["--prefill-admission-policy=pack", "--prefill-admission-lookahead=3"],
        ["--prefill-max-tokens=2", "--prefill-max-batch-size=1", "--max-active-requests=2"],
        ["--prefix-cache", "--repeat-runs=2"],
    ],
)
def test_settings_of_the_engine_change_no_token(arguments: list[str], tmp_path: Path) -> None:
    plain = measured(tmp_path)["samples"][0]["token_digest"]
    assert measured(tmp_path, *arguments)["samples"][-1]["token_digest"] == plain
