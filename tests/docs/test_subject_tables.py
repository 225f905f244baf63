"""The reference of `kvtrail.toml` has every key, and all files that pages show are taken."""

from __future__ import annotations

import re
import tomllib

import msgspec
import pytest
from documents import blocks, documents, name_of

import subject_tables
from asv_bench.history.standing import AcknowledgedFile
from asv_bench.subjects.presets import PRESETS
from asv_bench.subjects.subject_file import SubjectText

FILES = [
    pytest.param(block.text, id=f"{name_of(page)}-{number}")
    for page in documents()
    for number, block in enumerate(blocks(page))
    if block.language == "toml"
]


def whole(text: str) -> dict[str, object]:
    """The content of a file, of which a page may show a part only."""
    content = tomllib.loads(text)
    subject = content.setdefault("subject", {})
    subject.setdefault("name", "shown")
    if "server" not in content and "client" not in content:
        subject.setdefault("measure", "true")
    return content


@pytest.mark.parametrize("text", FILES)
def test_files_that_pages_show_are_taken(text: str) -> None:
    if "acknowledged" in tomllib.loads(text):
        assert msgspec.toml.decode(text, type=AcknowledgedFile).acknowledged
    else:
        msgspec.convert(whole(text), SubjectText)


def test_every_table_and_key_has_a_meaning() -> None:
    titles = re.findall(r"^### `\[(\w+)", subject_tables.markdown(), re.M)
    assert titles == [field.name for field in msgspec.structs.fields(SubjectText)]
    for table in subject_tables.TABLES:
        assert list(subject_tables.meanings(table)) == list(table.__struct_fields__)


def test_every_metric_of_every_preset_is_named() -> None:
    text = subject_tables.presets_markdown()
    for preset, known in PRESETS.items():
        assert all(f"| `{preset}` | `{name}` |" in text for name in known.metrics)
        assert text.count(f"| `{preset}` |") == len(known.metrics) + len(known.layouts)
