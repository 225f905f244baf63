"""The documents of the project, and what stands in their blocks and code spans."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
FENCE = re.compile(r"^( *)```+(?:\{code-block\} )?(\S*)[^\n]*\n(.*?)^\1```+ *$", re.M | re.S)


def documents() -> list[Path]:
    """Every page of the site and of the repository's first folder, but the changelog."""
    return [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(path: Path) -> str:
    """A page's path in the repository."""
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text without indent, and whether it is to be run.

    A block runs where its language is python, unless it is a `{code-block}`, which is an excerpt;
    or where it is console.
    """

    language: str
    text: str
    is_excerpt: bool


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = []
    for match in FENCE.finditer(path.read_text("utf-8")):
        indent, language, text = match.groups()
        plain = re.sub(rf"^{indent}", "", text, flags=re.M)
        found.append(Block(language, plain, "{code-block}" in match.group(0).splitlines()[0]))
    return found


def command_lines(path: Path) -> Iterator[list[str]]:
    """The words of each command line that a page shows, in blocks and in code spans."""
    text = path.read_text("utf-8")
    shown = [block.text for block in blocks(path) if block.language in ("sh", "console", "yaml")]
    shown += re.findall(r"`((?:kvtrail|nox -s) [^`]+)`", FENCE.sub("", text))
    for piece in shown:
        for line in piece.replace("\\\n", " ").splitlines():
            start = re.search(r"(?:^|[/ ])((?:kvtrail|nox -s) .*)", line)
            if start:
                # Words after a # are a remark; a shell's redirections are not the command's.
                yield shlex.split(re.sub(r"\s(?:>|\|).*", "", start.group(1)), comments=True)
