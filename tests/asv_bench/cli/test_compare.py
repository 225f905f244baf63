"""`compare` from the command line on a toy history, through real processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from simulated_pairs import BASE, FIRST_LOOK, HEAD, Answer, ScriptedPairs, SourcedSuite
from toy_project import ToyProject, git, make_project, run_ruler

from asv_bench.compare.noise_pools import NoisePools, Pool
from asv_bench.errors import BenchError, TimeIsUp
from asv_bench.git.repository import Commit
from asv_bench.measure.samples import Pair
from asv_bench.process.gpu import GpuConditions
from asv_bench.process.machine import Surroundings
from asv_bench.subjects import choose

STEP = r"Toy\.track_step"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ToyProject:
    """Engines 1 and 2, which is HEAD; one that cannot be imported; none."""
    project = make_project(tmp_path_factory.mktemp("toy") / "project", commits=2)
    (project.root / "engine" / "__init__.py").write_text("raise RuntimeError('planted')\n")
    project.commits.append(project.commit("broken"))
    project.git("rm", "--quiet", "-r", "engine")
    project.commits.append(project.commit("no engine"))
    project.git("checkout", "--quiet", "-B", "main", "HEAD~2")
    return project


@pytest.fixture
def toy(original: ToyProject, tmp_path: Path) -> ToyProject:
    shutil.copytree(original.root, tmp_path / "project")
    return ToyProject(tmp_path / "project", list(original.commits))


def ask(root: Path, *words: str) -> Answer:
    """A command in a process of its own."""
    path = root.parent / "record.json"
    done = run_ruler(root, *words, "--json", str(path))
    record = json.loads(path.read_text()) if path.is_file() else {}
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, " ".join((done.stdout + done.stderr).split()), record


def test_a_planted_slowdown_is_found(toy: ToyProject, tmp_path: Path) -> None:
    # The working tree, of which neither commit is, cannot even be read.
    for package in ("engine", "kernels"):
        (toy.root / package / "__init__.py").write_text("def (\n")
    page = tmp_path / "pages" / "summary.md"
    options = ("-b", STEP, "-b", "track_process", "-b", "Broken", "--pairs", "8")
    options += ("--markdown", str(page))
    code, said, record = ask(toy.root, "compare", "HEAD~1", "HEAD", *options)
    assert code == 3
    by_name = {entry["benchmark"]: entry for entry in record["results"]["comparisons"]}
    step = by_name["toy.Toy.track_step(8)"]
    assert (step["verdict"], step["effect"]) == ("slower", pytest.approx(1.0))
    assert step["interval"] == pytest.approx([1.0, 1.0])
    assert (step["base"], step["head"]) == tuple(toy.commits[:2])
    assert (step["base_value"], step["head_value"], step["pairs_used"]) == (1.0, 2.0, 8)
    assert record["results"]["outcome"] == "regression"
    assert "+100.00 %" in said
    assert "| toy.Toy.track_step(8) | slower | +100.00 % |" in page.read_text()
    assert r"step 2 \<b\>" in page.read_text()
    # A benchmark that fails does not hide the others.
    assert by_name["toy.Broken.track_failure"]["verdict"] == "failed"
    assert "ArithmeticError: planted failure" in said

    # Both figures came from the same processes, and each process was a new one.
    samples: dict[str, dict[float, list[float]]] = {}
    for pair in record["samples"]:
        for side in ("base", "head"):
            own = samples.setdefault(pair["benchmark"], {})
            own[pair[side]["started_at"]] = pair[side]["samples"]
        assert pair["head_first"] != (pair["base"]["started_at"] < pair["head"]["started_at"])
    processes, steps = samples["toy.Toy.track_process(8)"], samples["toy.Toy.track_step(8)"]
    # Process ids are near to each other, which may be called equivalent before the steps differ.
    assert processes.keys() <= steps.keys()
    # A run as short as this is repeated, in the same process.
    assert all(len(values) == 7 and len(set(values)) == 1 for values in processes.values())
    assert len({values[0] for values in processes.values()}) == len(processes) > 0


@pytest.mark.thorough
def test_todays_ruler_measures_the_tree_of_a_linked_worktree_as_it_stands(
    toy: ToyProject, tmp_path: Path
) -> None:
    linked = tmp_path / "elsewhere" / "linked"
    toy.git("worktree", "add", "--quiet", "--detach", str(linked), "HEAD")
    (linked / "engine" / "__init__.py").write_text("STEP = 1.5\n")
    before = git(linked, "status", "--porcelain"), toy.git("worktree", "list")
    words = ("compare", "HEAD", ".", "-b", STEP, "-b", "track_ruler", "--pairs", "11")
    code, _, record = ask(linked, *words)
    by_name = {entry["benchmark"]: entry for entry in record["results"]["comparisons"]}
    step, ruler = by_name["toy.Toy.track_step(8)"], by_name["toy.Toy.track_ruler(8)"]
    assert (code, step["verdict"], step["head_value"]) == (0, "faster", 1.5)
    # The commits' own rulers say 7 and 101.
    assert (ruler["base_value"], ruler["head_value"]) == (7.0, 7.0)
    assert (git(linked, "status", "--porcelain"), toy.git("worktree", "list")) == before
    assert record["dirty"] is True
    assert not (toy.root / ".asv").exists()


@pytest.mark.thorough
def test_the_file_of_the_engine_is_found_among_what_is_measured(toy: ToyProject) -> None:
    (toy.root / "kernels" / "more.py").write_text("")
    (toy.root / "README.md").write_text("not measured\n")
    toy.set_engine(4)
    toy.commit("slower, of three files")
    before = toy.git("status", "--porcelain"), toy.git("count-objects")
    code, said, record = ask(toy.root, "bisect", "HEAD", "--files", "-b", STEP)
    assert "engine/__init__.py makes it slower: +100.00 %" in said
    assert code == 3
    assert record["settings"]["files"] == ["engine/__init__.py", "kernels/more.py"]
    assert (toy.git("status", "--porcelain"), toy.git("count-objects")) == before


@pytest.mark.parametrize(
    ("commit", "expected", "complaint"),
    [
        (2, 1, "cannot be measured: RuntimeError: planted"),
        (3, 5, "has no 'engine' package"),
    ],
)
def test_an_unusable_commit_is_a_sentence_and_an_exit_code(
    original: ToyProject,
    in_place: Callable[..., Answer],
    commit: int,
    expected: int,
    complaint: str,
) -> None:
    unusable = original.commits[commit]
    code, said, record = in_place("HEAD", unusable, "-b", STEP, "--gate", "none")
    assert (code, record["results"]["exit_code"]) == (expected, expected)
    assert f"commit {unusable[:8]} cannot be measured" in said
    assert complaint in said
    assert record["samples"] == []


@pytest.fixture
def in_place(
    original: ToyProject, monkeypatch: pytest.MonkeyPatch, invoke: Callable[..., Answer]
) -> Callable[..., Answer]:
    """Compare in this process, as if it were that of the toy, which stays."""
    monkeypatch.setattr(choose, "REPOSITORY", original.root)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(original.root)
    return partial(invoke, None, "compare")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (f"nowhere HEAD -b {STEP}", "knows no commit called 'nowhere'"),
        ("HEAD HEAD -b no_such_thing", "is found in none of the 5 benchmarks"),
        ("HEAD HEAD -b (", "not a regular expression"),
        (f"HEAD HEAD -b {STEP} --pairs 5", "take at least 7"),
        ("HEAD HEAD -b Toy --pairs 6", "6 pairs cannot show a difference of one; take at least 8"),
        (f"HEAD HEAD -b {STEP} --quick --pairs 20", "exclude each other"),
        (f"HEAD HEAD -b {STEP} --gate faster", "--gate 'faster' names 'faster'"),
        (f"HEAD HEAD -b {STEP} --devices 0", "there is none here"),
        (f"HEAD HEAD -b {STEP} --require-gpu", "is given no GPU"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    in_place: Callable[..., Answer], words: str, complaint: str
) -> None:
    with pytest.raises(BenchError) as refusal:
        in_place(*words.split())
    assert complaint in str(refusal.value)


Scripted = Callable[..., Answer]


@pytest.fixture
def scripted(tmp_path: Path, invoke: Callable[..., Answer]) -> Scripted:
    """Compares a and b, whose pairs come from a source."""

    def run(source: ScriptedPairs, *options: str) -> Answer:
        commits = {"a": Commit(BASE), "b": Commit(HEAD)}
        suite = SourcedSuite(tmp_path, source, commits=commits)
        return invoke(suite, "compare", "a", "b", *options)

    return run


def test_an_interrupted_comparison_goes_on_where_it_was(scripted: Scripted) -> None:
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


def test_an_answer_in_time_says_what_it_is_worth_and_what_a_verdict_takes(
    scripted: Scripted,
) -> None:
    def ratio(_: str, number: int) -> float:
        if number == 5:
            raise TimeIsUp
        return 1.02 + 0.02 * (-1) ** number

    code, said, record = scripted(ScriptedPairs(ratio), "--minutes", "5")
    [answer] = record["results"]["comparisons"]
    assert (code, answer["verdict"], record["results"]["so_far"]) == (4, "inconclusive", True)
    assert record["results"]["interrupted"] is False
    assert answer["effect"] == pytest.approx(0.02, abs=0.015)
    assert "Time was up" in said
    assert "go on with these pairs: " in said
    [advice] = record["results"]["advice"]
    assert "b: to tell +2." in advice
    assert "pairs (--pairs " in advice
    assert advice in said
    code, said, record = scripted(ScriptedPairs(lambda *_: 1.5))
    assert "going on with 5 pairs" in said
    assert record["results"]["so_far"] is False


def test_time_that_is_up_before_anything_is_measured_is_said_and_recorded(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pairs(self: SourcedSuite) -> None:
        raise TimeIsUp

    monkeypatch.setattr(SourcedSuite, "pairs", pairs)
    code, said, record = scripted(ScriptedPairs(lambda *_: 1.5), "--minutes", "5")
    assert (code, record["results"]["so_far"]) == (4, True)
    assert record["results"]["answer"].startswith("Time is up (--minutes)")
    assert record["results"]["answer"] in said
    options = ("--minutes", "5", "--format", "junit")
    assert '<skipped message="Time is up' in scripted(ScriptedPairs(lambda *_: 1.5), *options)[1]


@pytest.mark.parametrize("is_older", [False, True])
def test_what_so_many_minutes_show_is_said_once_as_soon_as_noise_and_a_pair_are_known(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, *, is_older: bool
) -> None:
    # Comparisons without an answer, whose noise fills the pool.
    for _ in range(4):
        noisy = ScriptedPairs(lambda _, number: 1 + 0.05 * (number * 7 % 5 - 2))
        assert scripted(noisy, "--fresh", "-v")[0] == 4
    if is_older:
        of = NoisePools.of

        def without_seconds(self: NoisePools, names: Sequence[str]) -> dict[str, Pool]:
            return {name: Pool(one, one.sessions) for name, one in of(self, names).items()}

        monkeypatch.setattr(NoisePools, "of", without_seconds)
    _, said, _ = scripted(ScriptedPairs(lambda *_: 1.5), "--minutes", "60", "--fresh", "-v")
    reach = r"b: In \S+ min compare measures at most 30 pairs and finds a change of"
    [found] = re.finditer(reach, said)
    assert (said.index("pair 1 of b") < found.start()) == is_older
    assert found.start() < said.index("pair 2 of b")


def test_what_else_the_machine_did_is_said_where_the_answer_is_not_clear(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(self: Surroundings) -> list[str]:
        return ["Warning: other programs use 2.0 of 2 cores."]

    monkeypatch.setattr(Surroundings, "sentences", look)
    noisy = ScriptedPairs(lambda _, number: 1 + 0.05 * (number * 7 % 5 - 2))
    for source, is_said in ((noisy, True), (ScriptedPairs(lambda *_: 1.5), False)):
        _, said, record = scripted(source, "--fresh")
        assert said.count("other programs use") == is_said
        assert record["warnings"][0] == "Warning: other programs use 2.0 of 2 cores."


class Slowed(ScriptedPairs):
    """Pairs on a GPU whose clock the head lowers."""

    def pair(self, *arguments: Any, **options: Any) -> dict[str, Pair]:
        [(name, pair)] = super().pair(*arguments, **options).items()
        base, head = (
            replace(one, gpu=GpuConditions(mhz, mhz, mhz, (), 50, 9), started_at=len(self.asked))
            for one, mhz in ((pair.base, 1980.0), (pair.head, 1920.0))
        )
        return {name: replace(pair, base=base, head=head)}


def test_each_pair_is_said_where_asked_and_a_clock_that_the_head_lowers_before_the_verdict(
    scripted: Scripted,
) -> None:
    _, said, record = scripted(Slowed(lambda name, number: 1.03 + number / 1e5), "--verbose")
    assert "pair 1 of b: +3.00 %" in said
    finding = "1980 MHz for the base, 1920 MHz for the head (-3.0 %"
    assert said.index(finding) < said.index("b: slower")
    assert any(finding in warning for warning in record["warnings"])


def is_measuring(scratch: Path) -> bool:
    """Whether a process of a comparison runs that has this folder for what is temporary."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"TMPDIR={scratch}".encode() in path.read_bytes():
                return True
    return False


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
        [*command, "--pairs", "200", "--json", str(tmp_path / "record.json")],
        cwd=toy.root,
        env=os.environ | own,
        stdout=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore an interruption, and so does what they start.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    measured, deadline = toy.root / ".asv" / "log", time.monotonic() + 120
    while not is_measuring(scratch) or not any(
        path.read_text().count('"part":') > 1 for path in measured.glob("*.jsonl")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert not is_measuring(scratch)
    assert not list(scratch.iterdir())
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["results"]["interrupted"] is True
    (answer,) = record["results"]["comparisons"]
    assert answer["verdict"] == "inconclusive"
    assert answer["pairs_used"] == len(record["samples"]) > 0
    assert "interrupted" in said
    after = toy.git("status", "--porcelain"), toy.git("worktree", "list"), toy.git("reflog")
    assert after == before
