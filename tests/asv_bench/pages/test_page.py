"""The page without a browser: its colours, its links, and what it takes from other commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from page_project import HERE, STEP, PageProject, figures_in, made_up_site
from toy_project import git

from asv_bench.history.histories import Histories
from asv_bench.pages.records import read_records, reasons_of
from asv_bench.pages.site import build_page, commit_url, page_of_remote

BASE, HEAD = "a" * 40, "b" * 40


def luminance(colour: str) -> float:
    """Of a colour such as #0b6486, as the guidelines for accessible content define it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_contrast(scheme: str) -> None:
    page = made_up_site(benchmarks=1, commits=2).render()
    # It names the licence of what it carries.
    assert "Copyright (c) 2022 Leon Sorokin" in page
    assert "Permission is hereby granted" in page
    light, dark = re.findall(r":root \{(.*?)\}", page, re.S)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", light if scheme == "light" else dark))
    texts = ("ink", "muted", "accent", "worse", "better", "open")
    assert min(contrast(colours[one], colours["ground"]) for one in texts) >= 4.5
    assert min(contrast(colours[one], colours["raised"]) for one in texts) >= 4.5
    drawn = [name for name in colours if name.startswith("line-")]
    assert min(contrast(colours[one], colours["ground"]) for one in ("faint", *drawn)) >= 3


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("git@github.com:owner/name.git", "https://github.com/owner/name/commit/"),
        ("https://github.com/owner/name", "https://github.com/owner/name/commit/"),
        ("https://user:word@github.com/owner/name.git", "https://github.com/owner/name/commit/"),
        (
            "ssh://git@gitlab.org.example:2222/a/b/c.git",
            "https://gitlab.org.example/a/b/c/-/commit/",
        ),
        ("git@forge.example:owner/name.git", ""),
        ("/srv/git/name.git", ""),
        ("../github.com/name", ""),
    ],
)
def test_commits_are_linked_where_their_pages_are_known(remote: str, page: str) -> None:
    assert page_of_remote(remote) == page


def test_the_configuration_of_asv_says_where_commits_are_shown(tmp_path: Path) -> None:
    repository, kept = tmp_path / "repository", tmp_path / "kept"
    for folder in (repository, kept):
        folder.mkdir()
    git(repository, "init", "--quiet")
    assert commit_url(kept, repository) == ""
    git(repository, "remote", "add", "origin", "git@github.com:owner/name.git")
    from_remote = "https://github.com/owner/name/commit/"
    for text, shown in (
        ('{"show_commit_url": "https://forge.example/c/"}', "https://forge.example/c/"),
        ('{"show_commit_url": "javascript:alert(1)//"}', from_remote),
        ("{}", from_remote),
        ("{", from_remote),
    ):
        (repository / "asv.conf.json").write_text(text)
        assert commit_url(kept, repository) == shown
    (kept / "asv.conf.json").write_text('{"show_commit_url": "http://kept.example/c/"}')
    assert commit_url(kept, repository) == "http://kept.example/c/"


def record(command: str, subject: Any, results: dict[str, Any]) -> str:
    ends = {"base": {"hash": BASE}, "head": {"hash": HEAD}}
    content = {
        "command": command,
        "started": "2026-11-20T10:00:00+00:00",
        "machine": {"name": "m"},
        "settings": {"subject": subject, **ends},
        "results": results,
    }
    return json.dumps(content)


def comparison(verdict: str, effect: float | None) -> dict[str, Any]:
    ends = {"benchmark": "a.B.track_c('x', 8)", "base": BASE, "head": HEAD}
    return {**ends, "verdict": verdict, "effect": effect, "pairs_used": 6}


def test_records_of_this_subject_are_told_from_others(tmp_path: Path) -> None:
    own, other = {"kind": "kvtrail"}, {"kind": "command", "name": "other"}
    runs = tmp_path / "reports" / "runs"
    runs.mkdir(parents=True)
    slower = {"comparisons": [comparison("slower", 0.05)]}
    finding = {"outcome": "found", "benchmark": "c", "good": BASE, "bad": HEAD, "suspects": [HEAD]}
    bisected = {"finding": {**finding, "confirmations": [comparison("slower", 0.06)]}}
    for name, text in {
        "compare-1": record("compare", own, slower),
        "compare-2": record("compare", other, slower),
        "compare-3": record("compare", own, {"comparisons": [comparison("failed", None)]}),
        "compare-4": "{",
        "compare-5": "{}",
        "bisect-1": record("bisect", own, bisected),
        "explain-1": record("explain", own, {"answer": ["1. A copy more.", "That is all."]}),
        "fixed-1": record("fixed", own, {"fixed": [{"sentence": "c: it is fixed."}]}),
        "explain-2": record("explain", other, {"answer": ["1. A loop."]}),
    }.items():
        (runs / f"{name}.json").write_text(text)
    histories = Histories.of_checkout(tmp_path)
    records = read_records(histories)
    own_ones = {"bisect-1", "compare-1", "compare-3", "explain-1", "fixed-1"}
    assert {path.stem for path in records} == own_ones
    verdicts = [one for record in records.values() for one in record.verdicts]
    assert {(one.key, one.said.verdict, one.sentence) for one in verdicts} == {
        ("a.B.track_c(x, 8)", "slower", "compare: slower, +5.00 % against aaaaaaaa in 6 pairs"),
        ("a.B.track_c(x, 8)", "slower", "bisect: slower, +6.00 % against aaaaaaaa in 6 pairs"),
    }
    assert reasons_of(records) == {HEAD: ["1. A copy more.", "That is all."]}


@pytest.mark.parametrize(
    ("command", "named", "base", "head", "verdict", "state"),
    [
        ("bisect", "{}", 21, 22, "slower", "regression"),
        ("compare", "{}", 21, 22, "slower", "regression"),
        ("compare", "{}", 18, 34, "slower", "regression"),  # no other change is in between
        ("fixed", "{} culprit/parent", 21, 22, "slower", "regression"),
        ("compare", "{}", 2, 12, "slower", "candidate"),
        ("compare", "{}", 21, 22, "faster", "candidate"),
        ("compare", "{}", 21, 22, "inconclusive", "candidate"),
        ("fixed", "other culprit/parent", 21, 22, "slower", "candidate"),
    ],
)
def test_what_any_command_confirmed_is_confirmed_on_the_page(
    tmp_path: Path, command: str, named: str, base: int, head: int, verdict: str, state: str
) -> None:
    project = PageProject.make(tmp_path)
    compared = {
        **comparison(verdict, 0.08),
        "benchmark": named.format(f"{STEP}('gpt2', 64)"),
        "base": project.hashes[base],
        "head": project.hashes[head],
    }
    found = {"outcome": "found", "benchmark": STEP, "confirmations": [compared]}
    results: dict[str, Any] = {"finding": found}
    if command != "bisect":
        results = {"comparisons": [compared]}
    text = record(command, {"kind": "kvtrail"}, results).replace('"m"', f'"{HERE}"')
    (tmp_path / "reports" / "runs" / f"{command}-2.json").write_text(text)
    page = build_page(project.histories).read_text()
    [graphs] = [one["graphs"] for one in figures_in(page)["machines"] if one["name"] == HERE]
    [graph] = [one for one in graphs if one["key"] == f"{STEP}(gpt2, 64)"]
    [change] = graph["changes"]
    assert change["state"] == state
    assert ("+8.00 % in 6 pairs" in change["text"]) == (state == "regression")
