"""Answers as text for an issue: whole, short enough, and with the command that repeats them."""

from __future__ import annotations

import re

import pytest

from asv_bench.git.repository import Commit
from asv_bench.output.issue_text import LIMIT, described, issue_text, lasting_names, repeating
from asv_bench.output.table import Column, Table

COLUMNS = (Column("name", "name", kind="name"), Column("value", "value"))


def text_of(rows: int, remarks: int) -> str:
    lines = [(f"row {number} " + 60 * "x", number) for number in range(rows)]
    return issue_text(
        "step: slower (+2.00 %)",
        "**b** against **a**",
        [Table(COLUMNS, lines, "", "what * is")],
        [f"remark {number} of <b>" + 2000 * "y" for number in range(remarks)],
        {"machine": "a CPU", "system": ""},
        "kvtrail compare a b",
    )


def test_all_parts_are_there_and_no_text_is_markup() -> None:
    text = text_of(3, 2)
    assert text.startswith("### step: slower (+2.00 %)\n\n**b** against **a**\n\n| name | value |")
    assert (text.count("\n| row "), "more" in text) == (3, False)
    assert r"- remark 1 of \<b\>yy" in text
    assert "<sub>what \\* is</sub>" in text
    assert "```sh\nkvtrail compare a b\n```" in text
    assert "Environment</summary>\n\n- machine: a CPU\n\n</details>" in text


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
    commits, table = described(Commit("a" * 40, told)), Table(COLUMNS, [(told, 1)], "", told)
    command = f"kvtrail compare a b -- {told!r}"
    text = issue_text(told, commits, [table], [told], {"measured": told}, command)
    before, fence, command, after = re.split(r"^(```+)sh\n(.*)\n\1$", text, flags=re.M)
    assert told in command
    assert fence not in command
    assert not re.search(rf"(?<!\\){re.escape(call)}", before + after)
    # GitHub looks for what it links in what Markdown leaves: there a backslash is gone.
    shown = re.sub(r"\\([^\w\s])", r"\1", before + after)
    seen = re.compile(r"@\w|#\d|gh-\d|://|www\.", re.IGNORECASE)
    assert seen.findall(shown.replace("&#8203;", "\u200b")) == []


def test_what_is_too_long_loses_rows_and_keeps_the_command() -> None:
    text = text_of(5000, 500)
    assert LIMIT - 100 < len(text) <= LIMIT
    assert f"| {text.count(chr(10) + '| row ') - 1} |\n\nMore rows are in the record." in text
    assert "- Left out here: 470 more." in text
    assert text.endswith("- machine: a CPU\n\n</details>\n")


def test_the_command_names_commits_that_do_not_move_and_writes_no_files() -> None:
    given = [("HEAD~1", Commit("a" * 40)), (".", Commit("b" * 40))]
    words = ["-q", "compare", "HEAD~1", ".", "--markdown", "x.md", "--json=y.json", "--fresh"]
    words += ["--margin", "2", "--", "sh", "HEAD~1", "-q", "a b"]
    names = lasting_names(given)
    assert repeating(words, names) == (
        "kvtrail compare aaaaaaaa . --margin 2 -- sh 'HEAD~1' -q 'a b'"
    )
    words = ["swap", "--format", "junit", "--base=HEAD~1"]
    assert repeating(words, names) == "kvtrail swap --base=aaaaaaaa"
