"""`report`: a page that stands alone, from results as they are stored."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from page_project import figures_in
from stored_figures import store_results

from asv_bench.cli import report as report_module
from asv_bench.errors import MeasurementFailed
from asv_bench.history.histories import Histories
from asv_bench.pages.site import build_page
from asv_bench.subjects import choose

STEP = "decode.Decode.track_step_time"
IMPORT = "host.Startup.track_import"


TRACKED = (f"scheduler.Scheduler.track_{figure}" for figure in ("step_time", "tpot"))
DESCRIBED = {
    STEP: ("seconds", ["model", "batch", "context"]),
    IMPORT: ("seconds", []),
    **dict.fromkeys(TRACKED, ("seconds", ["model"])),
}


def store(root: Path, name: str, commit: str, date: int, results: dict[str, Any]) -> None:
    """One result file of machine own-toy, whose CPU has a name that looks like HTML."""
    folder = root / "reports" / name / "own-toy"
    facts = {"cpu": "<b>fast</b> cpu", "gpu": "none"}
    store_results(folder, DESCRIBED, results, commit, date, **facts)


def page_of(root: Path, complaints: list[str] | None = None) -> str:
    """The page of what is stored below a checkout."""
    return build_page(Histories.of_checkout(root), complaints).read_text()


def step_result(*samples: float) -> dict[str, Any]:
    middle = sorted(samples)[len(samples) // 2]
    params = [["'gpt2-tiny'"], ["8"], ["128"]]
    return {STEP: [[middle], params, "1", 5000, [list(samples)]]}


@pytest.fixture
def page(tmp_path: Path) -> str:
    store(tmp_path, "asv", "a" * 40, 1000, step_result(0.001, 0.002, 0.003))
    store(tmp_path, "asv", "b" * 40, 2000, step_result(0.004, 0.004, 0.004))
    store(tmp_path, "asv-worktree", "c" * 40, 3000, {IMPORT: [[0.5], [], "1", 6000, [[0.5]]]})
    return page_of(tmp_path)


class References(HTMLParser):
    """Collects what a page fetches or links to, and checks that its tags are balanced."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.references += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def texts_of(page: str) -> str:
    """What people read, in one line."""
    body = page[page.index("<body>") : page.index('<script type="text/plain"')]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_the_page_stands_alone(page: str) -> None:
    parser = References()
    parser.feed(page)
    assert parser.open == []
    assert all(reference.startswith("#") for reference in parser.references)
    style = page[page.index("<style>") : page.index("</style>")]
    assert not re.search(r"@import|url\((?!#)", style)
    # Names from outside are escaped.
    assert "<b>fast" not in page
    assert "&lt;b&gt;fast&lt;/b&gt; cpu" in page


def test_the_page_shows_the_last_commit_and_the_working_tree(page: str) -> None:
    said = texts_of(page)
    assert "Last measured: bbbbbbbb" in said
    assert "the working tree differs from its commit; it was measured on 1970-01-01" in said.lower()
    assert re.search(
        r"step time, gpt2-tiny, batch 8, context 128 4\.00 ms ±0\.0 % \+100\.0 %", said
    )
    assert re.search(r"import 500 ms", said)


def test_figures_that_were_not_measured_again_say_how_long_ago_they_were(tmp_path: Path) -> None:
    store(tmp_path, "asv", "a" * 40, 1000, {IMPORT: [[0.5], [], "1", 5000, [[0.5]]]})
    for place, digit in enumerate("bcd"):
        store(tmp_path, "asv", digit * 40, 2000 + place, step_result(0.002))
    said = texts_of(page_of(tmp_path))
    assert "import 500 ms last measured 3 commits ago" in said
    assert "context 128 2.00 ms +0.0 % dddddddd" in said


def test_environments_have_lines_of_their_own(tmp_path: Path) -> None:
    store(tmp_path, "asv", "a" * 40, 1000, step_result(0.001))
    [path] = (tmp_path / "reports" / "asv" / "own-toy").glob("a*.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"python": "3.11"}))
    content |= {"python": "3.12", "results": step_result(0.002)}
    content["results"][STEP][3] += 1
    path.with_stem("a-3.12").write_text(json.dumps(content))
    page = page_of(tmp_path)
    [machine] = figures_in(page)["machines"]
    [graph] = machine["graphs"]
    lines = {
        machine["environments"][line["environment"]]: line["values"][0] * graph["step"]
        for line in graph["lines"]
    }
    assert lines == {"python 3.11": pytest.approx(0.001), "python 3.12": pytest.approx(0.002)}
    assert "Measured with python 3.12; python 3.11." in texts_of(page)
    assert "batch 8, context 128 2.00 ms" in texts_of(page), "that which was measured last"


def test_the_page_says_what_was_left_out(tmp_path: Path) -> None:
    store(tmp_path, "asv", "a" * 40, 1000, step_result(0.001))
    (tmp_path / "reports" / "asv" / "own-toy" / "torn.json").write_text('{"commit')
    complaints: list[str] = []
    page = page_of(tmp_path, complaints)
    assert "Left out" in page
    assert "reports/asv/own-toy/torn.json is not JSON" in page
    assert "torn.json is not JSON" in complaints[0]
    assert "Last measured: aaaaaaaa" in texts_of(page)


def test_a_series_is_given_by_column_oldest_commit_first(page: str) -> None:
    content = figures_in(page)
    [machine] = content["machines"]
    assert [content["commits"]["hash"][place][0] for place in machine["commits"]] == ["a", "b"]
    graph = next(one for one in machine["graphs"] if one["lines"])
    assert graph["key"] == f"{STEP}(gpt2-tiny, 8, 128)"
    [line] = graph["lines"]
    step = graph["step"]
    values = accumulate(line["values"])
    assert [value * step for value in values] == pytest.approx([0.002, 0.004])
    assert [value * step for value in line["lower"]] == pytest.approx([0.0005, 0])
    assert [value * step for value in line["upper"]] == pytest.approx([0.0005, 0])
    assert line["processes"] == [3, 3]
    assert re.search(graph["metric"], f"{STEP}('gpt2-tiny', 8, 128)")
    assert not re.search(graph["metric"], f"{STEP}('gpt2-tiny', 8, 1280)")
    assert graph["trend"] == (
        "2.00 ms at aaaaaaaa to 4.00 ms at bbbbbbbb, +100.0 % over 2 measured; no change found."
    )


def test_a_page_without_results_says_what_to_do_and_failed_benchmarks_are_named(
    tmp_path: Path,
) -> None:
    assert "Nothing has been measured yet" in page_of(tmp_path)
    store(tmp_path, "asv", "a" * 40, 1000, {IMPORT: [[None], [], "1", 5000]})
    page = page_of(tmp_path)
    assert "import failed aaaaaaaa" in texts_of(page)
    [machine] = figures_in(page)["machines"]
    assert machine["graphs"][0]["lines"][0]["values"] == [None]


def test_there_is_nothing_to_report_before_something_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MeasurementFailed, match="nothing has been measured yet"):
        report_module.report()
    assert not (tmp_path / "reports").exists()
