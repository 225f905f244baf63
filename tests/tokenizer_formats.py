"""Tokenizers of every format that models come with, small, as their own files describe them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = ["the quick brown fox", "jumps over the lazy dog", "to be, or not to be", "naïve café"] * 3
_BLANK = "\u2581"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(splitter: Any = None, decoder: Any = None) -> tokenizers.Tokenizer:
    """As GPT-2's, or with another splitter as Llama 3's and Qwen's."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = splitter or pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoder or decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        show_progress=False,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_tokens(["naïve🦊", "<call>"])
    return made


def split_by_pattern() -> tokenizers.Tokenizer:
    """As Llama 3's and Qwen's."""
    pattern = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made = byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), level]),
    )
    made.normalizer = normalizers.NFC()
    made.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    return made


def byte_fallback(*last: Any, prefix: str = "prepend") -> tokenizers.Tokenizer:
    """As those of Llama 2, Mistral 7B and, without the last step of its decoder, Gemma."""
    pairs = [("t", "h"), ("h", "e"), ("th", "e"), (_BLANK, "t"), (_BLANK, "the"), (_BLANK, _BLANK)]
    merged = [first + second for first, second in pairs]
    words = ["<unk>", "<s>", "</s>", *_BYTES, _BLANK, *"thefoxé", *merged]
    model = models.BPE(
        {word: number for number, word in enumerate(words)},
        pairs,
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    made = tokenizers.Tokenizer(model)
    if prefix == "prepend":
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend(_BLANK), normalizers.Replace(" ", _BLANK)]
        )
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix, split=False)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    steps = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, *last])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return made


def unigram() -> tokenizers.Tokenizer:
    """As T5's."""
    words = ["<pad>", "</s>", "<unk>", _BLANK, f"{_BLANK}the", *"thefox.,'ns", f"{_BLANK}fox"]
    made = tokenizers.Tokenizer(models.Unigram([(word, -2.0) for word in words], unk_id=2))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return made


def word_piece(decoder: Any = None) -> tokenizers.Tokenizer:
    """As BERT's."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "fox", "##es", "##e", *".,'?!nts", "n't"]
    model = models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoder or decoders.WordPiece()
    made.add_special_tokens(words[:4])
    return made


def words() -> tokenizers.Tokenizer:
    """Whole words, and no decoder."""
    listed = ["<unk>", "the", "quick", "fox", "."]
    model = models.WordLevel({word: number for number, word in enumerate(listed)}, "<unk>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def suffixed(decoder: Any) -> tokenizers.Tokenizer:
    """As those of GPT-1 and CLIP, whose words end with a mark, or of wav2vec2."""
    listed = ["<unk>", "the</w>", "fo", "x</w>", "e", "e</w>", "|", "<pad>"]
    model = models.BPE({word: number for number, word in enumerate(listed)}, [])
    made = tokenizers.Tokenizer(model)
    made.decoder = decoder
    return made


FORMATS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "gpt2": byte_level,
    "llama3": split_by_pattern,
    "llama2": lambda: byte_fallback(decoders.Strip(" ", 1, 0)),
    "mistral": lambda: byte_fallback(decoders.Strip(" ", 1, 0), prefix="first"),
    "gemma": lambda: byte_fallback(prefix="never"),
    "strip-more": lambda: byte_fallback(decoders.Strip(" ", 3, 0)),
    "strip-right": lambda: byte_fallback(decoders.Strip(" ", 0, 1)),
    "replace-late": lambda: byte_fallback(decoders.Replace("e f", "E-F")),
    "t5": unigram,
    "bert": word_piece,
    "bert-as-is": lambda: word_piece(decoders.WordPiece(cleanup=False)),
    "words": words,
    "suffix": lambda: suffixed(decoders.BPEDecoder()),
    "ctc": lambda: suffixed(decoders.CTC()),
    "bytes-stripped": lambda: byte_level(
        decoder=decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    ),
}
"""By the model that made the format known, or by what its decoder does at last."""


def write(made: tokenizers.Tokenizer, folder: Path, **beside: dict[str, Any]) -> Path:
    """The folder of a model with tokenizer.json, and files beside it by their names."""
    made.save(str(folder / "tokenizer.json"))
    for name, content in beside.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def added(content: str, *, special: bool = False, lstrip: bool = False) -> dict[str, Any]:
    """A token as tokenizer_config.json has it."""
    token: dict[str, Any] = AddedToken(content, lstrip=lstrip, special=special).__getstate__()
    return token
