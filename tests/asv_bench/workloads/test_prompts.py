"""Prompts from files, and the tokenizer for them: it is the engine's."""

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
from asv_bench.workloads.prompts import load_tokenizer, read_texts


def test_only_newlines_end_a_prompt_of_a_file(tmp_path: Path) -> None:
    ends = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"]
    kept = [f"one{end}two" for end in ends]
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeff".encode() + "\r\n".join([*kept[:4], " \u2028 "]).encode() + b"\n")
    with path.open("ab") as file:
        file.write("\n".join([*kept[4:], "\ufeffmarked", "last\r"]).encode())
    texts = read_texts(None, [f"@{path}", "given"])
    assert texts == [*kept, "\ufeffmarked", "last\r", "given"]


@pytest.mark.parametrize("content", [b"\xff\xfea\x00", b"caf\xe9\n"], ids=repr)
def test_a_file_of_prompts_in_another_encoding_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    for name in (path, tmp_path):
        with pytest.raises(Refused, match=f"prompts in {name} cannot be read"):
            read_texts(None, [f"@{name}"])


def lengths(**given: Any) -> tuple[int, ...]:
    flags = RunFlags(device="cpu", num_requests=3, **given)
    return settle("scheduler", flags).plan.lengths


def test_prompts_are_tokenized_as_the_engine_tokenizes_them(tmp_path: Path) -> None:
    """Whatever truncation and padding the file brings, and from any set of files."""
    words = Tokenizer(WordLevel({"[UNK]": 0, "Hello": 1, "big": 2, "world": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.enable_truncation(max_length=4)
    words.enable_padding(length=30)
    for name in ("tokenizer.json", "mine.json"):
        words.save(str(tmp_path / name))
    for path in (tmp_path, tmp_path / "tokenizer.json", tmp_path / "mine.json"):
        prompt = ("Hello big world " * 5).strip()
        assert lengths(tokenizer_name=str(path), prompt=prompt) == (15,) * 3
        assert lengths(tokenizer_name=str(path), prompt="Hello") == (1,) * 3


def test_a_model_of_a_vocabulary_and_merges_has_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "added_tokens.json").write_text('{"<call>": 3}')
    assert lengths(model=str(tmp_path), prompt="abab<call>") == (3,) * 3
    assert load_tokenizer("random:gpt2-tiny", is_required=False) is None
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(Refused, match="cannot be loaded: transformers cannot read a tokenizer in"):
        lengths(model=str(tmp_path), prompt="a")


def test_what_has_no_tokenizer_cannot_be_named_as_one(tmp_path: Path) -> None:
    for name in (str(tmp_path), "random:gpt2-tiny"):
        with pytest.raises(Refused, match=f"tokenizer '{name}' cannot be loaded: no tokenizer"):
            lengths(tokenizer_name=name)


def test_a_text_that_is_none_is_refused_in_a_sentence(word_tokenizer: Path) -> None:
    from asv_bench.workloads.prompts import from_text

    tokenizer = load_tokenizer(str(word_tokenizer), is_required=True)
    assert tokenizer is not None
    with pytest.raises(Refused, match="a prompt cannot be tokenized: The text holds"):
        from_text(
            ["a\ud800"], (1,), 1, unique=False, encode=tokenizer.encode, pretok=True, workers=0
        )
