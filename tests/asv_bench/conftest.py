"""What several of the ruler's tests need."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.testing

from asv_bench.output import record
from asv_bench.process.machine import Surroundings

# Else each of the hundreds of command lines that tests try makes every command with its options.
typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture(scope="session", autouse=True)
def _quiet_machine() -> Iterator[None]:
    """Commands in a test's own process find the machine quiet, and need not watch it to know."""
    quiet = Surroundings(os.cpu_count() or 1, busy_cores=0.0, load=0.0, governors=(), gpus=())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "look_around", lambda devices: quiet)
        yield


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
