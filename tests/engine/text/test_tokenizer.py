"""Text to ids and back, from each set of files that a model directory may hold."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tokenizers
from tokenizer_formats import FORMATS, byte_level
from tokenizers import decoders, models, pre_tokenizers, trainers

from engine.errors import ModelError, RequestError
from engine.text.tokenizer import TextStream, Tokenizer

ADDED = {"content": "<new>", "lstrip": True, "rstrip": False, "normalized": False}
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
    for text in [*TEXTS, " ".join(TEXTS) * 100]:
        token_ids = ours.encode(text)
        assert token_ids == theirs(text)["input_ids"]
        assert ours.decode(token_ids, skip_special_tokens=False) == text
        assert ours.decode(token_ids) == theirs.decode(token_ids, skip_special_tokens=True)


def test_a_long_text_leaves_other_threads_at_work(directory):
    """A server's loop, that is, which answers others meanwhile."""
    tokenizer, text = Tokenizer(directory), "the quick brown fox " * 20_000
    tokenizer.encode("the")
    turns = 0
    with ThreadPoolExecutor(1) as pool:
        encoding = pool.submit(tokenizer.encode, text)
        while not encoding.done():
            time.sleep(0.001)
            turns += 1
    assert turns > 9


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
    with pytest.raises(ModelError, match="gives '\\[ONE\\]' the id 'x'"):
        Tokenizer(tmp_path).encode("a")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"added_tokens.json": {"<call>": 304, "naïve🦊": 305}}, "the<call>naïve🦊fox"),
        ({"tokenizer_config.json": {"add_prefix_space": True}}, "the fox"),
        (
            {"tokenizer_config.json": {"add_bos_token": True, "bos_token": "<|endoftext|>"}},
            "the fox",
        ),
        ({"special_tokens_map.json": {"pad_token": "[PAD]"}}, "the[PAD]fox"),
        (
            {"tokenizer_config.json": {"added_tokens_decoder": {"304": ADDED | {"special": True}}}},
            "the <new> fox",
        ),
        (
            {"tokenizer_config.json": {"added_tokens_decoder": {"304": ADDED}}},
            "the <new> fox",
        ),
        ({"config.json": {"model_type": "gpt2"}}, "to be <|endoftext|>"),
        ({"tokenizer_config.json": {"model_max_length": 2, "padding_side": "left"}}, "to be"),
    ],
    ids=str,
)
def test_files_beside_a_vocabulary_mean_what_they_mean_to_transformers(
    files, text, trained, tmp_path
):
    from transformers import GPT2Tokenizer

    trained.model.save(str(tmp_path))
    assert trained.get_vocab_size() == 304
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    ours, theirs = Tokenizer(tmp_path), GPT2Tokenizer.from_pretrained(tmp_path)
    token_ids = ours.encode(text)
    assert token_ids == theirs(text)["input_ids"]
    for skip in (True, False):
        assert ours.decode(token_ids, skip_special_tokens=skip) == theirs.decode(
            token_ids, skip_special_tokens=skip
        )


def test_code_beside_a_vocabulary_is_not_run(trained, tmp_path, monkeypatch):
    """Nor is anybody asked whether it may be."""
    trained.model.save(str(tmp_path))
    (tmp_path / "code.py").write_text("raise SystemExit('run')")
    named = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["code.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    with pytest.raises(ModelError, match="transformers cannot read a tokenizer in"):
        Tokenizer(tmp_path).encode("a")


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json"]
)
def test_a_git_lfs_pointer_is_named_as_one(name, trained, tmp_path):
    if name == "tokenizer.json":
        trained.save(str(tmp_path / name))
    else:
        trained.model.save(str(tmp_path))
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (tmp_path / name).write_text(pointer)
    with pytest.raises(ModelError, match=f"{name} is a Git LFS pointer"):
        Tokenizer(tmp_path).encode("a")


def test_a_file_of_any_name_in_the_format_of_tokenizer_json(trained, tmp_path):
    trained.save(str(tmp_path / "mine.json"))
    assert Tokenizer(tmp_path / "mine.json").encode("the fox") == trained.encode("the fox").ids


@pytest.mark.parametrize("text", ["a\ud800", "\udfff", "fox \ud83e\udd8a", b"fox", None, 5, ["a"]])
def test_what_is_no_text_is_refused_in_a_sentence(directory, text):
    with pytest.raises(RequestError, match=r"half of a surrogate pair|takes text, a str, not a"):
        Tokenizer(directory).encode(text)


@pytest.mark.parametrize(
    "token_ids",
    [
        [-1],
        [1, 2**31],
        [2**32],
        [2**70],
        [-(2**70)],
        [None],
        ["a"],
        "abc",
        [1.0],
        [True],
        [[1, 2]],
        5,
        None,
        np.array([1.5]),
        np.array([-1]),
        np.array([True]),
    ],
    ids=str,
)
def test_ids_that_no_vocabulary_has_are_refused_in_a_sentence(directory, token_ids):
    tokenizer = Tokenizer(directory)
    with pytest.raises(RequestError) as refusal:
        tokenizer.decode(token_ids)
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize("token_id", [-1, 2**31, 2**70, None, "a", True, 1.0], ids=str)
def test_a_stream_refuses_such_an_id_and_goes_on(directory, token_id):
    tokenizer = Tokenizer(directory)
    stream = TextStream(tokenizer)
    first, *others = tokenizer.encode("🦊")
    assert stream.push(first) == ""
    with pytest.raises(RequestError):
        stream.push(token_id)
    assert "".join(map(stream.push, others)) == "🦊"


def test_numpys_ids_and_those_behind_the_vocabulary_are_decoded(directory, trained):
    tokenizer = Tokenizer(directory)
    token_ids = tokenizer.encode("the lazy fox")
    beyond = trained.get_vocab_size() + 5
    for given in (np.array(token_ids), tuple(token_ids), iter(token_ids), [*token_ids, beyond]):
        assert tokenizer.decode(given) == "the lazy fox"


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
        ({"vocab.json": "[]", "merges.txt": "a"}, "transformers cannot read a tokenizer in"),
        ({"tokenizer_config.json": "{}"}, "transformers cannot read a tokenizer in"),
    ],
)
def test_damaged_files_are_named_on_first_use(files, sentence, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    tokenizer = Tokenizer.in_directory(tmp_path)
    with pytest.raises(ModelError, match=sentence):
        tokenizer.encode("a")


def test_without_the_package_tokenizers(trained, tmp_path, monkeypatch):
    trained.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    tokenizer = Tokenizer.in_directory(tmp_path)
    with pytest.raises(ModelError, match="needs the package tokenizers, which is not installed"):
        tokenizer.encode("a")


@pytest.mark.parametrize("files", [["spiece.model"], ["vocab.json", "merges.txt"]], ids=str)
def test_without_the_package_transformers(files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in files:
        (tmp_path / name).touch()
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


def _pieces(tokenizer, token_ids):
    stream = TextStream(tokenizer)
    return [*(stream.push(token_id) for token_id in token_ids), stream.finish()]


@pytest.fixture
def of_bytes(trained):
    """From any bytes to their tokens, one each."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable}
    alphabet |= {byte: chr(0x100 + place) for place, byte in enumerate(others)}
    return lambda content: [trained.token_to_id(alphabet[byte]) for byte in content]


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 40,
        b"\x80" * 40,
        b"\xe2" * 40,
        b"\xf0\x9f" * 20,
        b"\xf0\x9f\xa6" * 20,
        b"\xe2\x82\xac\x82" * 10,
        b"\xf4\x90\x80\x80" * 10,
        b"\xed\xa0\x80" * 10,
        b"\xc0\xaf" * 10,
        "€🦊é\ufffd".encode() * 10,
        "\ufffd".encode() * 20,
        b"ab\xf0\x9fcd\xffef\xe2\x82",
    ],
    ids=repr,
)
def test_bytes_of_no_character_come_out_as_they_are_decoded(of_bytes, content, directory):
    tokenizer, token_ids = Tokenizer(directory), of_bytes(content)
    expected = content.decode(errors="replace")
    assert tokenizer.decode(token_ids) == expected
    pieces = _pieces(tokenizer, token_ids)
    assert "".join(pieces) == expected
    # What was given out is never more than an incomplete character behind.
    given = 0
    for count, piece in enumerate(pieces[:-1], 1):
        given += len(piece)
        assert given >= len(content[: max(0, count - 3)].decode(errors="replace")) - 1


def test_streams_of_any_tokens_make_the_text(trained, tmp_path):
    """Words that begin or end within a character, special tokens, and ids of no word at all."""
    random = np.random.default_rng(8)
    trained.add_tokens(["naïve🦊", "<call>"])
    trained.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    for _ in range(150):
        token_ids = random.integers(0, trained.get_vocab_size() + 3, 60).tolist()
        assert "".join(_pieces(tokenizer, token_ids)) == tokenizer.decode(token_ids)


def test_words_that_begin_and_end_within_a_character(tmp_path):
    """Each word ends one character and begins the next: no place between them is a clean cut."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: place for place, word in enumerate([*alphabet, "\xac\xe2\u0124"])}
    merges = [("\xac", "\xe2"), ("\xac\xe2", "\u0124")]
    vocabulary["\xac\xe2"] = len(vocabulary)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    euro = tokenizer.token_to_id("\xac\xe2\u0124")
    token_ids = [vocabulary["\xe2"], vocabulary["\u0124"], *[euro] * 30, vocabulary["\xac"]]
    pieces = _pieces(Tokenizer(tmp_path), token_ids)
    assert pieces == ["", "", *["€"] * 31, ""]


@pytest.mark.parametrize("kind", ["Metaspace", "ByteFallback"])
def test_streams_of_other_tokenizers_make_the_text(kind, tmp_path):
    words = ["<unk>", "\u2581the", "\u2581", "fox", *(f"<0x{byte:02X}>" for byte in range(256))]
    model = models.BPE(
        {word: place for place, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens(["<s>"])
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = (
        decoders.Metaspace()
        if kind == "Metaspace"
        else decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer(tmp_path)
    fox = [4 + byte for byte in "🦊".encode()] if kind == "ByteFallback" else [3]
    start = tokenizer.token_to_id("<s>")
    token_ids = [start, 1, 2, 1, 3, *fox, *[start] * 5, 1, 2, *fox, *fox, 1]
    assert "".join(_pieces(ours, token_ids)) == ours.decode(token_ids)


@pytest.mark.parametrize("text", ["to be, or not to be ", "🦊", "bytes"])
def test_a_long_stream_costs_no_more_per_token(of_bytes, directory, monkeypatch, text):
    tokenizer = Tokenizer(directory)
    token_ids = of_bytes(b"\xff" * 500) if text == "bytes" else tokenizer.encode(text * 50)
    lengths = []
    decode = Tokenizer.decode
    monkeypatch.setattr(
        Tokenizer, "decode", lambda self, ids: lengths.append(len(ids)) or decode(self, ids)
    )
    stream = TextStream(tokenizer)
    for token_id in token_ids:
        stream.push(token_id)
    assert max(lengths) < 5
    assert len(lengths) <= 3 * len(token_ids)


def test_a_token_alone_stands_for_its_bytes(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    for text in ("naïve 🦊", " the fox", "<|endoftext|>", "<call>"):
        told = b"".join(map(tokenizer.token_bytes, tokenizer.encode(text)))
        assert told == text.encode()
    assert tokenizer.token_bytes(10**6) == b""


def test_a_token_may_be_a_byte(tmp_path):
    FORMATS["gemma"]().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode("the🦊")[1:])) == "the🦊".encode()
