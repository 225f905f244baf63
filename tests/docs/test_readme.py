"""The README is short, its links lead somewhere, and its examples make sense on a fresh clone."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from documents import ROOT, TOP

from asv_bench import __version__

README = (ROOT / "README.md").read_text("utf-8")
MOST_WORDS = 900


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


@pytest.mark.parametrize("name", TOP)
def test_links_lead_to_files(name: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text("utf-8"))
    assert not [target for target in targets if not (ROOT / target).exists()]


def test_no_example_compares_a_commit_with_itself_on_a_fresh_clone() -> None:
    examples = re.findall(r"(?:nox -s|kvtrail) compare (?:-- )?([\w.~]+) ([\w.~]+)", README)
    assert len(examples) >= 3
    # There main, HEAD and the working tree are one commit.
    assert not [ends for ends in examples if set(ends) <= {"main", "HEAD", "."}]
    # Commits near HEAD may differ in nothing that is measured here.
    own = re.findall(r"nox -s (?:compare|bisect) -- (\S+) (\S+)", README)
    assert len(own) >= 3
    assert not [end for end in chain(*own) if end != "." and not re.fullmatch("[0-9a-f]{7,}", end)]


def test_the_changelog_has_a_dated_section_for_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    sections = re.findall(r"^## (.+)$", changelog, re.M)
    assert sections[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(__version__)} - \d{{4}}-\d\d-\d\d", sections[1])
