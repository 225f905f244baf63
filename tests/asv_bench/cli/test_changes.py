"""Stored histories: what moved, what is noise, and what a comparison makes of it."""

from __future__ import annotations

import json
import math
import platform
import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_pairs import FIRST_LOOK, Answer, ScriptedPairs, SourcedSuite
from stored_figures import SERIES, figures, hash_of, steps, store_results
from toy_project import git

from asv_bench.errors import Refused
from asv_bench.history.asv_results import Figure
from asv_bench.history.asv_selection import Entry, select
from asv_bench.history.standing import UNFINISHED
from asv_bench.process.machine import machine_facts
from asv_bench.subjects import choose

HERE = machine_facts().name


class Project:
    """A project with stored results of this machine, and a fake machine to compare."""

    def __init__(self, root: Path, invoke: Callable[..., Answer]) -> None:
        self.root = root
        self.invoke = invoke
        self.true_effect = 0.05
        self.compared: list[tuple[str, str]] = []
        self.unusable: dict[str, str] = {}
        self.interrupted_at: int | None = None
        self.folder = self.measure_on(HERE)

    def measure_on(self, machine: str) -> Path:
        """Store a step on a machine; its folder."""
        folder = self.root / "reports" / "asv" / machine
        for figure in figures(steps(20, c12=0.05), noise=0.002):
            self.store(figure, folder)
        return folder

    def store(self, figure: Figure, folder: Path | None = None, python: str | None = None) -> None:
        """Store a figure as one of this machine, or of another that has the folder."""
        median, samples = statistics.median(figure.samples), [list(figure.samples)]
        row = [[median], [["'gpt2-tiny'"]], "1", figure.started_ms, samples]
        of, results = (folder or self.folder), {SERIES.benchmark: row}
        described = {SERIES.benchmark: ("seconds", ["model"])}
        store_results(of, described, results, figure.commit, figure.committed_ms, python=python)

    def forget(self) -> None:
        """Remove all that is stored of this machine."""
        for path in self.folder.glob("*-host*.json"):
            path.unlink()

    def commit(self, subject: str) -> str:
        """The hash of one more commit of whatever is staged."""
        git(self.root, "commit", "--quiet", "--allow-empty", "--message", subject)
        return git(self.root, "rev-parse", "HEAD").strip()

    def suite(self) -> SourcedSuite:
        project, name = self, f"{SERIES.benchmark}('gpt2-tiny')"

        class Recorded(ScriptedPairs):
            def pair(self, base: str, head: str, **options):
                if len(project.compared) == project.interrupted_at:
                    raise KeyboardInterrupt
                project.compared.append((base, head))
                return super().pair(base, head, **options)

        class Suite(SourcedSuite):
            def choose(self, patterns, devices) -> None:
                if devices == "no such":
                    raise Refused("there is no such device.")
                select([Entry(name, name, "seconds")], patterns, has_gpu=False)

        noise = np.random.default_rng(1)
        pairs = Recorded(lambda *_: 1 + self.true_effect + noise.normal(0, 0.003), (name,))
        pairs.unusable = self.unusable
        return Suite(self.root, pairs, [name])

    @property
    def page(self) -> str:
        """What people read on the page of this machine, in one line."""
        page = (self.root / "reports" / "pages" / "index.html").read_text()
        [first] = re.findall(r'<section class="machine" data-machine="0".*?</section>', page, re.S)
        return " ".join(re.sub(r"<[^>]*>", " ", first).split())

    def run(self, *arguments: str) -> tuple[int, str, list[dict]]:
        code, said, self.record = self.invoke(self.suite(), "changes", *arguments)
        return code, said, self.record["results"]["changes"]


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Callable[..., Answer]
) -> Project:
    monkeypatch.setattr(choose, "REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, invoke)


def test_a_change_that_stands_is_a_regression_and_another_machines_is_a_candidate(
    project: Project,
) -> None:
    project.measure_on("own-other")
    issue = project.root / "issue.md"
    code, said, found = project.run("--markdown", str(issue))
    assert code == 3
    assert issue.read_text().startswith("### 1 regression, 1 not confirmed yet")
    assert "Changes in the stored histories" in issue.read_text()
    standings = {change["machine"]: change["standing"] for change in found}
    assert standings == {HERE: "regression", "own-other": "not confirmed yet"}
    assert "regression" in said
    page = (project.root / "reports" / "pages" / "index.html").read_text()
    assert "1 change for the worse suspected in the last 20 commits measured." in page
    assert "1 regression confirmed in the last 20 commits measured." in project.page
    assert re.search(r"compared \+[45]\.\d\d %.* in \d+ pairs", project.page)
    [confirmed] = [change for change in found if change["confirmation"]]
    samples = project.record["samples"]
    assert len(samples) == len(project.compared) == confirmed["confirmation"]["pairs_used"]
    ends = {(sample["base"]["commit"], sample["head"]["commit"]) for sample in samples}
    assert ends == set(project.compared) == {(hash_of(11), hash_of(12))}


def test_what_was_found_out_stays_with_the_history(project: Project) -> None:
    project.run()
    compared = len(project.compared)
    code, said, [change] = project.run("--no-confirm")
    assert (code, change["standing"], len(project.compared)) == (0, "not confirmed yet", compared)
    assert "not confirmed yet" in said
    assert "1 regression confirmed in the last 20 commits measured." in project.page
    project.true_effect = 0.0
    code, _, [change] = project.run()
    assert (code, change["standing"]) == (0, "refuted")
    assert "Nothing got worse in the last 20 commits measured." in project.page
    code, said, found = project.run("--benchmark", r"^kernels\.")
    assert (code, found) == (0, [])
    assert "no series moved" in said


def test_what_somebody_lives_with_is_not_compared_and_no_news(project: Project) -> None:
    acknowledged = project.root / "reports" / "acknowledged.toml"
    table = '[[acknowledged]]\ncommit = "{}"\nbenchmark = "{}"\nwhy = "the price of being right"\n'
    acknowledged.write_text(table.format(hash_of(12), "track_step"))
    code, said, [change] = project.run()
    assert (code, project.compared) == (0, [])
    assert change["acknowledged"] == "the price of being right"
    assert "acknowledged: the" in said
    assert "the price of being right" in project.page
    assert "Nothing got worse" in project.page
    for commit, benchmark in ((hash_of(12), "another"), (hash_of(11), "track_step")):
        acknowledged.write_text(table.format(commit, benchmark))
        assert project.run()[0] == 3
    acknowledged.write_text("[[acknowledged]]\ncommit = 12\n")
    with pytest.raises(Refused, match=r"acknowledged.toml cannot be read.*commit"):
        project.run()


def test_a_change_that_noise_may_have_misplaced_is_compared_around_its_range(
    project: Project,
) -> None:
    levels = steps(20, c12=0.05)
    levels[11] += 0.04
    for figure in figures(levels, noise=0.008):
        project.store(figure)
    code, said, found = project.run()
    assert code == 3
    [change] = found
    assert change["commit"] == hash_of(11)
    assert set(project.compared) == {(change["since"], change["until"])}
    assert int(change["until"], 16) >= 12
    assert f"or one of {change['since'][:8]}..{change['until'][:8]}" in said
    assert "Noise may have misplaced it" in project.page


def test_a_comparison_that_failed_ends_with_its_own_code_and_says_why(project: Project) -> None:
    project.unusable = {hash_of(11): "ImportError: boom"}
    code, said, [change] = project.run()
    assert code == project.record["results"]["exit_code"] == 1
    assert project.record["results"]["outcome"] == "failed"
    assert change["standing"] == "not compared"
    assert "ImportError: boom" in said


def test_an_interruption_keeps_the_answers_and_pairs_there_are(project: Project) -> None:
    for figure in figures(steps(30, c8=0.04, c16=0.06, c24=0.02), noise=0.001):
        project.store(figure)
    # The largest first, which has its answer at the first look; the second has three pairs.
    project.interrupted_at = FIRST_LOOK + 3
    code, said, found = project.run()
    assert code == project.record["results"]["exit_code"] == 130
    assert project.record["results"]["so_far"] is True
    assert project.record["notes"] == [f"Interrupted: {UNFINISHED}"]
    assert UNFINISHED in said
    standings = {change["commit"]: change["standing"] for change in found}
    expected = ("regression", "unresolved", "not confirmed yet")
    assert standings == dict(zip(map(hash_of, (16, 8, 24)), expected, strict=True))
    assert "interrupted" in found[1]["confirmation"]["reason"]
    assert len(project.record["samples"]) == project.interrupted_at
    assert "The comparison was interrupted." in project.page
    # The same command goes on, and measures no pair again.
    project.interrupted_at = None
    code, said, found = project.run()
    assert (code, {change["standing"] for change in found}) == (3, {"regression"})
    assert f"going on with {FIRST_LOOK + 3} pairs" in said
    used = sum(change["confirmation"]["pairs_used"] for change in found)
    assert len(project.compared) == used


def test_changes_of_benchmarks_that_are_all_gone_are_left_out(project: Project) -> None:
    for path in (project.root / "reports" / "asv").rglob("*.json"):
        path.write_text(path.read_text().replace(SERIES.benchmark, "old.Gone.track_x"))
    code, said, [change] = project.run()
    assert (code, change["standing"]) == (0, "not confirmed yet")
    assert "old.Gone.track_x(gpt2-tiny) is gone" in said
    assert project.compared == []
    with pytest.raises(Refused, match="no such device"):
        project.run("--devices", "no such")


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
    project.forget()
    for number, figure in enumerate(figures(steps(20, c12=0.05), noise=0.002)):
        commit = project.commit(f"change {number}")
        project.store(replace(figure, commit=commit))
    code, said, [change] = project.run(*arguments)
    assert change["standing"] == standing
    assert bool(project.compared) == bool(arguments)
    assert code == (3 if arguments else 0)
    assert ("the same in both, nothing to measure" in said) != bool(arguments)


def test_environments_of_one_machine_are_judged_apart(project: Project) -> None:
    here = ".".join(platform.python_version_tuple()[:2])
    project.forget()
    # Only a step of this Python can be confirmed here.
    for seed, (python, level) in enumerate({"3.5": 0.0, here: 0.2}.items()):
        for figure in figures([level + one for one in steps(20, c12=0.05)], seed, noise=0.002):
            project.store(figure, python=python)
    code, said, found = project.run()
    standings = {change["environment"]["python"]: change["standing"] for change in found}
    assert (code, standings) == (3, {"3.5": "not confirmed yet", here: "regression"})
    assert {one["commits_before"] + one["commits_after"] for one in found} == {20}
    assert "with python 3.5" in said
    assert "Measured with python" in project.page


def test_series_are_laid_along_first_parents(project: Project) -> None:
    """A side branch that is 25 % slower, and was merged when that had been mended."""
    git(project.root, "init", "--quiet", "--initial-branch=main")
    main = [project.commit(f"main {number}") for number in range(8)]
    git(project.root, "checkout", "--quiet", "-b", "side", "HEAD~4")
    side = [project.commit(f"side {number}") for number in range(6)]
    git(project.root, "checkout", "--quiet", "main")
    git(project.root, "merge", "--quiet", "--no-ff", "--message", "merge side", "side")
    main += [git(project.root, "rev-parse", "HEAD").strip()]
    main += [project.commit(f"main {number}") for number in range(9, 14)]
    project.forget()
    for level, commits in ((0.0, main), (0.25, side)):
        for number, name in enumerate(commits):
            [figure] = figures([level], seed=number, noise=0.002)
            project.store(replace(figure, commit=name))
    code, _, found = project.run()
    assert (code, found) == (0, [])
    assert "6 of the commits measured are not on it" in project.page


def test_what_is_stored_wrong_is_named_and_the_rest_is_judged(project: Project) -> None:
    (project.folder / f"{hash_of(3)}-host-py3.11.json").write_text('{"commit_hash": "')
    path = project.folder / f"{hash_of(4)}-host-py3.11.json"
    content = json.loads(path.read_text())
    content["results"][SERIES.benchmark][-1] = [[0.0, math.nan, -1.0]]
    path.write_text(json.dumps(content))
    (project.folder / "machine.json").write_text("{}")
    sessions = project.root / "reports" / "asv-sessions" / project.folder.name
    sessions.mkdir(parents=True)
    (sessions / "torn.json").write_text("[")
    code, said, [change] = project.run()
    assert code == 3
    assert change["commits_before"] + change["commits_after"] == 18
    for name in (hash_of(3), hash_of(4), "machine.json", "torn.json"):
        assert name in said
    assert len(project.record["notes"]) == 4
