"""The page without a browser: what it says of stored results, its links, and what it leaves out."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from page_project import HERE, STEP, STEP_AT, PageProject, figures_in
from rich.console import Console
from stored_figures import store_results
from toy_project import git

from asv_bench.cli.report import report
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import NothingMeasured, Refused
from asv_bench.git.repository import short
from asv_bench.history.histories import Histories
from asv_bench.history.standing import ANSWERS, JudgedChange, keep_answers, stored_changes
from asv_bench.output.table import percentage
from asv_bench.pages.machine_view import read_verdicts
from asv_bench.pages.site import build_page, commit_url
from asv_bench.subjects import choose

SUBJECTS = Path(__file__).resolve().parents[3] / "reports" / "subjects"
BASE, HEAD = "a" * 40, "b" * 40
IMPORT = "host.Startup.track_import"
DESCRIBED = {STEP: ("seconds", ["model", "batch", "context"]), IMPORT: ("seconds", [])}


def store(root: Path, commit: str, date: int, results: dict[str, Any], **told: str) -> None:
    """One result file of machine own-toy, whose CPU has a name that looks like HTML."""
    folder = root / "reports" / "asv" / "own-toy"
    facts = {"cpu": "<b>fast</b> cpu", "gpu": "none", **told}
    store_results(folder, DESCRIBED, results, commit, date, **facts)


def step_result(*samples: float, started: int = 5000) -> dict[str, Any]:
    middle = sorted(samples)[len(samples) // 2]
    params = [["'gpt2-tiny'"], ["8"], ["128"]]
    return {STEP: [[middle], params, "1", started, [list(samples)]]}


def page_of(root: Path) -> str:
    return build_page(Histories.of_checkout(root), Console()).read_text()


def texts_of(page: str) -> str:
    """What people read, in one line."""
    body = page[page.index("<body>") : page.index('<script type="text/plain"')]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_the_page_stands_alone_and_says_what_was_measured(tmp_path: Path) -> None:
    store(tmp_path, BASE, 1000, step_result(0.001, 0.002, 0.003))
    store(tmp_path, HEAD, 2000, step_result(0.004, 0.004, 0.004))
    store(tmp_path, "0" * 40, 500, {IMPORT: [[0.5], [], "1", 4000, [[0.5]]]})
    page = page_of(tmp_path)
    assert set(re.findall(r' (?:src|href)="(.)', page)) == {"#"}
    assert not re.search(r"@import|url\((?!#)", page[: page.index("</style>")])
    # Names from outside are escaped.
    assert "<b>fast" not in page
    assert "&lt;b&gt;fast&lt;/b&gt; cpu" in page
    said = texts_of(page)
    assert "Last measured: bbbbbbbb , the newest commit" in said
    step = r"step time, gpt2-tiny, batch 8, context 128 4\.00 ms ±0\.0 % bbbbbbbb"
    assert re.search(step, said)
    assert "import 500 ms last measured 2 commits ago" in said
    content = figures_in(page)
    [machine] = content["machines"]
    assert [content["commits"]["hash"][place] for place in machine["commits"]][1:] == [BASE, HEAD]
    graph, _ = machine["graphs"]
    assert graph["key"] == f"{STEP}(gpt2-tiny, 8, 128)"
    [line] = graph["lines"]
    levels = [line[end][1:] for end in ("values", "low", "high")]
    assert levels == [[0.002, 0.004], [0.0015, 0.004], [0.0025, 0.004]]
    assert line["processes"] == [None, 3, 3]
    assert re.search(graph["metric"], f"{STEP}('gpt2-tiny', 8, 128)")
    assert not re.search(graph["metric"], f"{STEP}('gpt2-tiny', 8, 1280)")


def test_environments_have_lines_of_their_own(tmp_path: Path) -> None:
    store(tmp_path, BASE, 1000, step_result(0.001), python="3.11")
    store(tmp_path, BASE, 1000, step_result(0.002, started=5001), python="3.12")
    page = page_of(tmp_path)
    [graph] = figures_in(page)["machines"][0]["graphs"]
    # That which was measured last stands last.
    assert [line["values"] for line in graph["lines"]] == [[0.001], [0.002]]
    assert [line["began"] for line in graph["lines"]] == ["", "python 3.11 → 3.12"]
    assert "Measured with python 3.12; python 3.11." in texts_of(page)
    assert "a new series begins at aaaaaaaa, as this changed: python 3.11 → 3.12" in texts_of(page)


def test_the_page_says_what_failed_and_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Nothing has been measured yet" in page_of(tmp_path)
    store(tmp_path, BASE, 1000, {IMPORT: [[None], [], "1", 5000]})
    (tmp_path / "reports" / "asv" / "own-toy" / "torn.json").write_text('{"commit')
    page = page_of(tmp_path)
    assert "Left out reports/asv/own-toy/torn.json is not JSON" in texts_of(page)
    assert "torn.json is not JSON" in capsys.readouterr().out
    assert "import failed aaaaaaaa" in texts_of(page)
    [line] = figures_in(page)["machines"][0]["graphs"][0]["lines"]
    assert (line["values"], line["sessions"]) == ([None], [1])


def test_there_is_nothing_to_report_before_something_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NothingMeasured, match="nothing has been measured yet"):
        report()
    assert not (tmp_path / "reports").exists()


@dataclass
class BadgeProject:
    """A checkout whose commits were measured at given levels, with a badge of them."""

    root: Path
    levels: Sequence[float]

    def __post_init__(self) -> None:
        git(self.root, "init", "--quiet", "--initial-branch=main")
        lines: list[str] = []
        for place in range(len(self.levels)):
            who = f"A <a@b> {1_790_000_000 + 86400 * place} +0000"
            lines += ["commit refs/heads/main", f"committer {who}", "data 1", "x", ""]
        git(self.root, "fast-import", "--quiet", given="\n".join(lines))
        self.hashes = git(self.root, "rev-list", "--reverse", "main").split()
        for place, (commit, level) in enumerate(zip(self.hashes, self.levels, strict=True)):
            samples = (level * (1 + 0.001 * ((place * 7 + n) % 5)) for n in range(5))
            date = 1000 * (1_790_000_000 + 86400 * place)
            store(self.root, commit, date, step_result(*samples, started=5000 + place))

    @property
    def said(self) -> str:
        badge = self.root / "badge.svg"
        build_page(Histories.of_checkout(self.root), Console(), badge)
        read = ElementTree.fromstring(badge.read_text())
        shown = [one for one in read.itertext() if one.strip()]
        assert shown[0] == f"performance: {shown[2]}"
        return shown[2]

    def answer(self, verdict: Verdict, place: int, effect: float) -> None:
        """What `changes` said of the change at a place."""
        judged = [
            JudgedChange(one, Comparison("x", BASE, HEAD, verdict, effect))
            for one in stored_changes(Histories.of_checkout(self.root), ())[0]
            if one.commit.hash == self.hashes[place]
        ]
        assert len(judged) == 1
        moment = f"2026-11-20T10:00:{place}+00:00"
        keep_answers(self.root / "reports" / ANSWERS, moment, judged)


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ([1.0], "too little measured"),
        ([1.0] * 24, "no regression since v1"),
        ([1.0] * 12 + [1.1] * 12, "1 regression suspected since v1"),
        ([1.0] * 10 + [1.1] * 7 + [1.005] * 7, "no regression since v1"),
        ([1.0] * 10 + [1.1] * 7 + [1.05] * 7, "1 regression suspected since v1"),
        # Older than the last commits that count.
        ([1.0] * 10 + [1.1] * 30, "no regression since v1"),
    ],
)
def test_a_badge_says_what_stands(tmp_path: Path, levels: list[float], said: str) -> None:
    project = BadgeProject(tmp_path, levels)
    git(tmp_path, "tag", "v1", project.hashes[-20:][0])
    assert project.said == said


def test_a_confirmed_regression_stands_until_an_improvement_is_confirmed(tmp_path: Path) -> None:
    project = BadgeProject(tmp_path, [1.0] * 10 + [1.1] * 7 + [1.0] * 7)
    since = "since 2026-09-25"
    assert project.said == f"no regression {since}"
    project.answer(Verdict.SLOWER, 10, 0.1)
    assert project.said == f"1 regression {since}"
    project.answer(Verdict.FASTER, 17, -0.09)
    assert project.said == f"no regression {since}"


def test_a_badge_is_of_all_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = PageProject.make(tmp_path)
    git(tmp_path, "tag", "v<1>", project.hashes[10])  # the newest first commit of any machine
    monkeypatch.setattr(choose, "REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    badge = tmp_path / "new" / "badge.svg"
    report(badge=badge)
    assert "<title>performance: 1 regression since v&lt;1&gt;</title>" in badge.read_text()
    kept = tmp_path / "reports" / "acknowledged.toml"
    kept.write_text(f'[[acknowledged]]\ncommit = "{project.hashes[STEP_AT]}"\nwhy = "meant"\n')
    report(badge=badge)
    assert "<title>performance: no regression since v&lt;1&gt;</title>" in badge.read_text()
    capsys.readouterr()
    report(badge=Path("-"))
    assert capsys.readouterr().out == badge.read_text()
    with pytest.raises(Refused, match="cannot be written"):
        report(badge=tmp_path)


def test_a_commit_has_the_address_that_is_configured_or_that_of_its_remote(tmp_path: Path) -> None:
    repository, kept = tmp_path / "repository", tmp_path / "kept"
    for folder in (repository, kept):
        folder.mkdir()
    git(repository, "init", "--quiet")
    assert commit_url(kept, repository) == ""
    git(repository, "remote", "add", "origin", "/srv/git/name.git")
    from_remote = "https://github.com/owner/name/commit/"
    for remote, page in (
        ("https://github.com/owner/name", from_remote),
        ("https://user:word@github.com/owner/name.git", from_remote),
        ("ssh://git@gitlab.example:2222/a/b/c.git", "https://gitlab.example/a/b/c/-/commit/"),
        *((other, "") for other in ("git@forge.example:owner/name.git", "https://github.com/<b>")),
        ("git@github.com:owner/name.git", from_remote),
    ):
        git(repository, "remote", "set-url", "origin", remote)
        assert commit_url(kept, repository) == page, remote
    for text, shown in (
        ('{"show_commit_url": "https://forge.example/c/"}', "https://forge.example/c/"),
        ('{"show_commit_url": "javascript:alert(1)//"}', from_remote),
        *((text, from_remote) for text in ("{}", "{")),
    ):
        (repository / "asv.conf.json").write_text(text)
        assert commit_url(kept, repository) == shown
    (kept / "asv.conf.json").write_text('{"show_commit_url": "http://kept.example/c/"}')
    assert commit_url(kept, repository) == "http://kept.example/c/"


def record(command: str, results: dict[str, Any], machine: str = "m", **subject: str) -> str:
    content = {
        "command": command,
        "started": "2026-11-20T10:00:00+00:00",
        "machine": {"name": machine},
        "settings": {"subject": subject or {"kind": "kvtrail"}},
        "results": results,
    }
    return json.dumps(content)


@pytest.mark.parametrize("path", [*SUBJECTS.glob("*/bisect-*.json")], ids=lambda path: path.stem)
def test_a_bisection_has_a_page_of_its_own(tmp_path: Path, path: Path) -> None:
    content = json.loads(path.read_text())
    settings, finding = content["settings"], content["results"]["finding"]
    (tmp_path / path.name).symlink_to(path)
    histories = Histories(settings["subject"]["name"], tmp_path, tmp_path, tmp_path)
    index = build_page(histories, Console())
    page = (index.parent / f"{path.stem}.html").read_text()
    [named], said = finding["suspects"], texts_of(page)
    answer = rf"{settings['benchmark']} ?: first (faster|slower) (label|commit): {short(named)}"
    assert re.search(answer, said)
    assert re.search(answer, texts_of(index.read_text()))
    assert f'href="{path.stem}.html"' in index.read_text()
    assert (
        f"To repeat it: kvtrail bisect {content['argv'][content['argv'].index('bisect') + 1]}"
        in said
    )
    assert f"{percentage(finding['gate']['effect'], 2, signed=True)} (" in said
    # Each commit stands in a table, with its probability, and each pair.
    rows = [row.split("|") for row in re.sub("</td><td[^>]*>", "|", page).split("<tr><td")[1:]]
    for row, commit in zip(rows, settings["commits"], strict=True):
        assert short(commit["hash"]) in row[0]
        assert row[4].startswith(percentage(finding["posterior"].get(commit["hash"], 0.0), 1))
    [pairs] = re.findall("<pre>(.*?)</pre>", page, re.S)
    for line, one in zip(pairs.splitlines(), content["samples"], strict=True):
        assert short(one["commit"]) in line
        assert (f"{one['guess']['probability']:.0%}" if one["guess"] else one["stage"]) in line
    [graph] = figures_in(page)["machines"][0]["graphs"]
    levels = [one for one in graph["lines"][0]["values"] if one is not None]
    assert levels == [0, *(100 * point["effect"] for point in finding["curve"])]
    lives = {
        (end["commit"], end["started_at"]) for one in content["samples"] for end in ends_in(one)
    }
    assert len(graph["lives"]) == len(lives)


def ends_in(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [sample["pair"]["base"], sample["pair"]["head"]] if sample["pair"] else []


def test_bisections_of_results_and_of_files_have_pages_of_tables(tmp_path: Path) -> None:
    project = PageProject.make(tmp_path)
    ends, names = (project.hashes[20], project.hashes[22]), ["a.py", "b.py"]
    listed = [
        {"hash": one, "subject": f"<{place}>", "author": ""} for place, one in enumerate(ends)
    ]
    answer = "first commit with another result: <1>; tokens: [0] was 7 and is 8."
    gate = comparison("m", *ends)
    part = {"before": [], "changes": [0], "comparison": gate, "why_not": ""}
    guilty = {**part, "against_whole": None, "share": None, "is_confirmed": True, "alpha": 0.001}
    of_files = {"outcome": "found", "direction": "regression", "reason": "", "gate": gate}
    of_files |= {"guilty": [guilty], "tries": [part]}
    told = {"benchmark": f"{STEP}('gpt2', 8)", "good": project.hashes[19], "bad": ends[1]}
    of_commits = {"outcome": "none", "direction": "regression", "reason": "", "gate": gate, **told}
    of_commits["confirmations"] = [comparison(told["benchmark"], project.hashes[21], ends[1])]
    for name, settings, results in (
        (
            "1",
            {"commits": listed, "check": "tokens"},
            {"finding": {}, "answer": answer, "seen": {ends[1]: "other"}},
        ),
        ("2", {"files": names, "benchmark": "m"}, {"finding": of_files}),
        ("3", {"commits": listed, "benchmark": "m"}, {"finding": of_commits}),
        ("4", {"commits": listed, "benchmark": "m"}, {"finding": None}),
    ):
        content = json.loads(
            record("bisect", {**results, "repeat": f"kvtrail bisect {name}"}, HERE)
        )
        content["settings"] |= settings
        content |= {"samples": [], "notes": ["a note"], "warnings": [], "argv": []}
        (tmp_path / "reports" / "runs" / f"bisect-{name}.json").write_text(json.dumps(content))
    index = page_of(tmp_path)
    pages = tmp_path / "reports" / "pages"
    made = {path.name for path in pages.iterdir()}
    assert made == {"index.html", *(f"bisect-{name}.html" for name in "123")}
    assert index.count('<a href="bisect-3.html">How it was bisected.</a>') == 1
    first, second = (texts_of((pages / f"bisect-{name}.html").read_text()) for name in "12")
    assert answer in first
    assert answer in texts_of(index)
    assert f"{short(ends[1])} <1>: other To repeat it: kvtrail bisect 1 a note" in first
    assert "a.py makes it slower: " in second
    assert "To repeat it: kvtrail bisect 2" in second


def test_the_page_says_other_results_where_it_says_the_speed(tmp_path: Path) -> None:
    project = PageProject.make(tmp_path)
    base, head, last = (project.hashes[place] for place in (STEP_AT - 2, STEP_AT, STEP_AT + 2))
    runs = tmp_path / "reports" / "runs"
    for name, end, verdict, what in (
        ("1", head, "differs", "other result, [0] was 7 & is 8"),
        ("2", last, "differs", "other result, later taken back"),
        ("3", last, "same", "same result, in 6 lives of either end"),
    ):
        check = {"check": "tokens", "base": base, "head": end, "verdict": verdict, "what": what}
        found = comparison(f"{STEP}('gpt2', 8)", base, end)
        results = {"comparisons": [found], "checks": [{**check, "lives": 6}]}
        (runs / f"compare-{name}.json").write_text(record("compare", results, HERE))
    page = page_of(tmp_path)
    said = texts_of(page)
    speed = f"compare: slower, +8.00 % against {short(base)} in 6 pairs, other result"
    assert f"{short(head)}: {speed}; tokens: other result, [0] was 7 & is 8." in said
    assert f"Other results {short(head)} against {short(base)} : tokens: other result" in said
    assert said.count("later taken back") == 1
    graphs = next(one["graphs"] for one in figures_in(page)["machines"] if one["name"] == HERE)
    texts = [one["text"] for graph in graphs for one in graph["verdicts"]]
    assert f"{speed}; tokens: other result, [0] was 7 & is 8" in texts


def comparison(benchmark: str, base: str, head: str, verdict: str = "slower") -> dict[str, Any]:
    said = {"verdict": verdict, "effect": 0.08, "pairs_used": 6}
    return {"benchmark": benchmark, "base": base, "head": head, **said}


def test_records_of_this_subject_are_told_from_others(tmp_path: Path) -> None:
    runs = tmp_path / "reports" / "runs"
    runs.mkdir(parents=True)
    one = comparison("a.B.track_c('x', 8)", BASE, HEAD)
    for name, text in {
        "compare-1": record("compare", {"comparisons": [one]}),
        "compare-2": record("compare", {"comparisons": [one]}, kind="command", name="other"),
        "compare-3": record("compare", {"comparisons": [one | {"effect": None}]}),
        "compare-4": "{}",
        "bisect-1": record("bisect", {"finding": {"confirmations": [one]}}),
        "fixed-1": record("fixed", {"fixed": [{"sentence": "c: it is fixed."}]}),
    }.items():
        (runs / f"{name}.json").write_text(text)
    found = read_verdicts(Histories.of_checkout(tmp_path))
    assert {path.stem for path in found} == {"bisect-1", "compare-1", "compare-3", "fixed-1"}
    assert read_verdicts(Histories("kvtrail", runs, runs, tmp_path)) == {}, "it is called the same"
    assert [(one.key, one.sentence) for verdicts in found.values() for one in verdicts] == [
        ("a.B.track_c(x, 8)", f"{command}: slower, +8.00 % against aaaaaaaa in 6 pairs")
        for command in ("compare", "bisect")
    ]


@pytest.mark.parametrize(
    ("command", "named", "base", "head", "verdict", "state"),
    [
        ("bisect", "{}", 21, 22, "slower", "regression"),
        ("compare", "{}", 18, 34, "slower", "regression"),  # no other change is in between
        ("fixed", "{} culprit/parent", 21, 22, "slower", "regression"),
        ("compare", "{}", 2, 12, "slower", "candidate"),
        ("compare", "{}", 21, 22, "faster", "candidate"),
        ("fixed", "other culprit/parent", 21, 22, "slower", "candidate"),
    ],
)
def test_what_any_command_confirmed_is_confirmed_on_the_page(
    tmp_path: Path, command: str, named: str, base: int, head: int, verdict: str, state: str
) -> None:
    project = PageProject.make(tmp_path)
    ends = project.hashes[base], project.hashes[head]
    found = [comparison(named.format(f"{STEP}('gpt2', 64)"), *ends, verdict)]
    is_bisect = command == "bisect"
    results = {"finding": {"confirmations": found}} if is_bisect else {"comparisons": found}
    path = tmp_path / "reports" / "runs" / f"{command}-2.json"
    path.write_text(record(command, results, HERE))
    machines = figures_in(page_of(tmp_path))["machines"]
    [graphs] = [one["graphs"] for one in machines if one["name"] == HERE]
    [graph] = [one for one in graphs if one["key"] == f"{STEP}(gpt2, 64)"]
    [change] = graph["changes"]
    assert change["state"] == state
    assert ("+8.00 % in 6 pairs" in change["text"]) == (state == "regression")
