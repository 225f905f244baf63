"""The ruler's tokenizer is the engine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from asv_bench.errors import Refused
from asv_bench.run.flags import RunFlags
from asv_bench.run.settings import settle
from asv_bench.workloads.tokenizer import load_tokenizer, model_tokenizer

SMALL: dict[str, Any] = {"device": "cpu", "num_requests": 3}


def test_prompts_are_tokenized_as_the_engine_tokenizes_them(tmp_path: Path) -> None:
    """Whatever truncation and padding the file brings, and from any set of files."""
    words = Tokenizer(WordLevel({"[UNK]": 0, "Hello": 1, "big": 2, "world": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.enable_truncation(max_length=4)
    words.enable_padding(length=30)
    for name in ("tokenizer.json", "mine.json"):
        words.save(str(tmp_path / name))
    text = "Hello big world " * 5
    for name in (tmp_path, tmp_path / "tokenizer.json", tmp_path / "mine.json"):
        tokenizer = load_tokenizer(str(name))
        assert tokenizer.encode(text) == [1, 2, 3] * 5
        assert tokenizer.encode("Hello") == [1]
    given = {**SMALL, "tokenizer_name": str(tmp_path), "prompt": text.strip()}
    assert settle("scheduler", RunFlags(**given)).plan.lengths == (15,) * 3


def test_a_model_of_a_vocabulary_and_merges_has_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "added_tokens.json").write_text('{"<call>": 3}')
    tokenizer = model_tokenizer(str(tmp_path))
    assert tokenizer is not None
    assert tokenizer.encode("ab<call>b") == [2, 3, 1]
    assert tokenizer.decode([2, 3, 1]) == "ab<call>b"
    given = {**SMALL, "model": str(tmp_path), "prompt": "abab<call>"}
    assert settle("scheduler", RunFlags(**given)).plan.lengths == (3,) * 3
    assert model_tokenizer("random:gpt2-tiny") is None
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(Refused, match="cannot be loaded: transformers cannot read a tokenizer in"):
        model_tokenizer(str(tmp_path))


def test_what_has_no_tokenizer_cannot_be_named_as_one(tmp_path: Path) -> None:
    for name in (str(tmp_path), "random:gpt2-tiny"):
        with pytest.raises(Refused, match=f"tokenizer '{name}' cannot be loaded: no tokenizer"):
            load_tokenizer(name)


def test_a_text_that_is_none_is_refused_in_a_sentence(tmp_path: Path) -> None:
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(Refused, match="a prompt cannot be tokenized: The text holds"):
        load_tokenizer(str(tmp_path)).encode("a\ud800")
