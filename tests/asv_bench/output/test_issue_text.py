"""Answers as text for an issue: whole, short enough, and with the command that repeats them."""

from __future__ import annotations

import re

import pytest

from asv_bench.git.repository import Commit
from asv_bench.output.issue_text import LIMIT, described, issue_text, lasting_names, repeating
from asv_bench.output.table import Column, Table

COLUMNS = (Column("name", "name", kind="name"), Column("value", "value"))


def text_of(rows: int, remarks: int, command: str = "kvtrail compare a b") -> str:
    table = Table(
        COLUMNS, [(f"row {number} " + 60 * "x", number) for number in range(rows)], "", "what * is"
    )
    return issue_text(
        heading="step: slower (+2.00 %)",
        commits="**b** against **a**",
        tables=[table],
        remarks=[f"remark {number} of <b>" + 2000 * "y" for number in range(remarks)],
        environment={"machine": "a CPU", "system": ""},
        command=command,
    )


def test_all_parts_are_there_and_no_text_is_markup() -> None:
    text = text_of(3, 2)
    assert text.startswith("### step: slower (+2.00 %)\n\n**b** against **a**\n\n| name | value |")
    assert text.count("\n| row ") == 3
    assert "more" not in text
    assert r"- remark 1 of \<b\>yy" in text
    assert "<sub>what \\* is</sub>" in text
    assert "```sh\nkvtrail compare a b\n```" in text
    assert "- machine: a CPU\n\n</details>" in text
    assert "system" not in text


@pytest.mark.parametrize(
    "call",
    [
        *("@org/team", "#12", "gh-7", "org/repo@1234567", "https://github.com/org/repo/issues/1"),
        *("www.github.com/org/repo/pull/2", "a@b.example", "~~struck~~", "$x$", "<!-- hidden"),
        *("&commat;octocat", "![image](x)", "a ``` b"),
    ],
)
def test_nobody_is_called_by_a_commit_or_a_command(call: str) -> None:
    told = f"Fixes {call}, closes {call}"
    text = issue_text(
        heading=told,
        commits=described(Commit("a" * 40, told)),
        tables=[Table(COLUMNS, [(told, 1)], "", told)],
        remarks=[told],
        environment={"measured": told},
        command=f"kvtrail compare a b -- {told!r}",
    )
    before, fence, command, after = re.split(r"^(```+)sh\n(.*)\n\1$", text, flags=re.M)
    assert told in command
    assert fence not in command
    assert not re.search(rf"(?<!\\){re.escape(call)}", before + after)
    # GitHub looks for what it links in what Markdown leaves: there a backslash is gone.
    shown = re.sub(r"\\([^\w\s])", r"\1", before + after)
    seen = re.compile(r"@\w|#\d|gh-\d|://|www\.", re.IGNORECASE)
    assert seen.findall(shown.replace("&#8203;", "\u200b")) == []


@pytest.mark.parametrize(("rows", "remarks"), [(5000, 0), (5000, 500)])
def test_what_is_too_long_loses_rows_and_keeps_the_command(rows: int, remarks: int) -> None:
    text = text_of(rows, remarks)
    assert LIMIT - 100 < len(text) <= LIMIT
    assert "| row 0 " in text
    assert f"| {text.count(chr(10) + '| row ') - 1} |\n\nMore rows are in the record." in text
    if remarks:
        assert f"- Left out here: {remarks - 30} more." in text
    assert text.endswith("- machine: a CPU\n\n</details>\n")


def test_the_command_names_commits_that_do_not_move_and_writes_no_files() -> None:
    given = [("HEAD~1", Commit("a" * 40)), (".", Commit("b" * 40))]
    words = ["-q", "compare", "HEAD~1", ".", "--markdown", "x.md", "--json=y.json", "--fresh"]
    words += ["--margin", "2", "--", "sh", "HEAD~1", "-q", "a b"]
    names = lasting_names(given)
    assert repeating(words, names) == (
        "kvtrail compare aaaaaaaa . --margin 2 -- sh 'HEAD~1' -q 'a b'"
    )
    assert repeating(["swap", "--base=HEAD~1"], names) == "kvtrail swap --base=aaaaaaaa"
