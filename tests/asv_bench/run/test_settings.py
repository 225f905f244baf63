"""Flags of `run`: each does what its name says, or is refused in a sentence."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from asv_bench.errors import Refused
from asv_bench.run.flags import PANELS, PRESET_PANELS, RunFlags, plain_flags
from asv_bench.run.settings import Settings, settle
from engine import KvtrailError

SMALL: dict[str, Any] = {"device": "cpu", "num_requests": 4, "max_batch_size": 4}
SMALL |= {"max_new_tokens": 5, "warmup_runs": 0, "repeat_runs": 1}
PACK = {"admission": "pack"}


def streaming(**given: Any) -> Settings:
    return settle("streaming", RunFlags(**{**SMALL, **given}))


def part(settings: Any, where: str) -> Any:
    for name in where.split("."):
        settings = settings.get(name) if isinstance(settings, dict) else getattr(settings, name)
    return settings


def test_without_flags_it_is_the_workload_of_the_write_ups() -> None:
    settings = settle("scheduler", RunFlags(device="cpu"))
    assert (settings.workload.name, settings.plan.lengths) == ("scheduler", (1,) * 64)
    assert (settings.modes, settings.delivery) == (("online",), None)
    assert (settings.engine["max_batch_size"], settings.engine["prefix_cache"]) == (64, False)
    assert settings.sampling == {"max_new_tokens": 512, "ignore_eos": True}
    assert (settings.flags.warmup_runs, settings.flags.repeat_runs) == (1, 3)
    settings = settle("streaming", RunFlags(device="cpu"))
    assert (settings.workload.name, settings.plan.lengths) == ("streaming", (1, 4) * 64)
    assert settings.engine["prefill_max_batch_size"] == 128
    assert (settings.engine["admission"], settings.delivery) == ("fifo", 1)
    assert (set(settings.feed.due_s), settings.feed.max_inflight) == ({0.0}, None)
    assert streaming(num_requests=9).workload.name == "custom"
    assert settle("wide", RunFlags(device="cpu", quick=True)).workload.name == "wide-quick"


@pytest.mark.parametrize(("name", "unique"), [("single", 3), ("scheduler", 1), ("wide", 3)])
def test_a_workload_takes_other_sizes(name: str, unique: int) -> None:
    settings = settle(name, RunFlags(device="cpu", batch=3, prompt_len=7, max_new_tokens=5))
    workload = settings.workload
    assert (workload.num_requests, workload.batch_size, workload.waves) == (3, 3, 1)
    assert (workload.prompt_lengths, workload.new_tokens, workload.max_length) == ((7,), 5, 12)
    prompts = [tuple(prompt) for prompt in settings.plan.build(1000)]
    assert [*map(len, prompts)] == [7, 7, 7]
    assert len(set(prompts)) == unique
    more = settle(name, RunFlags(device="cpu", batch=3, num_requests=6)).workload
    assert (more.batch_size, more.waves) == (3, 2)


# Of the engine's fields that are no numbers and no switches, another value.
WORDS = {"model": "random:gpt2", "device": "cuda:1", "dtype": "float16", "decode": "eager"}
WORDS |= {"admission": "pack"}


@pytest.mark.parametrize("name", PANELS["Engine"])
def test_a_flag_of_the_engine_reaches_its_configuration(name: str) -> None:
    from engine import EngineConfig

    is_switch = PANELS["Engine"][name].kind is bool
    value = WORDS.get(name, not getattr(RunFlags(), name) if is_switch else 3)
    others = PACK if name in ("admission_lookahead", "force_fifo_every") else {}
    settings = streaming(**others, **{name: value}).engine
    assert getattr(EngineConfig(**settings), name) == value
    assert getattr(EngineConfig(**streaming(**others).engine), name) != value


# What each other flag changes: (given, the part of the settings, what it must be there).
EFFECTS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "block_size": ({"block_size": 2}, "engine.num_kv_blocks", 4 * 6),
    "prefix_cache": ({"prefix_cache": True}, "fresh_engine_per_run", True),
    "room of a prefix cache": ({"prefix_cache": True}, "engine.num_kv_blocks", 2 * 4 * 2),
    "max_inflight_requests": ({"max_inflight_requests": 3}, "feed.max_inflight", 3),
    "max_new_tokens": ({"max_new_tokens": 9}, "sampling.max_new_tokens", 9),
    "temperature": ({"temperature": 0.5}, "sampling.temperature", 0.5),
    "top_k": ({"temperature": 1.0, "top_k": 4}, "sampling.top_k", 4),
    "top_p": ({"temperature": 1.0, "top_p": 0.5}, "sampling.top_p", 0.5),
    "ignore_eos": ({"ignore_eos": False}, "sampling.ignore_eos", False),
    "quick": ({"quick": True, "max_new_tokens": None}, "workload.new_tokens", 32),
    "batch": ({"batch": 3, "max_batch_size": None}, "engine.max_batch_size", 3),
    "prompt_len": ({"prompt_len": 6}, "plan.lengths", (6, 6, 6, 6)),
    "num_requests": ({"num_requests": 7}, "workload.num_requests", 7),
    "prompt": ({"prompt": "a b c"}, "workload.mean_context", (3 + 12) / 2 + 5 / 2),
    "prompts": ({"prompts": ["a", "b c"], "prompt_repeats": "1"}, "plan.lengths", (1, 2, 1, 2)),
    "prompt_repeats": ({"prompt_repeats": "2,3"}, "plan.lengths", (2, 3, 2, 3)),
    "pretok_base_token_ids": ({"pretok_base_token_ids": "5,6"}, "plan.lengths", (2, 8, 2, 8)),
    "submit_interval_ms": ({"submit_interval_ms": 2.0}, "feed.due_s", [0.0, 0.002, 0.004, 0.006]),
    "stream_interval": ({"stream_interval": 3}, "delivery", 3),
    "mode": ({"mode": "all"}, "modes", ("naive", "online", "offline")),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_effect(name: str) -> None:
    given, where, expected = EFFECTS[name]
    assert part(streaming(**given), where) == expected
    assert part(streaming(), where) != expected


def test_each_field_of_the_engines_configuration_is_a_flag() -> None:
    from engine import EngineConfig, SamplingParams

    assert PANELS["Engine"].keys() == {entry.name for entry in fields(EngineConfig)}
    # A request draws by the seed of the engine, and its end is the workload's.
    own = {entry.name for entry in fields(SamplingParams)} - {"seed", "stop_token_ids"}
    assert PANELS["Sampling"].keys() == own
    # Defaults are left to the engine of whatever commit, which may have others.
    config = EngineConfig()
    for name, flag in PANELS["Engine"].items():
        assert flag.default in (None, getattr(config, name)), name
    assert "fuse" not in streaming().engine


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"bf16": True}, {"dtype": "bfloat16"}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.5, "top_k": 3}, {"temperature": 0.5, "top_k": 3}),
        ({"cuda_graph": True}, {"decode": "graph"}),
        ({"cuda_graph": False}, {"decode": "eager"}),
        ({"paged_attn": True, "seed": 3}, {"seed": 3}),
    ],
)
def test_spellings_of_the_write_ups(given: dict[str, Any], plain: dict[str, Any]) -> None:
    assert plain_flags(preset(**given)) == RunFlags(**plain)


def preset(**given: Any) -> RunFlags:
    without = {name: flag.default for name, flag in PRESET_PANELS["Other names"].items()}
    return RunFlags(**(without | given))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"paged_attn": False}, "--no-paged-attn cannot be had"),
        ({"bf16": True, "dtype": "float16"}, "contradict"),
        ({"temperature": 0.7}, "--temperature has no effect on greedy decoding"),
        ({"do_sample": True, "temperature": 0.0}, "must be above 0"),
    ],
)
def test_spellings_that_cannot_be_honoured(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        plain_flags(preset(**given))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"decode": "graph"}, "--decode graph needs a GPU"),
        ({"mode": "turbo"}, "--mode is 'turbo'; it must be one of naive, online, offline, all"),
        ({"top_k": 5}, "--top-k has no effect"),
        ({"top_p": 0.5}, "--top-p has no effect"),
        ({"keep_prefix_cache_across_runs": True}, "needs --prefix-cache"),
        ({"profile_dir": Path("x")}, "add --profile"),
        ({"prompt": "a", "prompts": ["b"]}, "--prompt and --prompts"),
        ({"prompt": "  "}, "a prompt is empty"),
        ({"prompt": "caf\udce9"}, "is no UTF-8; give text"),
        ({"prompts": ["one", "\ud83e"]}, "is no UTF-8; give text"),
        ({"pretok": False}, "has no tokenizer; name one"),
        ({"nvtx": True}, "--nvtx comes too late"),
        ({"mode": "offline", "submit_interval_ms": 1.0}, "--submit-interval-ms is about requests"),
        ({"mode": "all", "max_inflight_requests": 2}, "--max-inflight-requests is about requests"),
        ({"mode": "naive", "submit_schedule": "poisson"}, "--submit-schedule is about requests"),
        ({"submit_schedule": "poisson"}, "poisson needs --submit-interval-ms"),
        ({"submit_schedule": "tidal"}, "must be one of uniform, poisson"),
        ({"admission_lookahead": 4}, "--admission-lookahead belongs to --admission pack"),
        ({"force_fifo_every": 4}, "--force-fifo-every belongs to --admission pack"),
        ({"pretok_base_token_ids": "1", "prompt": "a"}, "both say what is submitted"),
        ({"pretok_base_token_ids": "1", "pretok": False}, "leaves nothing to tokenize"),
        ({"pretok_base_token_ids": "1,x"}, "whole numbers of at least 0"),
        ({"prompt_repeats": "0,2"}, "whole numbers of at least 1"),
        ({"batch": 2}, "--batch and --max-batch-size both say"),
        ({"prompt_len": 2, "prompt": "a"}, "--prompt-len says how long"),
        ({"prompt_len": 2, "prompt_repeats": "2"}, "--prompt-len says how long"),
        ({"prompt_len": 2, "pretok_base_token_ids": "1"}, "--prompt-len says how long"),
        ({"tokenize_workers": 2}, "--tokenize-workers is about text"),
    ],
)
def test_what_cannot_be_honoured_is_refused(given: dict[str, Any], sentence: str) -> None:
    from engine.worker import ranges

    assert not ranges.ENABLED
    with pytest.raises(Refused, match=sentence):
        streaming(**given)


def test_poisson_arrivals_have_the_mean_gap_and_are_the_same_each_time() -> None:
    given = {"num_requests": 4000, "submit_interval_ms": 10.0, "submit_schedule": "poisson"}
    due = streaming(**given).feed.due_s
    gaps = np.diff(due)
    assert due[0] == 0.0
    assert (gaps.mean(), gaps.std()) == pytest.approx((0.010, 0.010), rel=0.15)
    assert streaming(**given).feed.due_s == due


def test_unique_prompts_keep_their_lengths() -> None:
    plan = streaming(num_requests=40, unique_prompts=True).plan
    prompts = [prompt for prompt in plan.build(64) if not isinstance(prompt, str)]
    assert len({tuple(prompt) for prompt in prompts}) == 40
    assert plan.lengths == (1, 4) * 20
    assert all(0 <= token_id < 64 for prompt in prompts for token_id in prompt)
    with pytest.raises(Refused, match="only 5 different prompts of 1 tokens"):
        streaming(num_requests=16, unique_prompts=True).plan.build(5)


def test_prompts_are_token_ids_or_text_tokenized_before_the_clock_or_within(
    word_tokenizer: Path,
) -> None:
    ids = streaming(pretok_base_token_ids="5,6", prompt_repeats="1,2")
    assert ids.plan.build(64)[:2] == [[5, 6], [5, 6, 5, 6]]
    given = {"tokenizer_name": str(word_tokenizer), "prompt": "Hello big world"}
    before = streaming(**given, prompt_repeats="1")
    assert before.plan.build(64) == [[1, 2, 3]] * 4
    unique = streaming(**given, unique_prompts=True)
    assert len({tuple(prompt) for prompt in unique.plan.build(64)}) == 4
    within = streaming(**given, pretok=False, tokenize_workers=2)
    assert within.plan.build(64)[:2] == ["Hello big world", " ".join(["Hello big world"] * 4)]
    assert within.feed.workers == 2
    assert (before.plan.lengths, within.plan.lengths) == ((3,) * 4, (3, 12) * 2)


def test_prompts_are_tokenized_as_the_engine_tokenizes_them(tmp_path: Path) -> None:
    """Whatever truncation and padding the file brings, and from any set of files."""
    words = Tokenizer(WordLevel({"[UNK]": 0, "Hello": 1, "big": 2, "world": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.enable_truncation(max_length=4)
    words.enable_padding(length=30)
    words.save(str(tmp_path / "mine.json"))
    given = {"tokenizer_name": str(tmp_path / "mine.json"), "prompt_repeats": "1"}
    for prompt, length in (("Hello big world " * 5, 15), ("Hello", 1)):
        assert streaming(**given, prompt=prompt).plan.lengths == (length,) * 4
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "added_tokens.json").write_text('{"<call>": 3}')
    model = streaming(model=str(tmp_path), prompt="abab<call>", prompt_repeats="1")
    assert model.plan.lengths == (3,) * 4
    for name in ("/nowhere/at/all/really", str(tmp_path / "absent")):
        with pytest.raises(KvtrailError, match=f"{name} does not exist"):
            streaming(tokenizer_name=name)
    with pytest.raises(Refused, match="'random:gpt2-tiny' cannot be loaded: no tokenizer"):
        streaming(tokenizer_name="random:gpt2-tiny")
