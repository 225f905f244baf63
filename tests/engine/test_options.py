"""Options and prompts in the types that callers have them in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from gpt2_checkpoints import save_reference

from engine import Engine, EngineConfig, ModelError, RequestError, SamplingParams


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
