"""Text to ids and back, from each set of files that a model directory may hold."""

from __future__ import annotations

import json
import sys

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from engine.errors import ModelError
from engine.text.tokenizer import TextStream, Tokenizer

CORPUS = ["the quick brown fox", "jumps over the lazy dog", "to be, or not to be", "naïve café"] * 3
TEXTS = [
    "the lazy fox",
    "",
    " two  spaces ",
    "tabs\tand\nlines",
    "naïve café 🦊 漢字",
    "<|endoftext|>",
]


@pytest.fixture
def trained():
    """A small byte-level BPE, trained on the spot, in the way GPT-2's is."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        show_progress=False,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(params=["tokenizer.json", "vocab.json"])
def directory(request, trained, tmp_path):
    """A model directory in either of the two formats."""
    if request.param == "tokenizer.json":
        trained.save(str(tmp_path / "tokenizer.json"))
    else:
        trained.model.save(str(tmp_path))
    return tmp_path


def test_ids_are_those_of_transformers(directory):
    from transformers import GPT2Tokenizer

    ours, theirs = Tokenizer(directory), GPT2Tokenizer.from_pretrained(directory)
    for text in TEXTS:
        token_ids = ours.encode(text)
        assert token_ids == theirs(text)["input_ids"]
        assert ours.decode(token_ids, skip_special_tokens=False) == text
        assert ours.decode(token_ids) == theirs.decode(token_ids, skip_special_tokens=True)


def test_merges_are_applied(directory, trained):
    token_ids = Tokenizer(directory).encode("the")
    assert token_ids == trained.encode("the").ids
    assert len(token_ids) < 3


def test_special_tokens_are_left_out_of_text_unless_asked_for(directory):
    tokenizer = Tokenizer(directory)
    token_ids = tokenizer.encode("the<|endoftext|>fox")
    assert token_ids.count(tokenizer.encode("<|endoftext|>")[0]) == 1
    assert tokenizer.decode(token_ids) == "thefox"


def test_truncation_and_padding_of_the_training_run_are_not_applied(trained, tmp_path):
    trained.enable_truncation(max_length=3)
    trained.enable_padding(length=50)
    trained.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode("to be, or not to be")) == "to be, or not to be"
    assert len(tokenizer.encode("a")) == 1


def test_added_tokens_beside_a_vocabulary(trained, tmp_path):
    trained.model.save(str(tmp_path))
    first = trained.get_vocab_size()
    added = {"[TWO]": first + 1, "[ONE]": first}
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    assert Tokenizer(tmp_path).encode("[ONE][TWO]") == [first, first + 1]

    (tmp_path / "added_tokens.json").write_text(json.dumps({"[ONE]": first + 5}))
    with pytest.raises(ModelError, match="added ids must go on from the vocabulary's"):
        Tokenizer(tmp_path).encode("a")

    (tmp_path / "added_tokens.json").write_text(json.dumps({"[ONE]": "x"}))
    with pytest.raises(ModelError, match="must map each token to an integer id"):
        Tokenizer(tmp_path).encode("a")


def test_other_files_are_left_to_transformers(trained, tmp_path):
    from transformers import BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    theirs = BertTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer.in_directory(tmp_path)
    assert tokenizer.encode("the fox") == theirs("the fox")["input_ids"]
    assert tokenizer.decode(tokenizer.encode("the fox")) == "the fox"


def test_a_directory_without_tokenizer_files_has_none(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert Tokenizer.in_directory(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"tokenizer.json": "{"}, r"tokenizer\.json is no valid tokenizer file"),
        ({"vocab.json": "[]", "merges.txt": "a"}, r"vocab\.json and merges\.txt beside it are no"),
        ({"tokenizer_config.json": "{}"}, "transformers cannot read a tokenizer in"),
    ],
)
def test_damaged_files_are_named_on_first_use(files, sentence, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    tokenizer = Tokenizer.in_directory(tmp_path)
    with pytest.raises(ModelError, match=sentence):
        tokenizer.encode("a")


def test_without_the_package_tokenizers(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    tokenizer = Tokenizer.in_directory(directory)
    with pytest.raises(ModelError, match="needs the package tokenizers, which is not installed"):
        tokenizer.encode("a")


def test_without_the_package_transformers(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "spiece.model").touch()
    with pytest.raises(ModelError, match="needs the package transformers, which is not installed"):
        Tokenizer.in_directory(tmp_path).decode([1])


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_streamed_pieces_make_the_text(directory, text):
    tokenizer = Tokenizer(directory)
    stream = TextStream(tokenizer)
    pieces = [stream.push(token_id) for token_id in tokenizer.encode(text)]
    assert "".join(pieces) == text
    assert stream.finish() == ""
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_character_appears_with_its_last_byte(directory):
    tokenizer = Tokenizer(directory)
    stream = TextStream(tokenizer)
    token_ids = tokenizer.encode("🦊")
    assert len(token_ids) == 4
    assert [stream.push(token_id) for token_id in token_ids] == ["", "", "", "🦊"]


def test_a_character_that_never_becomes_whole_is_shown_at_the_end(directory):
    tokenizer = Tokenizer(directory)
    stream = TextStream(tokenizer)
    token_ids = tokenizer.encode("a🦊")[:-1]
    assert "".join(map(stream.push, token_ids)) == "a"
    assert stream.finish() == tokenizer.decode(token_ids)[1:]
    assert stream.finish() == ""


def test_a_long_stream_costs_no_more_per_token(directory, monkeypatch):
    tokenizer = Tokenizer(directory)
    token_ids = tokenizer.encode("to be, or not to be " * 50)
    lengths = []
    decode = Tokenizer.decode
    monkeypatch.setattr(
        Tokenizer, "decode", lambda self, ids: lengths.append(len(ids)) or decode(self, ids)
    )
    stream = TextStream(tokenizer)
    for token_id in token_ids:
        stream.push(token_id)
    assert max(lengths) < 5
