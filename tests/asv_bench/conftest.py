"""What several of the ruler's tests need."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import typer.testing

# Else each of the hundreds of command lines that tests try makes every command with its options.
typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture
def word_tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer of whole words, as save_pretrained would leave it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = Tokenizer(WordLevel({"[UNK]": 0, "Hello": 1, "big": 2, "world": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    return folder
