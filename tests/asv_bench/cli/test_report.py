"""`report`: a page that stands alone, from results as they are stored."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from asv_bench.cli import report as report_module
from asv_bench.errors import MeasurementFailed
from asv_bench.git.commits import commits_in_order
from asv_bench.git.repository import Commit, Repository
from asv_bench.history.asv_results import Figure, Series, dates_of
from asv_bench.history.histories import Histories
from asv_bench.pages.plots import plot_history
from asv_bench.pages.site import build_page

STEP = "decode.Decode.track_step_time"
IMPORT = "host.Startup.track_import"


def store(root: Path, name: str, commit: str, date: int, results: dict[str, Any]) -> None:
    """One result file of machine own-toy, whose CPU has a name that looks like HTML."""
    results_directory = root / "reports" / name
    machine = results_directory / "own-toy"
    machine.mkdir(parents=True, exist_ok=True)
    described: dict[str, Any] = {
        STEP: {"unit": "seconds", "param_names": ["model", "batch", "context"], "version": "1"},
        IMPORT: {"unit": "seconds", "param_names": [], "version": "1"},
        **{
            f"scheduler.Scheduler.track_{figure}": {
                "unit": "seconds",
                "param_names": ["model"],
                "version": "1",
            }
            for figure in ("step_time", "tpot")
        },
        "version": 2,
    }
    (results_directory / "benchmarks.json").write_text(json.dumps(described))
    facts = {"machine": "own-toy", "cpu": "<b>fast</b> cpu", "gpu": "none", "version": 1}
    (machine / "machine.json").write_text(json.dumps(facts))
    content = {
        "commit_hash": commit,
        "date": date,
        "result_columns": ["result", "params", "version", "started_at", "samples"],
        "results": results,
    }
    (machine / f"{commit[:8]}-host-py3.11.json").write_text(json.dumps(content))


def step_result(*samples: float) -> dict[str, Any]:
    middle = sorted(samples)[len(samples) // 2]
    params = [["'gpt2-tiny'"], ["8"], ["128"]]
    return {STEP: [[middle], params, "1", 5000, [list(samples)]]}


@pytest.fixture
def page(tmp_path: Path) -> str:
    store(tmp_path, "asv", "a" * 40, 1000, step_result(0.001, 0.002, 0.003))
    store(tmp_path, "asv", "b" * 40, 2000, step_result(0.004, 0.004, 0.004))
    store(tmp_path, "asv-worktree", "c" * 40, 3000, {IMPORT: [[0.5], [], "1", 6000, [[0.5]]]})
    return build_page(Histories.of_checkout(tmp_path)).read_text()


class References(HTMLParser):
    """Collects what a page fetches or links to, and checks that its tags are balanced."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.scripts = 0
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag not in self.VOID:
            self.open.append(tag)
        self.references += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(page: str) -> None:
    parser = References()
    parser.feed(page)
    assert parser.open == []
    assert parser.scripts == 0
    assert all(reference.startswith("#") for reference in parser.references)
    assert not re.search(r"@import|url\((?!#)", page)


def test_the_page_shows_the_last_commit_and_the_working_tree(page: str) -> None:
    assert "Uncommitted, measured 1970-01-01 00:00 UTC" in page
    assert "Commit bbbbbbbb" in page
    assert re.search(r"startup, import.*?500 ms", page, re.S)
    assert re.search(r"context 128</td><td>8</td>\s*<td>4\.00 ms", page)
    assert "±0.0 %" in page


def test_each_row_says_when_it_was_measured(tmp_path: Path) -> None:
    hour, minute = 3_600_000, 60_000
    rows = {
        IMPORT: [[0.5], [], "1", 6 * hour, [[0.5]]],
        "scheduler.Scheduler.track_step_time": [[0.5], [["'gpt2'"]], "1", 7 * hour, [[0.5]]],
        "scheduler.Scheduler.track_tpot": [[0.5], [["'gpt2'"]], "1", 7 * hour + minute, [[0.5]]],
    }
    store(tmp_path, "asv", "a" * 40, 1000, rows)
    page = build_page(Histories.of_checkout(tmp_path)).read_text()
    assert re.search(r"startup, import</td>.*?<td>1970-01-01 06:00 UTC</td>\s*</tr>", page, re.S)
    assert "<td>1970-01-01 07:00 UTC to 1970-01-01 07:01 UTC</td>" in page
    assert re.search(r"Commit aaaaaaaa\s*</caption>", page)


def test_environments_have_sections_of_their_own(tmp_path: Path) -> None:
    store(tmp_path, "asv", "a" * 40, 1000, step_result(0.001))
    [path] = (tmp_path / "reports" / "asv" / "own-toy").glob("a*.json")
    content = json.loads(path.read_text())
    for python, seconds in (("3.11", 0.001), ("3.12", 0.002)):
        content |= {"python": python, "params": {"cpu": "a cpu"}, "results": step_result(seconds)}
        path.with_stem(f"a-{python}").write_text(json.dumps(content))
    path.unlink()
    page = build_page(Histories.of_checkout(tmp_path)).read_text()
    sections = re.findall(r'<section id="(.*?)">(.*?)</section>', page, re.S)
    assert [name for name, _ in sections] == ["own-toy", "own-toy-2"]
    shown = {
        re.search(r"Python</dt><dd>(.*?)</dd>", text)[1]: re.search(r"<td>(.* ms)", text)[1]
        for _, text in sections
    }
    assert shown == {"3.11": "1.00 ms", "3.12": "2.00 ms"}


def test_the_page_says_what_was_left_out(tmp_path: Path) -> None:
    store(tmp_path, "asv", "a" * 40, 1000, step_result(0.001))
    (tmp_path / "reports" / "asv" / "own-toy" / "torn.json").write_text('{"commit')
    complaints: list[str] = []
    page = build_page(Histories.of_checkout(tmp_path), complaints).read_text()
    assert "Left out" in page
    assert "reports/asv/own-toy/torn.json is not JSON" in page
    assert "torn.json is not JSON" in complaints[0]
    assert "Commit aaaaaaaa" in page


def test_names_from_outside_are_escaped(page: str) -> None:
    assert "<b>fast" not in page
    assert "&lt;b&gt;fast&lt;/b&gt; cpu" in page


def test_a_series_of_two_commits_is_plotted_oldest_first(page: str) -> None:
    (svg,) = re.findall(r"<svg.*?</svg>", page, re.S)
    assert 'aria-label="step time, gpt2-tiny, batch 8, context 128"' in svg
    assert svg.index(">aaaaaaaa<") < svg.index(">bbbbbbbb<")
    assert ">ms<" in svg


def test_a_plot_takes_its_colours_from_the_page() -> None:
    series = Series(STEP, (("batch", "8"),))
    commits = [Commit("a" * 40), Commit("b" * 40)]
    figures = [Figure(series, "floors", "m", commit.hash, 0, (2.0, 3.0), 0) for commit in commits]
    svg = plot_history('a "title" & <more>', figures, commits)
    assert 'aria-label="a &quot;title&quot; &amp; &lt;more&gt;"' in svg
    assert "var(--accent)" in svg
    assert not re.search(r"#0[1-9]0", svg)
    assert ">floors<" in svg


def test_failed_benchmarks_are_named_on_the_page(tmp_path: Path) -> None:
    store(tmp_path, "asv", "a" * 40, 1000, {IMPORT: [[None], [], "1", 5000]})
    page = build_page(Histories.of_checkout(tmp_path)).read_text()
    assert "failed: import" in page
    assert "<svg" not in page


def test_a_page_without_results_says_what_to_do(tmp_path: Path) -> None:
    page = build_page(Histories.of_checkout(tmp_path)).read_text()
    assert "Nothing has been measured yet" in page


def test_commits_unknown_to_the_repository_stand_by_their_date(tmp_path: Path) -> None:
    series = Series(IMPORT, ())
    figures = [
        Figure(series, "seconds", "m", digit * 40, date, (1.0,), 0)
        for digit, date in (("a", 3), ("b", 1), ("c", 2))
    ]
    assert [
        commit.short[0] for commit in commits_in_order(dates_of(figures), Repository(tmp_path))
    ] == ["b", "c", "a"]


def test_there_is_nothing_to_report_before_something_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "REPOSITORY", tmp_path)
    with pytest.raises(MeasurementFailed, match="nothing has been measured yet"):
        report_module.report()
    assert not (tmp_path / "reports").exists()
