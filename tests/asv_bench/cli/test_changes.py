"""Stored histories: what moved, what is noise, and what a comparison makes of it."""

from __future__ import annotations

import fcntl
import json
import math
import platform
import re
import shlex
import statistics
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from toy_project import git
from typer.testing import CliRunner

from asv_bench.__main__ import build_app
from asv_bench.cli import changes as command
from asv_bench.compare.catalog import Entry, select
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.errors import Refused
from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Figure, Series
from asv_bench.history.change_points import changes_in, points_of
from asv_bench.history.sessions import read_ratios, write_session
from asv_bench.lab.calibration.simulated_noise import Noise
from asv_bench.lab.calibration.simulated_noise import SimulatedPairs as NoisyPairs
from asv_bench.process.machine import machine_facts
from asv_bench.process.samples import CommitUnusable

SERIES = Series("scheduler.Scheduler.track_step_time", (("model", "gpt2-tiny"),))


def hash_of(number: int) -> str:
    return f"{number:040x}"


def figures(levels, seed: int = 0, processes: int = 3, noise: float = 0.01) -> list[Figure]:
    """One figure a commit: its true time is exp(level) milliseconds."""
    draws = np.random.default_rng(seed)
    return [
        Figure(
            SERIES,
            "seconds",
            "m",
            hash_of(number),
            number,
            tuple(1e-3 * np.exp(level + noise * draws.standard_normal(processes))),
            1000 + number,
        )
        for number, level in enumerate(levels)
    ]


def commits_for(count: int) -> list[Commit]:
    return [Commit(hash_of(number), f"Subject {number}") for number in range(count)]


def changes_of(levels, **options):
    return changes_in(points_of(figures(levels, **options), commits_for(len(levels)), {}))


def steps(count: int, **places: float) -> list[float]:
    return [
        math.fsum(
            math.log1p(effect) for place, effect in places.items() if number >= int(place[1:])
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("effect", [0.03, -0.03])
def test_a_step_of_three_per_cent_is_found_where_it_is(effect: float) -> None:
    found = 0
    for seed in range(30):
        seen = changes_of(steps(60, c40=effect), seed=seed)
        found += any(
            change.commit.hash in (hash_of(39), hash_of(40), hash_of(41))
            and change.effect == pytest.approx(effect, abs=0.01)
            and change.interval[0] < change.effect < change.interval[1]
            for change in seen
        )
    assert found >= 28


def test_noise_alone_moves_few_series() -> None:
    series = [changes_of(steps(60), seed=seed) for seed in range(60)]
    assert sum(map(bool, series)) <= 9


def test_single_processes_that_were_disturbed_are_no_changes() -> None:
    levels = [0.0] * 40
    for place in (7, 19, 33):
        levels[place] = 0.15
    assert changes_of(levels, processes=1) == []


def test_a_change_at_the_newest_commit_is_seen_at_once() -> None:
    [change] = changes_of(steps(20, c19=0.06))
    assert change.commit.hash == hash_of(19)
    assert change.before.hash == hash_of(18)
    assert (change.commits_before, change.commits_after) == (19, 1)


def test_a_short_history_of_nothing_but_changes_shows_them_all() -> None:
    seen = changes_of(steps(6, c1=-0.2, c3=0.1, c4=-0.05), noise=0.002)
    assert [change.commit.hash for change in seen] == [hash_of(1), hash_of(3), hash_of(4)]
    assert [round(change.effect, 2) for change in seen] == [-0.2, 0.1, -0.05]


def test_two_changes_have_the_level_between_them() -> None:
    first, second = changes_of(steps(60, c20=0.05, c40=-0.04))
    assert first.after_value == pytest.approx(second.before_value)
    assert first.commits_after == second.commits_before
    assert first.effect > 0 > second.effect


def test_a_clear_step_has_one_place() -> None:
    [change] = changes_of(steps(20, c12=0.05), noise=0.002)
    assert change.is_placed
    assert (change.since.hash, change.until.hash) == (hash_of(11), hash_of(12))


def test_a_neighbour_that_was_measured_badly_hides_no_change_from_its_comparison() -> None:
    levels = steps(12, c6=0.075)
    levels[5] += 0.06
    [change] = changes_of(levels, noise=0.015)
    assert change.commit.hash == hash_of(5)
    assert not change.is_placed
    assert int(change.since.hash, 16) < 5
    assert int(change.until.hash, 16) == 6


def test_the_range_of_a_change_holds_its_place() -> None:
    held = ranges = 0
    for seed in range(60):
        for change in changes_of(steps(30, c18=0.03), seed=seed):
            if change.effect == pytest.approx(0.03, abs=0.015):
                since, until = int(change.since.hash, 16), int(change.until.hash, 16)
                held += since < 18 <= until
                ranges += until - since
    assert held >= 55
    assert ranges < 60 * 4


def test_changes_below_one_per_cent_are_none() -> None:
    assert changes_of(steps(60, c30=0.008), noise=0.0001) == []


def test_ratios_to_a_reference_cancel_the_machine(tmp_path: Path) -> None:
    drifting = steps(12, c6=0.05)
    measured = figures(drifting, noise=0.001)
    for number, figure in enumerate(measured):
        session_level = drifting[number]
        reference = Figure(
            SERIES,
            "seconds",
            "m",
            "f" * 40,
            0,
            (1e-3 * math.exp(session_level),),
            figure.started_ms,
        )
        assert write_session(tmp_path, "f" * 40, [figure, reference]) is not None
    points = points_of(measured, commits_for(12), {})
    assert len(changes_in(points)) == 1
    ratios = read_ratios(tmp_path, "m", [])
    related = points_of(measured, commits_for(12), ratios)
    assert {point.reference for point in related} == {"f" * 40}
    assert changes_in(related) == []


def test_a_figure_of_another_session_is_not_divided(tmp_path: Path) -> None:
    measured = figures(steps(4))
    reference = Figure(SERIES, "seconds", "m", "f" * 40, 0, (2e-3,), 1000)
    write_session(tmp_path, "f" * 40, [*measured[:3], reference])
    related = points_of(measured, commits_for(4), read_ratios(tmp_path, "m", []))
    assert {point.reference for point in related} == {None}
    assert related[0].level == pytest.approx(math.log(measured[0].median))


def test_a_session_without_its_reference_keeps_nothing(tmp_path: Path) -> None:
    assert write_session(tmp_path, "f" * 40, figures(steps(3))) is None
    assert list(tmp_path.iterdir()) == []


def test_a_broken_session_is_named(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x.json").write_text('{"figures": [{}]}')
    write_session(tmp_path, figures(steps(3))[0].commit, figures(steps(3)))
    complaints: list[str] = []
    assert len(read_ratios(tmp_path, "m", complaints)) == 3
    assert re.search(r"x\.json is not a session.*left out", *complaints)


def two_modes(seed: int, processes: int) -> list[Figure]:
    """150 flat commits, 30 % of whose processes are 5 % slower."""
    draws = np.random.default_rng(seed)
    return [
        replace(
            figure,
            samples=tuple(
                sample * (1.05 if draws.random() < 0.3 else 1.0) for sample in figure.samples
            ),
        )
        for figure in figures([0.0] * 150, seed=seed, processes=processes, noise=0.003)
    ]


@pytest.mark.parametrize("processes", [1, 3])
def test_processes_with_two_modes_make_no_change(processes: int) -> None:
    for seed in range(5):
        points = points_of(two_modes(seed, processes), commits_for(150), {})
        assert changes_in(points) == []


class Project:
    """A project with stored results of this machine and another, and a fake machine to compare."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.true_effect = 0.05
        self.compared: list[tuple[str, str]] = []
        self.unusable: str | None = None
        self.interrupted_at: int | None = None
        results = root / "reports" / "asv"
        results.mkdir(parents=True)
        description = {
            "name": SERIES.benchmark,
            "unit": "seconds",
            "param_names": ["model"],
            "params": [["'gpt2-tiny'"]],
            "version": "1",
        }
        (results / "benchmarks.json").write_text(
            json.dumps({SERIES.benchmark: description, "version": 2})
        )
        for machine in (machine_facts().name, "own-other"):
            folder = results / machine
            folder.mkdir()
            (folder / "machine.json").write_text(json.dumps({"machine": machine, "version": 1}))
            for figure in figures(steps(20, c12=0.05), noise=0.002):
                self.store(folder, figure)
        monkeypatch.setattr(command, "REPOSITORY", root)
        monkeypatch.setattr(command, "set_up", self.set_up)

    def store(self, folder: Path, figure: Figure) -> None:
        row = [
            [statistics.median(figure.samples)],
            [["'gpt2-tiny'"]],
            "1",
            figure.started_ms,
            [list(figure.samples)],
        ]
        content = {
            "commit_hash": figure.commit,
            "date": figure.committed_ms,
            "result_columns": ["result", "params", "version", "started_at", "samples"],
            "results": {SERIES.benchmark: row},
        }
        (folder / f"{figure.commit}-host.json").write_text(json.dumps(content))

    def set_up(self, root: Path, patterns, devices):
        name = f"{SERIES.benchmark}('gpt2-tiny')"
        project = self

        @contextmanager
        def pairs_of(benchmarks):
            class Recorded(NoisyPairs):
                def prepare(self, commit: str):
                    if project.unusable:
                        raise CommitUnusable(commit, project.unusable)
                    return super().prepare(commit)

                def pair(self, base: str, head: str, **options):
                    if len(project.compared) == project.interrupted_at:
                        raise KeyboardInterrupt
                    project.compared.append((base, head))
                    return super().pair(base, head, **options)

            quiet = Noise(process=0.002, drift=0.002, outliers=0.0)
            yield Recorded(dict.fromkeys(benchmarks, project.true_effect), quiet, seed=1)

        if devices == "no such":
            raise Refused("there is no such device.")
        entries = select([Entry(name, name, "seconds")], patterns, has_gpu=False)
        return SimpleNamespace(entries=entries, pairs_of=pairs_of)

    @property
    def record(self) -> dict:
        return json.loads((self.root / "record.json").read_text())

    def run(self, *arguments: str) -> tuple[int, str, list[dict]]:
        path = self.root / "record.json"
        result = CliRunner().invoke(build_app(), ["changes", "--json", str(path), *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output, self.record["results"]["changes"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def test_a_change_that_stands_is_a_regression_and_another_machines_is_a_candidate(
    project: Project,
) -> None:
    code, said, found = project.run()
    assert code == 3
    standings = {change["machine"]: change["standing"] for change in found}
    assert standings == {
        machine_facts().name: "regression",
        "own-other": "unconfirmed candidate",
    }
    assert set(project.compared) == {(hash_of(11), hash_of(12))}
    assert "regression" in said
    page = (project.root / "reports" / "pages" / "changes.html").read_text()
    assert page.count("<svg") == 2
    assert "unconfirmed candidate" in page
    assert "compared: slower" in page
    # Names of XML's dialects look like addresses; nothing is fetched.
    assert not re.search(r'<script|<link|\b(src|href)="(?!#)|url\((?!#)|@import', page)


def test_a_change_that_noise_may_have_misplaced_is_compared_around_its_range(
    project: Project,
) -> None:
    levels = steps(20, c12=0.05)
    levels[11] += 0.04
    for figure in figures(levels, noise=0.008):
        project.store(project.root / "reports" / "asv" / machine_facts().name, figure)
    code, said, found = project.run("--machine", machine_facts().name)
    assert code == 3
    [change] = found
    assert change["commit"] == hash_of(11)
    assert set(project.compared) == {(change["since"], change["until"])}
    assert int(change["until"], 16) >= 12
    command_line = shlex.split(said.partition("nox -s bisect -- ")[2].splitlines()[0])
    assert command_line[:2] == [change["since"][:8], change["until"][:8]]
    assert re.search(command_line[-1], f"{SERIES.benchmark}('gpt2-tiny')")
    page = (project.root / "reports" / "pages" / "changes.html").read_text()
    assert "Noise may have misplaced it" in page


def test_a_change_that_does_not_stand_is_refuted(project: Project) -> None:
    project.true_effect = 0.0
    code, _, found = project.run()
    assert code == 0
    assert {change["standing"] for change in found} == {"refuted", "unconfirmed candidate"}


def test_without_confirmation_nothing_is_called_a_regression(project: Project) -> None:
    code, _, found = project.run("--no-confirm")
    assert code == 0
    assert project.compared == []
    assert {change["standing"] for change in found} == {"unconfirmed candidate"}


def test_one_machine_can_be_asked_for(project: Project) -> None:
    _, _, found = project.run("--machine", "own-other")
    assert [change["machine"] for change in found] == ["own-other"]
    with pytest.raises(Refused, match="no results of a machine called 'nobody'"):
        project.run("--machine", "nobody")


def test_a_name_that_no_benchmark_has_finds_no_change(project: Project) -> None:
    code, said, found = project.run("--benchmark", "kernels.")
    assert (code, found) == (0, [])
    assert "no series moved" in said


HERE = ("--machine", machine_facts().name)


def test_every_pair_is_in_the_record(project: Project) -> None:
    _, _, [change] = project.run(*HERE)
    samples = project.record["samples"]
    assert len(samples) == len(project.compared) == change["confirmation"]["pairs_used"]
    assert {sample["base"]["commit"] for sample in samples} == {hash_of(11)}
    assert {sample["head"]["commit"] for sample in samples} == {hash_of(12)}
    assert all(sample["base"]["samples"] for sample in samples)
    assert project.record["results"]["interrupted"] is False


def test_a_comparison_that_failed_ends_with_its_own_code_and_says_why(project: Project) -> None:
    project.unusable = "ImportError: boom"
    code, said, [change] = project.run(*HERE)
    assert code == project.record["results"]["exit_code"] == 1
    assert project.record["results"]["outcome"] == "failed"
    assert change["standing"] == "not compared"
    assert "ImportError: boom" in said


def test_an_interruption_keeps_the_answers_and_pairs_there_are(project: Project) -> None:
    folder = project.root / "reports" / "asv" / machine_facts().name
    for figure in figures(steps(30, c8=0.04, c16=0.06, c24=0.02), noise=0.001):
        project.store(folder, figure)
    # The largest first, which has its answer at the first look; the second has three pairs.
    project.interrupted_at = ComparisonPlan().looks[0] + 3
    code, said, found = project.run(*HERE)
    assert code == project.record["results"]["exit_code"] == 130
    assert project.record["results"]["interrupted"] is True
    assert project.record["notes"] == [command.INTERRUPTED]
    assert command.INTERRUPTED in said
    assert [(change["commit"], change["standing"]) for change in found] == [
        (hash_of(16), "regression"),
        (hash_of(8), "unresolved"),
        (hash_of(24), "unconfirmed candidate"),
    ]
    assert found[1]["confirmation"]["pairs_used"] == 3
    assert "interrupted" in found[1]["confirmation"]["reason"]
    assert len(project.record["samples"]) == project.interrupted_at
    page = (project.root / "reports" / "pages" / "changes.html").read_text()
    assert "The comparison was interrupted." in page


def test_changes_of_benchmarks_that_are_all_gone_are_left_out(project: Project) -> None:
    for path in (project.root / "reports" / "asv").rglob("*.json"):
        path.write_text(path.read_text().replace(SERIES.benchmark, "old.Gone.track_x"))
    code, said, [change] = project.run(*HERE)
    assert (code, change["standing"]) == (0, "unconfirmed candidate")
    assert "no old.Gone.track_x(gpt2-tiny)" in said
    assert project.compared == []
    with pytest.raises(Refused, match="no such device"):
        project.run(*HERE, "--devices", "no such")


@pytest.mark.parametrize(
    ("arguments", "standing"), [((), "refuted"), (("--anyway",), "regression")], ids=repr
)
def test_a_change_between_commits_of_one_engine_is_refuted_without_measuring(
    project: Project, arguments: tuple[str, ...], standing: str
) -> None:
    git(project.root, "init", "--quiet", "--initial-branch=main")
    (project.root / "engine").mkdir()
    (project.root / "engine" / "__init__.py").write_text("STEP = 1\n")
    git(project.root, "add", "engine")
    folder = project.root / "reports" / "asv" / machine_facts().name
    for path in folder.glob("*-host.json"):
        path.unlink()
    for number, figure in enumerate(figures(steps(20, c12=0.05), noise=0.002)):
        git(project.root, "commit", "--quiet", "--allow-empty", "--message", f"change {number}")
        commit = git(project.root, "rev-parse", "HEAD").strip()
        project.store(folder, replace(figure, commit=commit))
    code, said, [change] = project.run(*HERE, *arguments)
    assert change["standing"] == standing
    assert bool(project.compared) == bool(arguments)
    assert code == (3 if arguments else 0)
    assert ("the same in both, nothing to measure" in said) != bool(arguments)


def test_environments_of_one_machine_are_judged_apart(project: Project) -> None:
    folder = project.root / "reports" / "asv" / machine_facts().name
    here = ".".join(platform.python_version_tuple()[:2])
    flat = {"3.5": 0.0, here: 0.2}
    for path in folder.glob("*-host.json"):
        path.unlink()
    for number in range(20):
        for python, level in flat.items():
            [figure] = figures([level], seed=number, noise=0.002)
            project.store(folder, replace(figure, commit=hash_of(number), committed_ms=number))
            path = folder / f"{hash_of(number)}-host.json"
            content = json.loads(path.read_text()) | {"python": python}
            path.with_stem(f"{path.stem}-{python}").write_text(json.dumps(content))
            path.unlink()
    code, said, found = project.run(*HERE)
    assert (code, found) == (0, [])
    assert "has results of 2 environments, judged apart: python 3." in said

    # A step in one of them is of that one, and only that of this Python can be confirmed here.
    for python, code_then, standing in (
        ("3.5", 0, "unconfirmed candidate"),
        (here, 3, "regression"),
    ):
        for path in folder.glob(f"*-{python}.json"):
            if int(path.name.partition("-")[0], 16) >= 12:
                content = json.loads(path.read_text())
                row = content["results"][SERIES.benchmark]
                row[-1] = [[sample * 1.05 for sample in row[-1][0]]]
                path.write_text(json.dumps(content))
        code, said, found = project.run(*HERE)
        [change] = [one for one in found if one["environment"] == {"python": python}]
        assert (code, change["standing"]) == (code_then, standing)
        assert change["commits_before"] + change["commits_after"] == 20
    assert "with python 3.5" in said
    page = (project.root / "reports" / "pages" / "changes.html").read_text()
    assert f"{machine_facts().name}, python 3.5" in page


def test_series_are_laid_along_first_parents(project: Project) -> None:
    """A side branch that is 25 % slower, and was merged when that had been mended."""
    git(project.root, "init", "--quiet", "--initial-branch=main")

    def commit(subject: str, *arguments: str) -> str:
        git(project.root, "commit", "--quiet", "--allow-empty", "--message", subject, *arguments)
        return git(project.root, "rev-parse", "HEAD").strip()

    main = [commit(f"main {number}") for number in range(8)]
    git(project.root, "checkout", "--quiet", "-b", "side", "HEAD~4")
    side = [commit(f"side {number}") for number in range(6)]
    git(project.root, "checkout", "--quiet", "main")
    git(project.root, "merge", "--quiet", "--no-ff", "--message", "merge side", "side")
    main += [git(project.root, "rev-parse", "HEAD").strip()]
    main += [commit(f"main {number}") for number in range(9, 14)]
    folder = project.root / "reports" / "asv" / machine_facts().name
    for path in folder.glob("*-host.json"):
        path.unlink()
    for level, commits in ((0.0, main), (0.25, side)):
        for number, name in enumerate(commits):
            [figure] = figures([level], seed=number, noise=0.002)
            project.store(folder, replace(figure, commit=name))
    code, said, found = project.run(*HERE)
    assert (code, found) == (0, [])
    assert "6 of the commits measured are not on main's line of first parents" in said
    git(project.root, "checkout", "--quiet", "side")
    _, said, [change] = project.run(*HERE, "--no-confirm", "--branch", "HEAD")
    assert (change["before"], change["commit"]) == (main[3], side[0])
    assert (change["commits_before"], change["commits_after"]) == (4, 6)
    with pytest.raises(Refused, match="no commit called 'nowhere'"):
        project.run(*HERE, "--branch", "nowhere")


def test_what_is_stored_wrong_is_named_and_the_rest_is_judged(project: Project) -> None:
    folder = project.root / "reports" / "asv" / machine_facts().name
    (folder / f"{hash_of(3)}-host.json").write_text('{"commit_hash": "')
    path = folder / f"{hash_of(4)}-host.json"
    content = json.loads(path.read_text())
    content["results"][SERIES.benchmark][-1] = [[0.0, math.nan, -1.0]]
    path.write_text(json.dumps(content))
    (folder / "machine.json").write_text("{}")
    sessions = project.root / "reports" / "asv-sessions" / folder.name
    sessions.mkdir(parents=True)
    (sessions / "torn.json").write_text("[")
    code, said, [change] = project.run(*HERE)
    assert code == 3
    assert change["commits_before"] + change["commits_after"] == 18
    for name in (hash_of(3), hash_of(4), "machine.json", "torn.json"):
        assert name in said
    assert len(project.record["notes"]) == 4


def test_changes_are_not_confirmed_while_another_session_measures(project: Project) -> None:
    lock = project.root / ".asv" / "lock"
    lock.parent.mkdir()
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="another clone or worktree"):
            project.run(*HERE)
        assert project.run(*HERE, "--no-confirm")[0] == 0
    assert project.run(*HERE)[0] == 3
