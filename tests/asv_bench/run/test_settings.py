"""Flags of `run`: each does what its name says, or is refused in a sentence."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asv_bench.errors import Refused
from asv_bench.run.settings import EngineFlags, RunFlags, SamplingFlags, Settings, settle
from engine import EngineConfig, KvtrailError, SamplingParams

SMALL: dict[str, Any] = {"device": "cpu", "num_requests": 4, "max_batch_size": 4}
SMALL |= {"max_new_tokens": 5, "warmup_runs": 0, "repeat_runs": 1}


def streaming(**given: Any) -> Settings:
    return settle("streaming", RunFlags(**{**SMALL, **given}))


def part(settings: Any, where: str) -> Any:
    for name in where.split("."):
        settings = settings.get(name) if isinstance(settings, dict) else getattr(settings, name)
    return settings


def lengths(settings: Settings) -> list[int]:
    return [length for length, _ in settings.workload.requests]


def test_without_flags_it_is_the_workload_of_the_write_ups() -> None:
    settings = settle("scheduler", RunFlags(device="cpu"))
    assert (settings.workload.name, lengths(settings)) == ("scheduler", [1] * 64)
    assert (settings.modes, settings.delivery, settings.prompts) == (("online",), None, None)
    assert (settings.engine["max_batch_size"], settings.engine["prefix_cache"]) == (64, False)
    assert settings.sampling == {"max_new_tokens": 512, "ignore_eos": True}
    assert (settings.flags.warmup_runs, settings.flags.repeat_runs) == (1, 3)
    # Defaults are left to the engine of whatever commit, which may have others.
    assert "fuse" not in settings.engine
    settings = settle("streaming", RunFlags(device="cpu"))
    assert (settings.workload.name, lengths(settings)) == ("streaming", [1, 4] * 64)
    assert settings.engine["prefill_max_batch_size"] == 128
    assert (settings.engine["admission"], settings.delivery) == ("fifo", 1)
    assert set(settings.due_s) == {0.0}
    assert streaming(num_requests=9).workload.name == "custom"
    assert settle("wide", RunFlags(device="cpu", quick=True)).workload.name == "wide-quick"


# Of the engine's fields that are no numbers and no switches, another value.
WORDS = {"model": "random:gpt2", "device": "cuda:1", "dtype": "float16", "decode": "eager"}
WORDS |= {"admission": "pack", "quantization": "fp8", "kv_cache_dtype": "fp8"}
WORDS |= {"speculative": "prompt-lookup"}


@pytest.mark.parametrize("name", [field.name for field in fields(EngineConfig)])
def test_a_flag_of_the_engine_reaches_its_configuration(name: str) -> None:
    default = getattr(EngineConfig(**streaming().engine), name)
    value = WORDS.get(name, not default if isinstance(default, bool) else 3)
    assert getattr(EngineConfig(**streaming(**{name: value}).engine), name) == value != default


# What each other flag changes: (given, the part of the settings, what it must be there).
EFFECTS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "block_size": ({"block_size": 2}, "engine.num_kv_blocks", 4 + 6 + 4 + 6),
    "room of a prefix cache": ({"prefix_cache": True}, "engine.num_kv_blocks", 2 * 4 * 2),
    "max_new_tokens": ({"max_new_tokens": 9}, "sampling.max_new_tokens", 9),
    "temperature": ({"temperature": 0.5}, "sampling.temperature", 0.5),
    "do_sample": ({"do_sample": True}, "sampling.temperature", 1.0),
    "do_sample at": ({"do_sample": True, "temperature": 0.5}, "sampling.temperature", 0.5),
    "top_k": ({"temperature": 1.0, "top_k": 4}, "sampling.top_k", 4),
    "top_p": ({"temperature": 1.0, "top_p": 0.5}, "sampling.top_p", 0.5),
    "ignore_eos": ({"ignore_eos": False}, "sampling.ignore_eos", False),
    "bf16": ({"bf16": True}, "engine.dtype", "bfloat16"),
    "cuda_graph": ({"cuda_graph": False}, "engine.decode", "eager"),
    "quick": ({"quick": True, "max_new_tokens": None}, "workload.new_tokens", 32),
    "batch": ({"batch": 3, "max_batch_size": None}, "engine.max_batch_size", 3),
    "prompt_len": ({"prompt_len": 6}, "workload.prompt_lengths", (6,)),
    "num_requests": ({"num_requests": 7}, "workload.num_requests", 7),
    "prompt": ({"prompt": "a b c"}, "workload.prompt_lengths", (3, 12, 3, 12)),
    "prompts": ({"prompts": ["a", "b c"]}, "workload.prompt_lengths", (1, 8, 1, 8)),
    "prompt_repeats": ({"prompt_repeats": "2,3"}, "workload.prompt_lengths", (2, 3)),
    "token ids": ({"pretok_base_token_ids": "5,6"}, "prompts", [[5, 6], [5, 6] * 4] * 2),
    "unique_prompts": ({"unique_prompts": True}, "workload.unique_prompts", True),
    "submit_interval_ms": ({"submit_interval_ms": 2.0}, "due_s", [0.0, 0.002, 0.004, 0.006]),
    "stream_interval": ({"stream_interval": 3}, "delivery", 3),
    "mode": ({"mode": "all"}, "modes", ("naive", "online", "offline")),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_effect(name: str) -> None:
    given, where, expected = EFFECTS[name]
    assert part(streaming(**given), where) == expected
    assert part(streaming(), where) != expected


def test_each_field_of_the_engines_configuration_is_a_flag() -> None:
    assert {one.name for one in fields(EngineFlags)} == {one.name for one in fields(EngineConfig)}
    # A request draws by the seed of the engine, and its end is the workload's. No workload asks
    # for another choice of tokens, or for text, which engines before these cannot be asked for.
    others = {"seed", "stop_token_ids", "stop", "min_new_tokens", "logprobs", "n", "min_p"}
    others |= {"presence_penalty", "frequency_penalty", "repetition_penalty"}
    own = {one.name for one in fields(SamplingParams)} - others
    assert {one.name for one in fields(SamplingFlags)} == own


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"prompt": "  "}, "no UTF-8 text of at least one word"),
        ({"prompt": "caf\udce9"}, "no UTF-8 text"),
        ({"pretok": False}, "no tokenizer comes with 'random:gpt2-tiny'"),
        ({"mode": "offline", "submit_interval_ms": 1.0}, "choose --mode online"),
        ({"mode": "all", "max_inflight_requests": 2}, "choose --mode online"),
        ({"pretok_base_token_ids": "1", "prompt": "a"}, "leaves no text"),
        ({"pretok_base_token_ids": "1,x"}, "whole numbers of at least 0"),
        ({"prompt_repeats": "0,2"}, "whole numbers of at least 1"),
        ({"prompt_len": 2, "prompt": "a"}, "--prompt-len says how long"),
        ({"prompt_len": 2, "prompt_repeats": "2"}, "--prompt-len says how long"),
    ],
)
def test_what_cannot_be_honoured_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        streaming(**given)


def test_poisson_arrivals_have_the_mean_gap_and_are_the_same_each_time() -> None:
    given = {"num_requests": 4000, "submit_interval_ms": 10.0, "submit_schedule": "poisson"}
    due = streaming(**given).due_s
    gaps = np.diff(due)
    assert due[0] == 0.0
    assert (gaps.mean(), gaps.std()) == pytest.approx((0.010, 0.010), rel=0.15)
    assert streaming(**given).due_s == due


def test_prompts_are_text_tokenized_before_the_clock_or_within(word_tokenizer: Path) -> None:
    given = {"tokenizer_name": str(word_tokenizer), "prompt": "Hello big world"}
    before = streaming(**given, prompt_repeats="1", tokenize_workers=2)
    assert before.prompts == [[1, 2, 3]] * 4
    within = streaming(**given, pretok=False)
    assert within.prompts is not None
    assert within.prompts[:2] == ["Hello big world", " ".join(["Hello big world"] * 4)]
    assert (lengths(before), lengths(within)) == ([3] * 4, [3, 12] * 2)
    assert "no tokenizer" in streaming(prompt="a b").note
    for name in ("/nowhere/at/all/really", str(word_tokenizer / "absent")):
        with pytest.raises(KvtrailError, match=f"{name} does not exist"):
            streaming(tokenizer_name=name)
