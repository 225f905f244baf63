"""Options and prompts: the types that callers have them in, and what is refused."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import tokenizers
import torch
from fresh_python import fresh_python
from gpt2_checkpoints import save_reference

from engine import (
    ConfigError,
    DeviceError,
    Engine,
    EngineConfig,
    ModelError,
    RequestError,
    SamplingParams,
)
from engine.requests.params import MOST_STOP_TOKEN_IDS
from engine.worker.device import resolve_device


def test_numpys_numbers_are_kept_as_pythons():
    options = {"block_size": 16, "max_batch_size": 4, "num_kv_blocks": 9, "steps_in_flight": 0}
    flags = {"prefix_cache": False, "fuse": True}
    config = EngineConfig(
        device="cpu",
        seed=np.uint64(7),
        **{name: np.int64(value) for name, value in options.items()},
        **{name: np.bool_(value) for name, value in flags.items()},
    )
    assert config == EngineConfig(device="cpu", seed=7, **options, **flags)
    kept = [getattr(config, name) for name in ("seed", *options, *flags)]
    assert {type(value) for value in kept} == {int, bool}

    params = SamplingParams(
        max_new_tokens=np.int32(5),
        temperature=np.float32(0.5),
        top_k=np.uint8(3),
        top_p=np.float64(0.25),
        seed=np.int64(-1),
        stop_token_ids=np.array([3, 4]),
        ignore_eos=np.bool_(True),
    )
    assert params == SamplingParams(5, 0.5, 3, 0.25, -1, (3, 4), True)
    assert type(params.temperature) is type(params.top_p) is float
    assert {type(token_id) for token_id in params.stop_token_ids} == {int}
    assert hash(params) == hash(SamplingParams(5, 0.5, 3, 0.25, -1, (3, 4), True))
    (completion,) = Engine(config).generate([np.array([1, 2])], params)
    assert len(completion.token_ids) <= 5


def test_a_path_names_a_directory(tmp_path, monkeypatch):
    save_reference(tmp_path / "gpt2")
    assert EngineConfig(model=tmp_path / "gpt2").model == str(tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
    engine = Engine(EngineConfig(model=Path("gpt2"), device="cpu"))
    assert engine.model_config.num_layers == 3
    # A name that the hub would know, and one that is built in.
    for name in ("gpt2-medium", "random:gpt2-tiny"):
        with pytest.raises(ModelError, match=f"The directory ./{name} does not exist"):
            Engine(EngineConfig(model=Path(name), device="cpu"))


@pytest.mark.parametrize(
    "kind",
    [tuple, np.array, lambda ids: np.array(ids, np.uint8), lambda ids: np.array(ids, object)],
)
def test_ids_may_come_in_any_sequence_of_whole_numbers(make_engine, kind):
    params = SamplingParams(max_new_tokens=1)
    (completion,) = make_engine().generate([kind([1, 0, 200])], params)
    assert completion.prompt_ids == [1, 0, 200]


def test_a_prompt_with_half_of_a_surrogate_pair_is_refused(tmp_path, make_engine):
    save_reference(tmp_path)
    letters = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    letters.save(str(tmp_path / "tokenizer.json"))
    engine = make_engine(model=tmp_path)
    with pytest.raises(RequestError, match="half of a surrogate pair"):
        engine.submit("a\ud800b")
    with pytest.raises(RequestError, match="half of a surrogate pair"):
        engine.generate(["ab", "\udcff"])
    assert not engine.has_unfinished
    assert engine.generate(["ab"])[0].prompt_ids == [0, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": 2.0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1e39},
        {"temperature": 10**400},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"seed": 2**63},
        {"temperature": np.float32("nan")},
        {"temperature": True},
        {"temperature": "1"},
        {"top_k": np.float64(3)},
        {"top_p": np.float32(0)},
        {"seed": np.bool_(True)},
        {"max_new_tokens": np.bool_(True)},
        {"max_new_tokens": np.array([1, 2])},
        {"stop_token_ids": 5},
        {"stop_token_ids": ("a",)},
        {"stop_token_ids": b"ab"},
        {"stop_token_ids": np.array(5)},
        {"stop_token_ids": (True,)},
        {"stop_token_ids": np.array([1.0])},
        {"stop_token_ids": (-1,)},
        {"stop_token_ids": (2**31,)},
        {"ignore_eos": "no"},
    ],
    ids=str,
)
def test_bad_sampling_parameters_are_refused(fields):
    with pytest.raises(RequestError, match=next(iter(fields))):
        SamplingParams(**fields)


def test_stop_tokens_count_once_and_up_to_a_limit():
    assert SamplingParams(stop_token_ids=[5, 3, 5] * 10_000).stop_token_ids == (5, 3)
    some = tuple(range(MOST_STOP_TOKEN_IDS))
    assert SamplingParams(stop_token_ids=some).stop_token_ids == some
    with pytest.raises(RequestError, match=f"it may hold {MOST_STOP_TOKEN_IDS} at most"):
        SamplingParams(stop_token_ids=(*some, 5_000))
    with pytest.raises(RequestError, match="stop_token_ids holds -1;"):
        SamplingParams(stop_token_ids=[*range(51_200), -1])


@pytest.mark.parametrize(
    "fields",
    [
        {"block_size": 0},
        {"dtype": "float8"},
        {"decode": "fast"},
        {"admission": "lifo"},
        {"device": "tpu"},
        {"max_batch_size": 0},
        {"num_kv_blocks": -3},
        {"prefill_max_tokens": 0},
        {"prefix_cache": "yes"},
        {"steps_in_flight": -1},
        {"steps_in_flight": 9},
        {"tensor_parallel_size": 0},
        {"tensor_parallel_size": None},
        {"steps_in_flight": True},
        {"model": ""},
        {"model": b"gpt2"},
        {"model": 5},
        {"seed": "x"},
        {"seed": np.float64(1)},
        {"seed": np.bool_(True)},
        {"block_size": np.float32(16)},
        {"block_size": np.array([16, 16])},
        {"max_batch_size": np.int64(0)},
        {"prefix_cache": np.int64(1)},
        {"device": torch.device("cuda", 0)},
        {"device": ["cpu"]},
        {"dtype": np.array(["auto", "auto"])},
        {"quantization": np.array(["fp8", "fp8"])},
        {"speculative": np.array(["prompt-lookup"] * 2)},
        *({"threads": threads} for threads in (0, -1, 1.5, "2", True, 10**400)),
    ],
    ids=str,
)
def test_bad_options_are_refused(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        EngineConfig(**fields)


def test_an_engine_on_a_cpu_leaves_cores_to_other_programs():
    """A machine of so many cores, the threads that torch has, and those that were asked for."""
    cases = [(1, 1, None), (2, 2, None), (16, 16, None), (16, 3, None), (2, 2, 3)]
    program = f"""
        import os, torch
        from engine import Engine, EngineConfig
        for cores, before, asked in {cases}:
            os.sched_getaffinity = lambda _: range(cores)
            torch.set_num_threads(before)
            Engine(EngineConfig(device="cpu", num_kv_blocks=16, threads=asked))
            print(torch.get_num_threads())
        os.environ["OMP_NUM_THREADS"] = "3"
        torch.set_num_threads(3)
        Engine(EngineConfig(device="cpu", num_kv_blocks=16))
        print(torch.get_num_threads())
    """
    done = fresh_python("-c", dedent(program), OMP_NUM_THREADS="", OMP_WAIT_POLICY="passive")
    one, two, many, *users = map(int, done.stdout.split())
    assert (one, two) == (1, 1), done.stderr
    assert many <= 4
    assert users == [3, 3, 3]


def test_options_that_do_not_fit_the_model_or_device_are_refused():
    with pytest.raises(ConfigError, match="positions for 1024"):
        Engine(EngineConfig(device="cpu", max_model_len=1025))
    with pytest.raises(ConfigError, match="CUDA graphs need a CUDA device"):
        Engine(EngineConfig(device="cpu", decode="graph"))


def test_a_missing_gpu_is_said():
    if torch.cuda.is_available():
        with pytest.raises(DeviceError, match="this machine has CUDA devices"):
            Engine(EngineConfig(device="cuda:999"))
    else:
        with pytest.raises(DeviceError, match="use 'cpu' or 'auto'"):
            Engine(EngineConfig(device="cuda"))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cuda:2", "devices 0 to 1"),
        ("cuda:256", "devices 0 to 1"),  # torch.device reads it as cuda:0
        ("cuda:-1", "names no device"),
        ("cuda:", "names no device"),
        ("cuda:one", "names no device"),
        ("cpu:0", "names no device"),
        ("meta", "names no device"),
    ],
)
def test_a_device_that_is_not_here_is_said(monkeypatch, name, sentence):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    with pytest.raises(DeviceError, match=sentence):
        resolve_device(name)
    assert resolve_device("cuda:0") == torch.device("cuda", 0)
    assert resolve_device("cuda") == resolve_device("auto") == torch.device("cuda", 1)


def test_what_names_no_device_is_said_before_what_is_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="names no device"):
        resolve_device("cuda:one")
