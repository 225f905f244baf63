"""Text as it is written: it ends before a stop string, and is the same however it comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_formats import byte_level

from engine.text.stops import WrittenText
from engine.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    byte_level().save(str(directory / "tokenizer.json"))
    return Tokenizer(directory)


def _written(tokenizer, text, stops, num_free=0):
    """All pieces of a text, a byte a token, up to the one that stops it."""
    written, pieces = WrittenText(tokenizer, tuple(stops), num_free), []
    for byte in text.encode():
        pieces.append(written.push(_byte_token(tokenizer, byte)))
        if written.has_stopped:
            break
    pieces.append(written.finish())
    assert written.text == "".join(pieces)
    return written, pieces


def _byte_token(tokenizer, byte):
    if not hasattr(tokenizer, "byte_tokens"):
        from tokenizers import pre_tokenizers

        alphabet = pre_tokenizers.ByteLevel.alphabet()
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [one for one in range(256) if one not in printable]
        letters = {one: chr(one) for one in printable}
        letters |= {one: chr(256 + place) for place, one in enumerate(others)}
        assert set(letters.values()) == set(alphabet)
        backend = tokenizer._loaded.backend
        tokenizer.byte_tokens = [backend.token_to_id(letters[one]) for one in range(256)]
    return tokenizer.byte_tokens[byte]


@pytest.mark.parametrize(
    ("text", "stops", "left"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", ["three", "two"], "one "),
        ("aab", ["ab"], "a"),
        ("aaaab", ["aab"], "aa"),
        ("abcabd", ["abd"], "abc"),
        ("never", ["x"], "never"),
        ("ends in a", ["ab"], "ends in a"),
        ("漢字🦊 ok", ["🦊"], "漢字"),
        ("x", ["x"], ""),
    ],
)
def test_text_ends_before_the_first_stop_string(tokenizer, text, stops, left):
    written, _ = _written(tokenizer, text, stops)
    assert written.text == left
    assert written.has_stopped == (left != text)


def test_what_may_become_a_stop_string_is_held_back(tokenizer):
    _, pieces = _written(tokenizer, "ab<en>cd<end>ef", ["<end>"])
    assert "".join(pieces) == "ab<en>cd"
    # No piece shows the beginning of the stop string, and what was held comes at once.
    assert pieces[:8] == ["a", "b", "", "", "", "<en>", "c", "d"]


def test_a_stop_string_does_not_count_among_the_first_tokens(tokenizer):
    written, _ = _written(tokenizer, "stop and stop", ["stop"], num_free=5)
    assert written.text == "stop and "


def test_bytes_of_no_character_may_be_a_stop_string(tokenizer):
    written = WrittenText(tokenizer, ("\N{REPLACEMENT CHARACTER}",))
    assert written.push(_byte_token(tokenizer, ord("a"))) == "a"
    assert written.push(_byte_token(tokenizer, 0xF0)) == ""
    assert written.finish() == ""
    assert written.has_stopped


@given(
    text=st.text(alphabet="abé🦊", max_size=30),
    stops=st.lists(st.text(alphabet="abé🦊", min_size=1, max_size=4), max_size=3),
)
def test_it_is_the_text_before_the_stop_string_that_is_whole_first(tokenizer, text, stops):
    written, _ = _written(tokenizer, text, stops)
    # The definition: characters are added until any stop string has come.
    ends = [end for end in range(len(text) + 1) if any(one in text[:end] for one in stops)]
    expected = text
    if ends:
        seen = text[: ends[0]]
        expected = seen[: min(seen.find(one) for one in stops if one in seen)]
    assert written.text == expected
