"""Prompts from files: what ends one, and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from asv_bench.errors import Refused
from asv_bench.workloads.prompts import read_texts


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
    with pytest.raises(Refused, match=f"prompts in {path} cannot be read"):
        read_texts(None, [f"@{path}"])
    with pytest.raises(Refused, match=f"prompts in {tmp_path} cannot be read"):
        read_texts(None, [f"@{tmp_path}"])
