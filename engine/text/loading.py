"""Reads the tokenizer of a model directory as transformers reads it, mostly without transformers.

tokenizer.json is read where there is one, with what the files beside it say of it. Any other set of
files is converted by transformers, if it is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.models.files import read_json_object, refuse_lfs_pointer

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.txt",
)

# What the other files may refer to; by themselves they are no tokenizer.
COMPANION_FILES = ("added_tokens.json", "special_tokens_map.json")

_NAMED_TOKENS = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]

_CLASS_OF_MODEL = {"gpt2": "GPT2Tokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer"}
"""By config.json's `model_type`, where tokenizer_config.json names none."""


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer of the package tokenizers, or one of transformers that is written in Python."""

    backend: Any
    cleans_up: bool = False
    """Whether decoded text loses the blanks before punctuation."""


def load_tokenizer_at(path: Path) -> LoadedTokenizer:
    """The tokenizer of a model directory, or of a file in the format of tokenizer.json.

    Raises ModelError if files are damaged, or need a package that is not installed.
    """
    if path.is_file():
        return LoadedTokenizer(_whole(_read_tokenizer_json(path)))
    for name in (*TOKENIZER_FILES, *COMPANION_FILES):
        refuse_lfs_pointer(path / name)
    if not (path / "tokenizer.json").is_file():
        return _convert_with_transformers(path)
    tokenizer = _read_tokenizer_json(path / "tokenizer.json")
    try:
        return _with_files_beside(tokenizer, path)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ModelError(
            f"the files beside {path / 'tokenizer.json'} do not describe a tokenizer: {error}."
        ) from error


def _read_tokenizer_json(path: Path) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ModelError(
            f"Reading {path} needs the package tokenizers, which is not installed. Install it (pip "
            "install 'kvtrail[engine]'), or give prompts as token ids."
        ) from error
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        refuse_lfs_pointer(path)
        raise ModelError(f"{path} is no valid tokenizer file: {error}.") from error


def _whole(tokenizer: Any) -> Any:
    """`tokenizer` without the padding and truncation of its training run.

    Prompts are taken as they are, and the engine says so where one is too long.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _with_files_beside(tokenizer: Any, directory: Path) -> LoadedTokenizer:
    """What tokenizer.json says, and what the other files of its directory say of it."""
    config = _read_if_there(directory / "tokenizer_config.json")
    added = _read_if_there(directory / "added_tokens.json")
    if "added_tokens_decoder" not in config:
        config |= _read_if_there(directory / "special_tokens_map.json")
    model_type = _read_if_there(directory / "config.json").get("model_type")
    kind = config.get("tokenizer_class") or _CLASS_OF_MODEL.get(str(model_type), model_type) or ""
    _add_tokens(tokenizer, config, added)
    _set_blanks(tokenizer, kind.removesuffix("Fast"), config)
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens"))
    return LoadedTokenizer(_whole(tokenizer), _cleans_up(tokenizer, config))


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _add_tokens(tokenizer: Any, config: dict[str, Any], added: dict[str, Any]) -> None:
    """Add the tokens that only the other files have, in the order in which transformers does.

    Each gets the next id behind the vocabulary, whatever the files say.
    """
    from tokenizers import AddedToken

    def token(given: Any, **options: bool) -> Any:
        if not isinstance(given, dict):
            return AddedToken(given, **options)
        options = {key: one for key, one in given.items() if key not in ("__type", "content")}
        return AddedToken(given["content"], **options)

    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    named = [*_NAMED_TOKENS, *(name for name in config if name.endswith("_token"))]
    # `add_bos_token` is true or false, and only has the name of a token.
    given = [config.get(name) for name in dict.fromkeys(named)]
    given = [one for one in given if isinstance(one, (str, dict))]
    given += extra.values() if isinstance(extra, dict) else extra
    special = {one.content: one for one in (token(one, special=True) for one in given)}
    described = {
        int(key): token(one) for key, one in config.get("added_tokens_decoder", {}).items()
    }
    if "added_tokens_decoder" not in config:
        for content, token_id in added.items():
            is_special = content in special
            described[token_id] = token(content, normalized=not is_special, special=is_special)
    known = tokenizer.get_added_tokens_decoder().values()
    alike = {repr(one) for one in known}
    new = [one for _, one in sorted(described.items()) if repr(one) not in alike]
    contents = {one.content for one in (*known, *new)}
    new += [one for content, one in special.items() if content not in contents]
    for one in new:
        one.special = one.special or one.content in special
    tokenizer.add_tokens(new)


def _set_blanks(tokenizer: Any, kind: str, config: dict[str, Any]) -> None:
    """Let texts begin with a blank or not, as the class of transformers that `kind` names does."""
    from tokenizers import decoders, pre_tokenizers

    asked, splitter = config.get("add_prefix_space"), tokenizer.pre_tokenizer
    parts: Any = splitter if isinstance(splitter, pre_tokenizers.Sequence) else [splitter]
    of_bytes = [one for one in parts if isinstance(one, pre_tokenizers.ByteLevel)]
    if kind == "LlamaTokenizer" and not of_bytes:
        # Of Llama 2 and Mistral 7B; the old way puts a blank behind each special token too.
        scheme = "always" if config.get("legacy") else "first"
        begins = asked is None or asked
        tokenizer.normalizer = None
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            prepend_scheme=scheme if begins else "never", split=False
        )
        steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        strip = [decoders.Strip(" ", 1, 0)] if begins else []
        tokenizer.decoder = decoders.Sequence([*steps, *strip])
    elif kind in _CLASS_OF_MODEL.values() or (asked is not None and not kind):
        for one in of_bytes:
            one.add_prefix_space = bool(asked)


def _cleans_up(tokenizer: Any, config: dict[str, Any]) -> bool:
    """Byte-pair tokenizers say where their blanks are, and keep them."""
    return bool(config.get("clean_up_tokenization_spaces")) and (
        type(tokenizer.model).__name__ != "BPE"
        or bool(
            config.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
        )
    )


def _convert_with_transformers(directory: Path) -> LoadedTokenizer:
    try:
        from transformers import AutoTokenizer, GPT2Tokenizer
    except ImportError as error:
        raise ModelError(
            f"{directory} has no tokenizer.json; converting its tokenizer needs the package "
            "transformers, which is not installed. Install it (pip install "
            "transformers), or give prompts as token ids."
        ) from error
    # Code of the model's own is never run.
    options = {"local_files_only": True, "trust_remote_code": False}
    reader = AutoTokenizer if _names_its_kind(directory) else GPT2Tokenizer
    try:
        converted = reader.from_pretrained(str(directory), **options)
    except Exception as error:  # anything from a missing file to a missing package
        raise ModelError(
            f"transformers cannot read a tokenizer in {directory}: {error}."
        ) from error
    _require_added_ids(directory / "added_tokens.json", converted)
    # Absent from the few that are written in Python.
    backend = getattr(converted, "backend_tokenizer", None)
    if backend is None:
        return LoadedTokenizer(converted)
    return LoadedTokenizer(_whole(backend), _cleans_up(backend, vars(converted)))


def _names_its_kind(directory: Path) -> bool:
    """Whether the files say what they are; vocab.json with merges.txt alone is GPT-2's."""
    if not ((directory / "vocab.json").is_file() and (directory / "merges.txt").is_file()):
        return True
    if _read_if_there(directory / "tokenizer_config.json").get("tokenizer_class"):
        return True
    return (directory / "config.json").is_file()


def _require_added_ids(path: Path, converted: Any) -> None:
    """transformers gives added tokens the ids behind the vocabulary's, whatever the file says."""
    for token, token_id in _read_if_there(path).items():
        given = converted.convert_tokens_to_ids(token)
        if given != token_id:
            raise ModelError(
                f"{path} gives {token!r} the id {token_id!r}, but behind the vocabulary it would "
                f"be {given}; added ids must go on from the vocabulary's."
            )
