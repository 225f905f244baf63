"""`history`: which commits it measures, what it refuses, and the page it leaves."""

from __future__ import annotations

import json
import re
from _thread import interrupt_main
from collections.abc import Callable
from contextlib import closing
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from browser import Browser, chromium
from rich.console import Console
from toy_project import ToyProject, git, make_project

from asv_bench.cli import history as history_module
from asv_bench.cli.report import build_all_pages, report
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.history.asv_results import read_ratios, read_results
from asv_bench.history.histories import Histories
from asv_bench.history.history_session import MeasuringHistory
from asv_bench.measure import log
from asv_bench.output import record
from asv_bench.session import session
from asv_bench.session.options import EngineOptions, Outputs, RunningOptions
from asv_bench.subjects import choose, own_suite
from asv_bench.subjects.own_suite import OwnSuite


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToyProject:
    """A checkout of kvtrail, as the commands see it, on a machine of its own."""
    project = make_project(tmp_path / "project", commits=3)
    monkeypatch.setenv("KVTRAIL_MACHINE", "toy")
    monkeypatch.setattr(own_suite, "PRELOAD", ("asv_runner.benchmarks",))
    return as_seen(project, monkeypatch)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToyProject:
    """One of which nothing is measured."""
    return as_seen(make_project(tmp_path / "project", commits=3, measures=False), monkeypatch)


def as_seen(project: ToyProject, monkeypatch: pytest.MonkeyPatch) -> ToyProject:
    monkeypatch.setattr(choose, "REPOSITORY", project.root)
    monkeypatch.setattr(session, "WORKPLACE", project.root)
    monkeypatch.setattr(log, "FOLDER", project.root.parent / "lives")
    monkeypatch.setattr(record, "RUNS", project.root / "reports" / "runs")
    monkeypatch.chdir(project.root)
    return project


def measure(*ranges: str, **options: Any) -> None:
    """`history` of the toy's one figure."""
    given = {"asked": EngineOptions(), "how": RunningOptions(), "files": Outputs(), **options}
    history_module.history([*ranges], benchmark=["track_step"], **given)


def stored(toy: ToyProject) -> dict[str, tuple[float, ...]]:
    """What is stored of each commit."""
    figures = read_results(toy.root / "reports" / "asv").figures
    return {figure.commit: figure.samples for figure in figures}


def test_a_range_is_measured_and_shown_beside_a_reference(
    toy: ToyProject, capsys: pytest.CaptureFixture[str]
) -> None:
    (toy.root / "README.md").write_text("not measured, so it may differ\n")
    _, second, third = toy.commits
    measure("HEAD~1..HEAD", rounds=2, reference=second)
    assert stored(toy) == {second: (2.0, 2.0), third: (3.0, 3.0)}
    page = toy.root / "reports" / "pages" / "index.html"
    text = page.read_text()
    # Both commits are of one second: only their parentage orders them on the axis.
    assert text.rindex(f"<code>{second[:8]}</code>") < text.rindex(f"<code>{third[:8]}</code>")
    assert "step 3 &lt;b&gt;" in text
    assert (toy.root / "reports" / "html" / "index.html").is_file()
    assert toy.git("status", "--porcelain").split() == ["??", "README.md"]
    [session] = (toy.root / "reports" / "asv-sessions").glob("*/*.json")
    content = json.loads(session.read_text())
    assert content["reference"] == second
    kept = {row["commit"]: row["ratio"] for row in content["figures"]}
    assert kept == {second: 1.0, third: 1.5}
    ratios = read_ratios(session.parents[1], session.parent.name, [])
    assert set(ratios.values()) == {(second, 2.0)}
    said = capsys.readouterr().out
    assert f"measuring 2 commits in 2 rounds, beside {second[:8]}" in said
    assert f"{third[:8]}, the last of 2" in said
    assert "3.00 s" in said
    assert said.rstrip().endswith(str(page))


def test_commits_with_the_engine_of_the_one_before_are_not_measured(
    toy: ToyProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (toy.root / "README.md").write_text("only this is new\n")
    toy.commit("document it")
    toy.git("commit", "--quiet", "--allow-empty", "--message", "nothing at all")
    measured: list[str] = []

    def note(asked: MeasuringHistory) -> None:
        measured[:] = asked.names()
        raise MeasurementFailed("enough")

    monkeypatch.setattr(MeasuringHistory, "settle", note)
    with pytest.raises(MeasurementFailed):
        measure("HEAD~4..HEAD")
    assert measured == toy.commits[1:3]
    said = " ".join(capsys.readouterr().out.split())
    assert "2 of 4 commits are not measured" in said
    assert "--anyway measures them" in said
    with pytest.raises(MeasurementFailed):
        measure("HEAD~4..HEAD", anyway=True)
    assert len(measured) == 4
    with pytest.raises(MeasurementFailed):
        measure("HEAD", steps=2)
    assert measured == [toy.commits[0], toy.commits[2]]


def test_single_commits_are_measured_once_each_in_the_same_rounds_on_a_detached_head(
    toy: ToyProject, capsys: pytest.CaptureFixture[str]
) -> None:
    oldest, _, newest = toy.commits
    toy.git("checkout", "--quiet", "--detach")
    toy.git("branch", "--quiet", "-D", "main")
    # Git would take these as one range, of what is in the newest and in no parent of any.
    measure(f"{newest}^!", f"{oldest}^!", "HEAD~1..HEAD", rounds=1)
    assert stored(toy) == {oldest: (1.0,), newest: (3.0,)}
    assert (toy.root / "reports" / "html" / "index.html").is_file()
    assert "measuring 2 commits" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_second_measurement_stands_beside_the_first_and_asv_passes_over_what_is_torn(
    toy: ToyProject, capsys: pytest.CaptureFixture[str]
) -> None:
    results = toy.root / "reports" / "asv" / "own-toy"
    for rounds in (2, 1):
        measure("HEAD~1..HEAD", rounds=rounds)
    [second] = results.glob(f"{toy.commits[-1][:8]}-*-2.json")
    # The lesser session says another thing, and a third file is torn.
    second.write_text(re.sub(r"\b3\.0\b", "9.0", second.read_text()))
    (results / "torn.json").write_text('{"commit_hash": ')
    capsys.readouterr()
    build_all_pages(Histories.of_checkout(toy.root), Console())
    assert re.search(r"torn\.json is not JSON.*left out", capsys.readouterr().out)
    graphs = (toy.root / "reports" / "html" / "graphs").rglob("toy.Toy.track_step.json")
    assert all("6.0" in path.read_text() for path in graphs), "the mean of both"
    [figure] = read_results(results.parent).figures
    assert figure.samples == (3.0, 3.0)


def test_commits_are_first_parents(bare: ToyProject) -> None:
    bare.git("checkout", "--quiet", "-b", "side", "HEAD~1")
    (bare.root / "kernels" / "side.py").write_text("")
    bare.commit("on the side")
    bare.git("checkout", "--quiet", "main")
    bare.git("merge", "--quiet", "--no-ff", "--message", "merge", "side")
    merge = bare.git("rev-parse", "HEAD").strip()
    found = [commit.hash for commit in OwnSuite(bare.root).in_range("HEAD")]
    assert found == [*bare.commits, merge]


@pytest.mark.parametrize("changed", ["engine/__init__.py", "asv_bench/new.py", "asv.conf.json"])
def test_a_dirty_tree_is_refused_and_left_alone(bare: ToyProject, changed: str) -> None:
    with (bare.root / changed).open("a") as file:
        file.write("\n")
    before = bare.git("status", "--porcelain")
    with pytest.raises(Refused, match=f"uncommitted changes in {changed}"):
        measure("HEAD~1..HEAD")
    assert bare.git("status", "--porcelain") == before
    assert not (bare.root / ".asv").exists()


def test_a_repository_without_a_whole_history_is_refused(bare: ToyProject, tmp_path: Path) -> None:
    clone, empty = tmp_path / "shallow", tmp_path / "empty"
    git(tmp_path, "clone", "--quiet", "--depth=2", f"file://{bare.root}", str(clone))
    empty.mkdir()
    for root, complaint in ((clone, "shallow"), (empty, "not a git repository")):
        with pytest.raises(Refused, match=complaint):
            OwnSuite(root).in_range("HEAD")


def test_commits_that_cannot_be_measured_are_a_failure(toy: ToyProject) -> None:
    toy.git("rm", "--quiet", "-r", "engine")
    toy.commit("no engine")
    with pytest.raises(MeasurementFailed, match="nothing was measured"):
        measure("HEAD~1..HEAD", rounds=1)


def asked_while_served(patch: pytest.MonkeyPatch, ask: Callable[[str], Any]) -> Any:
    """What is found at the address that `report --open` opens; then Ctrl-C is pressed."""
    found: list[Any] = []

    def look(address: str) -> None:
        try:
            found.append(ask(address))
        finally:
            interrupt_main()

    patch.setattr("webbrowser.open", lambda address: Thread(target=look, args=[address]).start())
    report(is_opened=True)
    return found.pop()


def test_both_pages_are_served_and_nothing_else(
    toy: ToyProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure("HEAD~1..HEAD", rounds=1)

    missing = dict.fromkeys(("asv/toy/machine.json", "", "html/../asv"), HTTPStatus.NOT_FOUND)
    served = {"pages/index.html": HTTPStatus.OK, "html/index.json": HTTPStatus.OK}

    def codes(address: str) -> dict[str, int]:
        root, found = address.removesuffix("pages/index.html"), {}
        for path in served | missing:
            try:
                found[path] = urlopen(root + path).status
            except HTTPError as error:
                found[path] = error.code
        return found

    assert asked_while_served(monkeypatch, codes) == served | missing
    assert "serving the pages at http://127.0.0.1:" in capsys.readouterr().out


@pytest.mark.thorough
def test_asvs_pages_open_on_the_machine_with_most_commits(
    toy: ToyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure("HEAD~2..HEAD", rounds=1)
    monkeypatch.setenv("KVTRAIL_MACHINE", "a-toy")
    measure("HEAD^!", rounds=1)
    index = json.loads((toy.root / "reports" / "html" / "index.json").read_text())
    assert [one["machine"] for one in index["graph_param_list"]] == ["own-toy", "own-a-toy"]


def test_a_page_alone_needs_no_server(toy: ToyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    measure("HEAD", rounds=1)
    monkeypatch.setattr("asv_bench.cli.report.publish", lambda *of: None)
    (toy.root / "reports" / "html" / "index.json").unlink()
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    report(is_opened=True)
    assert opened == [(toy.root / "reports" / "pages" / "index.html").as_uri()]


@pytest.mark.thorough
@pytest.mark.skipif(
    chromium() is None or find_spec("asv_tachyon") is None,
    reason="asv's pages are looked at in Chromium, with asv-tachyon",
)
def test_asvs_pages_draw_graphs_and_ask_no_other_host(
    toy: ToyProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure("HEAD~2..HEAD", rounds=2)

    def look(address: str) -> set[str]:
        with closing(Browser(tmp_path / "profile")) as browser:
            browser.command("Page.navigate", url=address)
            browser.wait_for("document.querySelector('.asv a') !== null")
            link = browser.ask("document.querySelector('.asv a').href")
            browser.command("Page.navigate", url=link)
            for text in ("Explore", "toy.Toy.track_step"):
                found = (
                    f"[...document.querySelectorAll('body *')].find("
                    f"(one) => !one.children.length && one.innerText === '{text}')"
                )
                browser.wait_for(f"{found} !== undefined")
                browser.ask(f"{found}.click()")
            browser.wait_for("document.querySelector('canvas, .uplot') !== null")
            return {urlsplit(one).hostname or "" for one in browser.requests}

    assert asked_while_served(monkeypatch, look) <= {"127.0.0.1", ""}
