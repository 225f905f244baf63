"""Tokenizers of all formats: ids and texts are those of transformers, streamed or at once."""

from __future__ import annotations

import random
from itertools import product

import pytest
import tokenizer_formats as formats

from engine.errors import ModelError
from engine.text.tokenizer import TextStream, Tokenizer

TEXTS = [
    "the fox",
    " the  fox",
    "the</s>the fox",
    "naïve café 🦊",
    "<new> the [tool]<|endoftext|>the",
]
SEQUENCES = 150


def sequences(size, likely):
    """Random ids of any word, ids behind the last, and often the same few."""
    chance = random.Random(52)
    for _ in range(SEQUENCES):
        length = chance.randrange(1, 14)
        yield [
            chance.choice(likely or [0]) if chance.random() < 0.5 else chance.randrange(size + 2)
            for _ in range(length)
        ]


def likely_ids(made):
    """Of what streams stumble at: blanks, bytes of characters, special tokens, punctuation."""
    bytes_ = [f"<0x{byte:02X}>" for byte in " €\xa0🦊".encode()]
    words = [
        "\u2581",
        "\u2581the",
        "\u2581\u2581",
        "Ġ",
        "ð",
        "Ł",
        "<s>",
        "the",
        "'",
        ".",
        "n't",
        *bytes_,
    ]
    found = [made.token_to_id(word) for word in words]
    return [token_id for token_id in found if token_id is not None]


@pytest.mark.parametrize("cleans_up", [False, True])
@pytest.mark.parametrize("name", formats.FORMATS)
def test_streamed_text_is_the_whole_text_as_transformers_decodes_it(name, cleans_up, tmp_path):
    from transformers import PreTrainedTokenizerFast

    made = formats.FORMATS[name]()
    config = {"clean_up_tokenization_spaces": cleans_up}
    formats.write(made, tmp_path, tokenizer_config=config)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    for token_ids in sequences(made.get_vocab_size(), likely_ids(made)):
        stream = TextStream(tokenizer)
        pieces = [stream.push(token_id) for token_id in token_ids]
        text = theirs.decode(token_ids, skip_special_tokens=True)
        assert tokenizer.decode(token_ids) == text
        assert "".join(pieces) + stream.finish() == text, (token_ids, pieces)


@pytest.mark.parametrize("name", ["gpt2", "llama2", "mistral", "gemma", "t5", "bert", "words"])
def test_text_comes_with_the_token_that_completes_it(name, tmp_path):
    made = formats.FORMATS[name]()
    tokenizer = Tokenizer(formats.write(made, tmp_path))
    stream, given = TextStream(tokenizer), ""
    words = made.encode("the the", add_special_tokens=False).ids
    token_ids = [*words, 3, 4, *words]
    for count, token_id in enumerate(token_ids, 1):
        given += stream.push(token_id)
        if not (made.id_to_token(token_id) or "").startswith("<0x"):
            assert given == tokenizer.decode(token_ids[:count])


SPECIAL = formats.added("<new>", special=True, lstrip=True)
TOKENS = [
    {
        "tokenizer_config": {
            "added_tokens_decoder": {"900": SPECIAL, "901": formats.added("[tool]")}
        }
    },
    {"tokenizer_config": {"bos_token": "<new>", "eos_token": "[tool]", "pad_token": None}},
    {"tokenizer_config": {"eos_token": SPECIAL | {"__type": "AddedToken"}}},
    {"tokenizer_config": {"add_bos_token": True, "bos_token": "[tool]"}},
    {"tokenizer_config": {"additional_special_tokens": ["[tool]", "<new>"]}},
    {"tokenizer_config": {"extra_special_tokens": {"tool_token": "[tool]"}, "own_token": "<new>"}},
    {"special_tokens_map": {"eos_token": SPECIAL, "additional_special_tokens": ["[tool]"]}},
    {"added_tokens": {"<new>": 901, "[tool]": 900}, "tokenizer_config": {"eos_token": "<new>"}},
    {"tokenizer_config": {"eos_token": "fox", "split_special_tokens": True}},
    {"tokenizer_config": {"eos_token": "fox"}},
]
BLANKS = {"add_prefix_space": True}
LLAMA = {"tokenizer_class": "LlamaTokenizerFast"}
CLASSES = [
    ("gpt2", {"tokenizer_config": BLANKS, "config": {"model_type": "gpt2"}}),
    ("gpt2", {"tokenizer_config": BLANKS | {"tokenizer_class": "GPT2TokenizerFast"}}),
    ("gpt2", {"tokenizer_config": BLANKS | {"tokenizer_class": "PreTrainedTokenizerFast"}}),
    ("llama3", {"tokenizer_config": BLANKS, "config": {"model_type": "qwen3"}}),
    ("llama3", {"tokenizer_config": {"tokenizer_class": "Qwen2Tokenizer"}}),
    *((name, {"tokenizer_config": LLAMA}) for name in ("llama2", "mistral")),
    *((name, {"tokenizer_config": LLAMA | {"legacy": True}}) for name in ("llama2", "mistral")),
    ("llama2", {"tokenizer_config": LLAMA | {"add_prefix_space": False}}),
    ("llama2", {"tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast"}}),
]


@pytest.mark.parametrize(
    ("name", "beside"),
    [*product(["llama3", "llama2", "t5", "bert"], TOKENS), *CLASSES],
    ids=str,
)
def test_files_beside_tokenizer_json_mean_what_they_mean_to_transformers(name, beside, tmp_path):
    from transformers import AutoTokenizer

    folder = formats.write(formats.FORMATS[name](), tmp_path, **beside)
    theirs, ours = AutoTokenizer.from_pretrained(folder), Tokenizer(folder)
    for text in TEXTS:
        token_ids = theirs(text)["input_ids"]
        assert ours.encode(text) == token_ids
        for skip in (True, False):
            decoded = theirs.decode(token_ids, skip_special_tokens=skip)
            assert ours.decode(token_ids, skip_special_tokens=skip) == decoded


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"x": SPECIAL}},
        {"added_tokens_decoder": {"900": {"content": 5}}},
        {"added_tokens_decoder": ["<new>"]},
        {"additional_special_tokens": [5]},
        {"eos_token": {"text": "</s>"}},
    ],
    ids=str,
)
def test_files_that_describe_no_token_are_a_sentence(config, tmp_path):
    folder = formats.write(formats.byte_level(), tmp_path, tokenizer_config=config)
    with pytest.raises(ModelError, match=r"the files beside .*tokenizer\.json do not describe"):
        Tokenizer(folder).encode("a")
