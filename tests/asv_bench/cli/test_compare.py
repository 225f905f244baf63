"""`compare` from the command line on a toy history, through real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_pairs import BASE, FIRST_LOOK, HEAD, ScriptedPairs, SourcedSuite
from toy_project import ToyProject, git, make_project, run_ruler
from typer.testing import CliRunner, Result

from asv_bench.cli.commands import build_app
from asv_bench.compare import noise_pools
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.repository import Commit
from asv_bench.measure import log
from asv_bench.measure.samples import GpuConditions, Pair, Reading
from asv_bench.session import session
from asv_bench.subjects import choose

STEP = r"Toy\.track_step"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ToyProject:
    """Engines 1, 2 and 2 again; one that cannot be imported; none."""
    folder = tmp_path_factory.mktemp("toy")
    project = make_project(folder / "project", commits=2)
    (project.root / "kernels" / "harmless.py").write_text("")
    project.commits.append(project.commit("harmless"))
    (project.root / "engine" / "__init__.py").write_text("raise RuntimeError('planted')\n")
    project.commits.append(project.commit("broken"))
    project.git("rm", "--quiet", "-r", "engine")
    project.commits.append(project.commit("no engine"))
    project.git("checkout", "--quiet", "HEAD~2")
    project.git("branch", "--quiet", "--force", "main")
    project.git("checkout", "--quiet", "main")
    return project


@pytest.fixture
def toy(original: ToyProject, tmp_path: Path) -> ToyProject:
    shutil.copytree(original.root, tmp_path / "project")
    return ToyProject(tmp_path / "project", list(original.commits))


def compare(root: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    path = root.parent / "record.json"
    done = run_ruler(root, "compare", *arguments, "--json", str(path))
    record = json.loads(path.read_text()) if path.is_file() else {}
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr, record


def test_a_planted_slowdown_is_found(toy: ToyProject, tmp_path: Path) -> None:
    # The working tree, of which neither commit is, cannot even be read.
    for package in ("engine", "kernels"):
        (toy.root / package / "__init__.py").write_text("def (\n")
    code, said, record = compare(
        *(toy.root, "HEAD~2", "HEAD~1", "-b", STEP, "-b", "track_process"),
        *("--markdown", str(tmp_path / "pages" / "summary.md"), "--pairs", "8"),
    )
    assert code == 3
    by_name = {entry["benchmark"]: entry for entry in record["results"]["comparisons"]}
    step = by_name["toy.Toy.track_step(8)"]
    assert step["verdict"] == "slower"
    assert step["effect"] == pytest.approx(1.0)
    assert step["interval"] == pytest.approx([1.0, 1.0])
    assert (step["base"], step["head"]) == tuple(toy.commits[:2])
    assert (step["base_value"], step["head_value"], step["pairs_used"]) == (1.0, 2.0, 8)
    assert record["results"]["outcome"] == "regression"
    assert "toy.Toy.track_step(8)" in said
    assert "+100.00 %" in said
    page = (tmp_path / "pages" / "summary.md").read_text()
    assert "| toy.Toy.track_step(8) | slower | +100.00 % | +100.00 % to +100.00 % |" in page
    assert r"step 2 \<b\>" in page

    # Both figures came from the same processes, and each process was a new one.
    samples: dict[str, list[tuple[float, ...]]] = {}
    for pair in record["samples"]:
        for side in ("base", "head"):
            samples.setdefault(pair["benchmark"], []).append(tuple(pair[side]["samples"]))
    processes = samples["toy.Toy.track_process(8)"]
    # Process ids are near to each other, which may be called equivalent before the steps differ.
    assert 0 < len(processes) <= len(samples["toy.Toy.track_step(8)"]) == 16
    begun: dict[str, set[float]] = {name: set() for name in samples}
    for pair in record["samples"]:
        begun[pair["benchmark"]] |= {pair[side]["started_at"] for side in ("base", "head")}
    assert begun["toy.Toy.track_process(8)"] <= begun["toy.Toy.track_step(8)"]
    # A run as short as this is repeated, in the same process.
    assert all(len(values) == 7 and len(set(values)) == 1 for values in processes)
    assert len(set(processes)) == len(processes)
    orders = [
        pair["head_first"]
        for pair in record["samples"]
        if pair["benchmark"] == "toy.Toy.track_step(8)"
    ]
    assert orders == [number % 4 in (1, 2) for number in range(8)]
    for pair in record["samples"]:
        base_ran_first = pair["base"]["started_at"] < pair["head"]["started_at"]
        assert base_ran_first != pair["head_first"]


def test_the_same_engine_and_kernels_are_not_measured(toy: ToyProject, tmp_path: Path) -> None:
    (toy.root / "README.md").write_text("only this is new\n")
    documented = toy.commit("document it")
    page = tmp_path / "summary.md"
    options = ("-b", "Toy", "--gate", "none", "--markdown", str(page))
    code, said, record = compare(toy.root, "HEAD~1", "HEAD", *options)
    assert code == record["results"]["exit_code"] == 0
    assert "the same in both, nothing to measure; --anyway measures" in " ".join(said.split())
    assert {one["verdict"] for one in record["results"]["comparisons"]} == {"same"}
    assert record["samples"] == []
    assert f"**{documented[:8]}** document it against" in page.read_text()
    assert "| same |" in page.read_text()


@pytest.mark.thorough
def test_a_commit_is_equivalent_to_itself_within_a_margin_in_per_cent(toy: ToyProject) -> None:
    options = ("-b", STEP, "--quick", "--margin")
    code, said, record = compare(toy.root, "HEAD", "HEAD", "--anyway", *options, "2.5")
    (answer,) = record["results"]["comparisons"]
    assert (code, answer["verdict"], answer["effect"]) == (0, "equivalent", 0.0), said
    assert len(record["samples"]) == answer["pairs_used"] > 0
    plan = record["settings"]["plan"]
    assert (plan["margin"], plan["minimum_effect"]) == (0.025, 0.025)
    assert "within 2.5 %" in " ".join(said.split())
    assert compare(toy.root, "HEAD", "HEAD", *options, "0")[0] == 2


@pytest.mark.thorough
def test_todays_ruler_measures_the_working_tree_as_it_stands(toy: ToyProject) -> None:
    toy.set_engine(1.5)
    before = toy.git("status", "--porcelain"), toy.git("worktree", "list"), toy.git("stash", "list")
    code, _, record = compare(
        toy.root, "HEAD", ".", "-b", STEP, "-b", "track_ruler", "--pairs", "11"
    )
    step, ruler = record["results"]["comparisons"]
    if step["benchmark"] != "toy.Toy.track_step(8)":
        step, ruler = ruler, step
    assert (code, step["verdict"], step["head_value"]) == (0, "faster", 1.5)
    # The commits' own rulers say 7 and 101.
    assert (ruler["base_value"], ruler["head_value"]) == (7.0, 7.0)
    after = toy.git("status", "--porcelain"), toy.git("worktree", "list"), toy.git("stash", "list")
    assert after == before
    assert record["dirty"] is True


@pytest.mark.thorough
def test_a_linked_worktree_is_compared_from(toy: ToyProject, tmp_path: Path) -> None:
    linked = tmp_path / "elsewhere" / "linked"
    toy.git("worktree", "add", "--quiet", "--detach", str(linked), "HEAD")
    before = git(linked, "status", "--porcelain"), toy.git("worktree", "list")
    code, _, record = compare(linked, "HEAD~2", "HEAD", "-b", STEP, "--pairs", "10")
    assert (code, record["results"]["comparisons"][0]["verdict"]) == (3, "slower")
    assert (git(linked, "status", "--porcelain"), toy.git("worktree", "list")) == before
    assert not (toy.root / ".asv").exists()


@pytest.mark.parametrize(
    ("commit", "expected", "complaint"),
    [
        (3, 1, "cannot be measured: RuntimeError: planted"),
        (4, 5, "has no 'engine' package"),
    ],
)
def test_an_unusable_commit_is_a_sentence_and_an_exit_code(
    toy: ToyProject, commit: int, expected: int, complaint: str
) -> None:
    unusable = toy.commits[commit]
    code, said, record = compare(toy.root, "HEAD", unusable, "-b", STEP, "--gate", "none")
    assert (code, record["results"]["exit_code"]) == (expected, expected)
    assert f"commit {unusable[:8]} cannot be measured" in said
    assert complaint in said
    assert record["samples"] == []


@pytest.mark.thorough
def test_a_benchmark_that_fails_does_not_hide_the_others(toy: ToyProject) -> None:
    code, said, record = compare(
        toy.root, "HEAD~1", "HEAD", "-b", "Broken", "-b", STEP, "--pairs", "11", "--gate", "none"
    )
    verdicts = {entry["benchmark"]: entry["verdict"] for entry in record["results"]["comparisons"]}
    assert verdicts == {
        "toy.Broken.track_failure": "failed",
        "toy.Toy.track_step(8)": "equivalent",
    }
    assert code == 1
    assert "ArithmeticError: planted failure" in said


@pytest.fixture
def in_place(original: ToyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of commands in this process, as if they were those of the toy, which stays."""
    monkeypatch.setattr(choose, "REPOSITORY", original.root)
    monkeypatch.setattr(session, "WORKPLACE", tmp_path)
    monkeypatch.setattr(log, "FOLDER", tmp_path / "pairs")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(original.root)
    return tmp_path / "record.json"


def invoke(record: Path, *arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["compare", *arguments, "--json", str(record)])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("nowhere", "HEAD", "-b", STEP), "knows no commit called 'nowhere'"),
        (("HEAD", "HEAD", "-b", "no_such_thing"), "is found in none of the 5 benchmarks"),
        (("HEAD", "HEAD", "-b", "("), "not a regular expression"),
        (("HEAD", "HEAD", "-b", STEP, "--pairs", "5"), "take at least 7"),
        (("HEAD", "HEAD", "-b", "Toy", "--pairs", "6"), "among 4 benchmarks, 6 pairs cannot"),
        (("HEAD", "HEAD", "-b", STEP, "--quick", "--pairs", "20"), "exclude each other"),
        (("HEAD", "HEAD", "-b", STEP, "--gate", "faster"), "--gate 'faster' names 'faster'"),
        (("HEAD", "HEAD", "-b", STEP, "--devices", "0"), "there is none here"),
        (("HEAD", "HEAD", "-b", STEP, "--require-gpu"), "is given no GPU"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    in_place: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    refusal = invoke(in_place, *arguments).exception
    demands_gpu = "--require-gpu" in arguments
    assert isinstance(refusal, MeasurementFailed if demands_gpu else Refused)
    assert complaint in str(refusal)
    assert demands_gpu or not in_place.exists()


@pytest.mark.parametrize(
    ("pairs", "benchmarks", "enough"), [("8", 8, "9"), ("9", 23, "18"), ("10", 87, "19")]
)
def test_pairs_that_could_call_no_benchmark_slower_are_refused(
    pairs: str, benchmarks: int, enough: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(commit: str) -> None:
        raise LookupError(commit)

    def outcome(pairs: str) -> BaseException | None:
        return CliRunner().invoke(build_app(), ["compare", "a", "b", "--pairs", pairs]).exception

    suite = SimpleNamespace(
        metrics=[None] * benchmarks, devices=("cpu",), resolve=resolve, choose=lambda *_: None
    )
    monkeypatch.setattr(choose, "OwnSuite", lambda root: suite)
    refusal = outcome(pairs)
    assert isinstance(refusal, Refused)
    assert f"among {benchmarks} benchmarks, {pairs} pairs" in str(refusal)
    assert f"take at least {enough}" in str(refusal)
    # So many go on to the commits.
    assert isinstance(outcome(enough), LookupError)


def children_of(folder: Path) -> list[str]:
    """Command lines of running processes that belong to a toy's comparison."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
            line = path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if f"ASV_ENV_DIR={folder}".encode() in environment:
            found.append(line.decode().replace("\0", " "))
    return found


Run = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Compares a and b, whose pairs come from a source."""
    monkeypatch.setattr(session, "WORKPLACE", tmp_path)
    for module, folder in ((log, "pairs"), (noise_pools, "noise")):
        monkeypatch.setattr(module, "FOLDER", tmp_path / folder)

    def run(source: ScriptedPairs, *options: str) -> tuple[int, str, dict[str, Any]]:
        commits = {"a": Commit(BASE), "b": Commit(HEAD)}
        suite = SourcedSuite(tmp_path, source, commits=commits)
        monkeypatch.setattr(choose, "OwnSuite", lambda root: suite)
        done = invoke(tmp_path / "record.json", "a", "b", *options)
        assert isinstance(done.exception, SystemExit | None), done.exception
        record = json.loads((tmp_path / "record.json").read_text())
        return done.exit_code, " ".join(done.output.split()), record

    return run


def test_an_interrupted_comparison_goes_on_where_it_was(scripted: Run) -> None:
    def run(interrupted_at: int | None, *options: str) -> tuple[int, str, int]:
        def ratio(_: str, number: int) -> float:
            if number == interrupted_at:
                raise KeyboardInterrupt
            return 1.05 + 0.0001 * number

        source = ScriptedPairs(ratio)
        code, said, _ = scripted(source, *options)
        return code, said, len(source.asked)

    assert run(5)[0] == 130
    code, said, measured = run(None)
    assert (code, measured) == (3, FIRST_LOOK - 5)
    assert "going on with 5 pairs" in said
    # With its answer given, the same is asked anew, unless it is told otherwise.
    assert run(None, "--resume")[2] == 0
    assert run(None)[2] == FIRST_LOOK
    assert run(5)[0] == 130
    assert run(None, "--fresh")[2] == FIRST_LOOK


class Slowed(ScriptedPairs):
    """Pairs on a GPU whose clock the head lowers."""

    def pair(self, *arguments: Any, **options: Any) -> dict[str, Pair]:
        def at(reading: Reading, clock: float) -> Reading:
            gpu = GpuConditions(clock, clock, clock, (), 50, 9)
            return replace(reading, gpu=gpu, started_at=len(self.asked) + clock / 1e4)

        measured = super().pair(*arguments, **options)
        return {
            name: replace(pair, base=at(pair.base, 1980.0), head=at(pair.head, 1920.0))
            for name, pair in measured.items()
        }


def test_a_clock_that_the_head_lowers_is_said_before_the_verdict_and_recorded(
    scripted: Run,
) -> None:
    _, said, record = scripted(Slowed(lambda name, number: 1.03 + number / 1e5))
    finding = "1980 MHz for the base, 1920 MHz for the head (-3.0 %"
    assert said.index(finding) < said.index("b: slower")
    assert any(finding in warning for warning in record["warnings"])


def pairs_kept(root: Path) -> int:
    paths = (root / ".asv" / "log").glob("*.jsonl")
    return sum(path.read_text().count('"part":') for path in paths)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)]
)
def test_an_interruption_writes_what_was_measured_and_leaves_nothing(
    toy: ToyProject, number: signal.Signals, tmp_path: Path
) -> None:
    (toy.root / "engine" / "__init__.py").write_text("import time\ntime.sleep(0.2)\nSTEP = 3\n")
    toy.commit("slow to import")
    before = toy.git("status", "--porcelain"), toy.git("worktree", "list"), toy.git("reflog")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    own = {"PYTHONPATH": str(toy.root), "TMPDIR": str(scratch), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "asv_bench", "compare", "HEAD", "HEAD", "--anyway", "-b", STEP]
    process = subprocess.Popen(
        [*command, "--pairs", "200", "--json", str(toy.root.parent / "record.json")],
        cwd=toy.root,
        env=os.environ | own,
        stdout=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore an interruption, and so does what they start.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    folder = toy.root / ".asv" / "verdicts"
    deadline = time.monotonic() + 120
    while not children_of(folder) or pairs_kept(toy.root) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert not children_of(folder)
    assert not list(scratch.iterdir())
    record = json.loads((toy.root.parent / "record.json").read_text())
    assert record["results"]["interrupted"] is True
    (answer,) = record["results"]["comparisons"]
    assert answer["verdict"] == "inconclusive"
    assert answer["pairs_used"] == len(record["samples"]) > 0
    assert "interrupted" in said
    after = toy.git("status", "--porcelain"), toy.git("worktree", "list"), toy.git("reflog")
    assert after == before
