"""`history`, `changes` and `report` of a subject that a `kvtrail.toml` declares."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from declared_repository import DeclaredRepository, along
from typer.testing import CliRunner

from asv_bench.cli import report
from asv_bench.cli.commands import build_app
from asv_bench.errors import Interrupted, MeasurementFailed, NothingMeasured, Refused, TimeIsUp
from asv_bench.history.asv_results import Figure, read_results
from asv_bench.history.histories import Histories
from asv_bench.measure.lives import Lives
from asv_bench.measure.samples import Reading, Round
from asv_bench.session.time_limit import TimeLimit

TABLES = """
[subject]
name = "toy"
measure = "sh bench.py"

[metrics.step_ms]
path = "step"
unit = "ms"

[metrics.throughput]
path = "tput"
unit = "tok/s"
better = "higher"
"""
LABELS = ("1.9", "1.10", "1.11", "2.0", "2.1")


def bench(step: float, throughput: float) -> str:
    """A bench.py whose figures end in a digit that is another one in each process."""
    figures = f'{{"step": {step:.2f}%d, "tput": {throughput:.1f}%d}}'
    return f"printf '{figures}' $(($$ % 10)) $(($$ % 10)) > \"$KVTRAIL_RESULT\""


@pytest.fixture(autouse=True)
def without_pages_of_asv(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "thorough" not in request.keywords:
        monkeypatch.setattr(report, "publish", lambda *_: None)


@pytest.fixture
def toy(declared) -> DeclaredRepository:
    """Five commits: from the second on slower; more tokens at the third, fewer at the last."""
    figures = [(5.00, 100.0), (5.50, 100.0), (5.50, 120.0), (5.50, 120.0), (5.50, 105.0)]
    return declared(
        TABLES, *(f"{bench(*ends)}\n# {number}\n" for number, ends in enumerate(figures))
    )


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Where results are kept in place of the usual folder."""
    return tmp_path / "k"


@pytest.fixture
def history(kvtrail, toy: DeclaredRepository, kept: Path) -> Callable[..., Any]:
    """`history` of a range in so many rounds, into `kept`."""

    def run(commits: str, rounds: int, *options: str) -> Any:
        words = (commits, "--rounds", str(rounds), "--results", str(kept))
        return kvtrail(toy, "history", *words, *options)

    return run


def figures_in(folder: Path) -> dict[str, dict[str, Figure]]:
    """The stored figures by metric and commit."""
    found: dict[str, dict[str, Figure]] = {}
    for figure in read_results(folder / "asv").figures:
        found.setdefault(figure.series.benchmark, {})[figure.commit] = figure
    return found


def test_commits_are_measured_in_rounds_and_changes_confirmed_as_each_metric_is_better(
    history, kvtrail, toy: DeclaredRepository, kept: Path
) -> None:
    hashes = toy.git("rev-list", "--reverse", "HEAD").split()[-5:]
    said = history("HEAD~4..HEAD", 3, "HEAD~4^!")
    assert said.code == 0, said.text
    stored = figures_in(kept)
    assert set(stored) == {"step_ms", "throughput"}
    for metric in stored.values():
        assert set(metric) == set(hashes) == set(said.record["results"]["cells"])
        assert {len(figure.samples) for figure in metric.values()} == {3}
    assert stored["step_ms"][hashes[1]].median == pytest.approx(5.5, rel=0.003)
    figure = stored["throughput"][hashes[1]]
    assert (figure.better, figure.unit) == ("higher", "tok/s")
    said = kvtrail(toy, "changes", "--results", str(kept))
    assert said.code == 3, said.text
    found = said.record["results"]["changes"]
    assert {(one["benchmark"], one["subject"], one["standing"]) for one in found} == {
        ("step_ms", "change 1", "regression"),
        ("throughput", "change 2", "improvement"),
        ("throughput", "change 4", "regression"),
    }
    [rise] = [one for one in found if one["standing"] == "improvement"]
    assert rise["effect"] == pytest.approx(0.2, abs=0.01)
    assert rise["confirmation"]["effect"] == pytest.approx(0.2, abs=0.01)
    page = (kept / "pages" / "index.html").read_text()
    assert "2 regressions confirmed in the last 5 commits measured." in page


def test_labels_have_a_history_in_their_order(
    kvtrail, toy: DeclaredRepository, tmp_path: Path
) -> None:
    slower = '"$KVTRAIL_LABEL" = 2.0 -o "$KVTRAIL_LABEL" = 2.1'
    script = f"if [ {slower} ]; then {bench(6.00, 100.0)}; else {bench(5.00, 100.0)}; fi"
    toy.commit(script, "look at the label")
    toy.declare(TABLES + along(*LABELS))
    said = kvtrail(toy, "history")
    assert said.code == 0, said.text
    assert said.record["settings"]["commits"] == [*LABELS]
    found = kvtrail(toy, "changes")
    assert found.code == 3, found.text
    [change] = found.record["results"]["changes"]
    assert (change["before"], change["commit"]) == ("1.11", "2.0")
    assert (change["benchmark"], change["standing"]) == ("step_ms", "regression")
    part = kvtrail(toy, "history", "1.10..2.0", "1.9", "--rounds", "1")
    assert part.record["settings"]["commits"] == ["1.11", "2.0", "1.9"]
    page = CliRunner().invoke(build_app(), ["report"])
    assert page.exit_code == 0, page.output
    text = (tmp_path / "work" / "subjects" / "toy" / "pages" / "index.html").read_text()
    assert "<code>2.1</code>" in text
    assert re.search(r">throughput</a>\s*<small>higher is better", text)


def test_labels_may_look_like_paths(kvtrail, toy: DeclaredRepository, tmp_path: Path) -> None:
    labels = ["org/image: 1", "org/image: 2", "größer"]
    toy.declare(TABLES + along(*labels))
    said = kvtrail(toy, "history", "--rounds", "1", "--reference", "org/image: 1")
    assert "größer, the last of 3" in said.text
    [session] = (tmp_path / "work" / "subjects" / "toy").glob("asv-sessions/*/*.json")
    figures = json.loads(session.read_text())["figures"]
    assert {row["commit"] for row in figures} == set(labels)
    assert kvtrail(toy, "changes").record["results"]["changes"] == []


def test_what_cannot_be_measured_is_named_and_the_others_are_kept(
    history, toy: DeclaredRepository, kept: Path
) -> None:
    toy.commit("exit 125", "cannot")
    toy.commit(bench(5.50, 120.0), "can again")
    said = history("HEAD~3..HEAD", 1)
    assert said.code == 0, said.text
    assert re.search(rf"{toy.git('rev-parse', 'HEAD~1')[:8]} gave no figure: .*125", said.text)
    assert len(figures_in(kept)["step_ms"]) == 2
    toy.commit(bench(5.50, 120.0).replace("5.50%d", "NaN%.0s"), "not a number")
    with pytest.raises(MeasurementFailed, match="step_ms"):
        history("HEAD~2..HEAD", 1)
    stored = figures_in(kept)
    assert [figure.failed for figure in stored["step_ms"].values()].count(True) == 1
    assert {figure.failed for figure in stored["throughput"].values()} == {False}


def lives_until(
    monkeypatch: pytest.MonkeyPatch, number: int, error: type[BaseException]
) -> list[str]:
    """The cells of all lives that begin, of which one ends the command by an error."""
    lives: list[str] = []
    whole = Lives.round

    def lived(self: Lives, cells: list[str], *others: Any, **options):
        lives.extend(cells)
        if len(lives) == number:
            raise error
        return whole(self, cells, *others, **options)

    monkeypatch.setattr(Lives, "round", lived)
    return lives


def test_an_interrupted_history_says_what_is_kept_and_goes_on_with_it(
    kvtrail, toy: DeclaredRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = lives_until(monkeypatch, 4, KeyboardInterrupt)
    words = ("history", "HEAD~4..HEAD", "--results", str(tmp_path / "k"))
    monkeypatch.setattr("sys.argv", ["kvtrail", *words])
    again = f"goes on with them: kvtrail {shlex.join(words)}"
    with pytest.raises(Interrupted, match=f"3 of 12 lives are measured and kept.*{again}"):
        kvtrail(toy, *words)
    assert not (tmp_path / "k" / "asv").exists()
    assert "going on with 3 lives" in kvtrail(toy, *words).text
    assert len(lives) == 4 + (12 - 3)
    assert {len(one.samples) for one in figures_in(tmp_path / "k")["step_ms"].values()} == {3}


def test_a_history_files_what_was_measured_in_time(
    kvtrail, toy: DeclaredRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives_until(monkeypatch, 6, TimeIsUp)
    words = ("history", "HEAD~4..HEAD", "--results", str(tmp_path / "k"), "--minutes", "9")
    monkeypatch.setattr("sys.argv", ["kvtrail", *words, "--fresh"])
    said = kvtrail(toy, *words, "--fresh")
    assert "time is up (--minutes) after 5 of 12 lives, which are filed" in said.text
    # The same command would start over.
    assert said.text.endswith(f"go on with these lives: kvtrail {shlex.join(words)}")
    results = said.record["results"]
    assert (results["so_far"], results["outcome"]) == (True, "good")
    stored = figures_in(tmp_path / "k")["step_ms"].values()
    assert sorted(len(one.samples) for one in stored) == [1, 1, 1, 2]
    assert "going on with 5 lives" in kvtrail(toy, *words).text
    stored = figures_in(tmp_path / "k")["step_ms"].values()
    assert [len(one.samples) for one in stored] == [3, 3, 3, 3]


def test_a_history_that_has_no_time_at_all_says_so(
    history, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeLimit, "left", lambda _: 0.0)
    with pytest.raises(NothingMeasured, match="time was up before the first life"):
        history("HEAD~4..HEAD", 3)
    assert not (kept / "asv").exists()


def test_a_machine_that_is_not_quiet_costs_nothing_that_was_measured(
    kvtrail, toy: DeclaredRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("compare", "HEAD~1", "HEAD", "--anyway")
    with monkeypatch.context() as patch:
        lives_until(patch, 6, KeyboardInterrupt)
        assert kvtrail(toy, *words).code == 130
    busy = SimpleNamespace(sentences=lambda: ["a build runs"])
    with monkeypatch.context() as patch:
        patch.setattr("asv_bench.output.record.look_around", lambda _: busy)
        with pytest.raises(Refused, match="not quiet"):
            kvtrail(toy, *words, "--require-quiet", "--fresh")
    assert "going on with 2 pairs" in kvtrail(toy, *words).text


def test_what_takes_long_begins_only_with_a_yes(
    history, toy: DeclaredRepository, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.declare(TABLES.replace("[metrics", 'setup = "sleep 0.5"\n[metrics', 1))
    # Three more setups take longer.
    monkeypatch.setattr("asv_bench.history.history_session.LONG_SECONDS", 1.5)
    with pytest.raises(Refused, match=r"--yes"):
        history("HEAD~4..HEAD", 1)
    assert not (kept / "asv").exists()
    said = history("HEAD~4..HEAD", 1, "--yes")
    assert "expected to take about 0:0" in said.text
    assert len(figures_in(kept)["step_ms"]) == 4


def told_otherwise(patch: pytest.MonkeyPatch, *ways: Callable[[Reading], Reading]) -> None:
    """Let lives tell something else, in each of these ways in turn."""
    turns, whole = itertools.cycle(ways), Lives.round

    def altered(self: Lives, *asked: Any):
        [readings] = whole(self, *asked).readings
        way = next(turns)
        return Round((0,), ({name: way(one) for name, one in readings.items()},))

    patch.setattr(Lives, "round", altered)


def test_a_device_that_always_reads_more_is_not_taken_for_a_change(
    kvtrail, history, toy: DeclaredRepository, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = partial(replace, device="left")
    told_otherwise(
        monkeypatch, left, lambda one: replace(one, device="right", value=1.1 * one.value)
    )
    of_device = history("HEAD~4..HEAD", 2).record["results"]["device_factors"]
    assert {*of_device.popitem()[1]["step_ms"]} == {"left", "right"}
    of_commit = figures_in(kept)["step_ms"].values()
    assert all(max(one.samples) < 1.01 * min(one.samples) for one in of_commit)
    elsewhere = ("--rounds", "1", "--results", str(kept.with_name("l")))
    said = kvtrail(toy, "history", "HEAD~2..HEAD", *elsewhere)
    assert "2 of 2 devices have measured no commit that others have" in said.text


def test_lives_that_another_client_asked_are_of_another_series(
    history, toy: DeclaredRepository, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [partial(replace, client=name) for name in ("first", "second", "first")]
    told_otherwise(monkeypatch, *clients)
    said = history("HEAD^!", 3, "--metric", "step_ms")
    stored = read_results(kept / "asv").figures
    assert sorted((dict(one.environment)["client"], len(one.samples)) for one in stored) == [
        ("first", 2),
        ("second", 1),
    ]
    [begun] = said.record["results"]["new_series"]
    assert re.fullmatch("client (first → second|second → first)", begun["changed"])


def test_a_second_session_stands_beside_the_first(
    history, toy: DeclaredRepository, kept: Path
) -> None:
    history("HEAD^!", 2)
    history("HEAD^!", 1)
    assert len([*(kept / "asv").glob("*/*-host*.json")]) == 2
    assert {len(one.samples) for one in figures_in(kept)["step_ms"].values()} == {2}
    # A metric need not have a unit.
    toy.declare(TABLES.replace("sh bench.py", "sh ./bench.py").replace('unit = "ms"', ""))
    history("HEAD^!", 1)
    # Another command measures something else: what it said before is no part of the series.
    assert {len(one.samples) for one in figures_in(kept)["step_ms"].values()} == {1}


def test_more_commits_are_measured_than_setups_are_kept(
    history, toy: DeclaredRepository, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asv_bench.measure.trees._KEPT_SETUPS", 1)
    setup = 'measure = "sh $KVTRAIL_OUT/bench.py"\nsetup = "cp bench.py $KVTRAIL_OUT"'
    toy.declare(TABLES.replace('measure = "sh bench.py"', setup))
    said = history("HEAD~2..HEAD", 2)
    assert said.code == 0, said.text
    assert {len(one.samples) for one in figures_in(kept)["step_ms"].values()} == {2}


@pytest.mark.parametrize(
    ("axis", "arguments", "sentence"),
    [
        ("", ("history",), "a range such as"),
        ("", ("history", "no-such..HEAD"), "git knows no commits"),
        ("", ("history", "HEAD..HEAD"), "holds no commits"),
        ("", ("history", "HEAD^!", "--metric", "nothing"), "no metric is called nothing"),
        ("", ("history", "HEAD^!", "--reference", "."), "--reference"),
        ("", ("history", "1.9", "--axis", "labels"), r"needs \[axis\]"),
        (along(*LABELS), ("history", "3.0"), "none of the labels"),
        (along(*LABELS), ("history", "2.0..1.9"), "does not come after"),
    ],
)
def test_what_makes_no_sense_is_refused(
    kvtrail, toy: DeclaredRepository, axis: str, arguments: tuple[str, ...], sentence: str
) -> None:
    toy.declare(TABLES + axis)
    with pytest.raises(Refused, match=sentence):
        kvtrail(toy, *arguments)


@pytest.mark.parametrize("verb", ["changes", "report"])
def test_without_a_history_there_is_nothing_to_look_at(
    kvtrail, toy: DeclaredRepository, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy.root)
    done = CliRunner().invoke(build_app(), [verb])
    assert isinstance(done.exception, NothingMeasured)
    assert re.search(r"`history` measures", str(done.exception))


@pytest.mark.parametrize("value", ["5e-324", "1e308", "0"])
def test_the_page_has_room_for_every_stored_figure(history, kept: Path, value: str) -> None:
    history("HEAD~2..HEAD", 1, "-b", "throughput")
    for path in (kept / "asv").glob("*/????????-*.json"):
        path.write_text(re.sub(r"1[02][05]\.0\d*", value, path.read_text()))
    done = CliRunner().invoke(build_app(), ["report", "--results", str(kept)])
    assert (done.exception, done.exit_code) == (None, 0)
    is_none = value != "0"
    assert ("is no count. It is left out" in " ".join(done.output.split())) is is_none


@pytest.mark.thorough
def test_asv_itself_reads_the_results(kvtrail, toy: DeclaredRepository, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kvtrail(toy, "history", "HEAD~4..HEAD", "HEAD~4^!", "--results", str(kept))
    assert json.loads((kept / "html" / "index.json").read_text())["project"] == "toy"
    assert not (kept / ".asv").exists()
    command = (sys.executable, "-m", "asv", "--config", str(kept / "asv.conf.json"))
    compared = subprocess.run(
        [*command, "compare", "--factor", "1.05", "HEAD~4", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"\+ .* 1\.1 .*step_ms", compared.stdout), compared.stdout


def test_a_relative_folder_is_where_the_command_was_given(
    toy: DeclaredRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Histories.of_subject(toy.subject, Path("kept")).results == tmp_path / "kept" / "asv"
