"""The tool that plants mutants: a survivor and a mutant that cannot be planted are both told."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import __main__ as command
from mutants.catalog import MUTANTS
from mutants.mutant import Mutant
from mutants.runner import COPIED, Outcome, Result, run_mutants, unmutated_failure

ROOT = Path(__file__).resolve().parents[2]
KERNEL = "kernels/toy.py"
TESTS = ("tests/test_toy.py",)


def mutant(original: str, replacement: str, only: str = "", file: str = KERNEL) -> Mutant:
    return Mutant(file, original, replacement, "because", TESTS, only)


KILLED = mutant("return x + 1", "return x - 1")
SURVIVING = mutant("UNUSED = 3", "UNUSED = 4")
MISSING = mutant("return x * 2", "return x")
ENDLESS = mutant("return x + 1", "while True: pass")
CAME_OUT: dict[Mutant, tuple[Result, str]] = {
    KILLED: ("killed", "tests/test_toy.py::test_it"),
    SURVIVING: ("survived", ""),
    mutant("return x + 1", "import os; os.abort()"): ("killed", "signal 6"),
    MISSING: ("error", "kernels/toy.py exactly once, but is no longer found"),
    mutant("return", "pass"): ("error", "but is found 2 times"),
    mutant("UNUSED = 3", "UNUSED = 3"): ("error", "the mutant changes nothing"),
    mutant("a", "b", file="kernels/none.py"): ("error", "there is no kernels/none.py"),
    mutant("def next_one(x):", "def next_one(x:"): ("error", "pytest could not run"),
    mutant("return x + 1", "return x", only="no_such_test"): (
        "error",
        "no test is selected by -k no_such",
    ),
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of one function and its test, which need no torch: workers find empty modules."""
    empty = ("torch.py", "triton.py")
    monkeypatch.setattr("mutants.runner.COPIED", (*COPIED, *empty))
    for folder in ("kernels", "tests"):
        (tmp_path / folder).mkdir()
    for name in (*empty, "kernels/__init__.py"):
        (tmp_path / name).touch()
    (tmp_path / "kernels" / "toy.py").write_text(
        "UNUSED = 3\n\n\ndef next_one(x):\n    return x + 1\n\n\ndef same(x):\n    return x\n"
    )
    (tmp_path / "tests" / "test_toy.py").write_text(
        "from kernels.toy import next_one\n\n\ndef test_it():\n    assert next_one(1) == 2\n"
    )
    return tmp_path


def test_killed_surviving_and_wrong_mutants_are_told_apart(
    toy: Path,
) -> None:
    before = {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()}
    seen: list[Outcome] = []
    # The last of each copy finds it sound again.
    outcomes = run_mutants(toy, [*CAME_OUT, KILLED, KILLED], 2, seen.append)
    assert sorted(map(repr, seen)) == sorted(map(repr, outcomes))
    for outcome in outcomes:
        result, words = CAME_OUT[outcome.mutant]
        assert (outcome.result, words in outcome.what) == (result, True), outcome
    after = {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()}
    assert after == before, "the tree itself is never changed"


@pytest.mark.thorough
def test_a_mutant_that_never_ends_is_killed(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine takes seconds for one that ends.
    monkeypatch.setattr("mutants.runner.TIMEOUT_S", 15)
    [outcome] = run_mutants(toy, [ENDLESS], 1, lambda _: None)
    assert (outcome.result, outcome.what) == ("killed", "no end after 15 s")


def test_tests_that_fail_anyway_prove_nothing(toy: Path) -> None:
    (toy / "tests" / "test_toy.py").write_text("def test_it():\n    assert not 'this'\n")
    assert "assert not 'this'" in (unmutated_failure(toy, [KILLED]) or "")


def test_the_command_ends_as_its_mutants_do(capsys: pytest.CaptureFixture[str]) -> None:
    results: list[Result] = ["killed", "survived", "error"]
    outcomes = [Outcome(SURVIVING, result, "", 0.0) for result in results]
    assert [command.report(outcomes[:count], 1.0) for count in (1, 2, 3)] == [0, 1, 2]
    said = capsys.readouterr().out
    assert "UNUSED = 3 -> UNUSED = 4" in said
    assert "3 mutants: 1 noticed, 1 survived, 1 in error" in said


def test_what_needs_a_gpu_is_counted_and_not_run_without_one(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_gpu = Mutant(KERNEL, "return x + 1", "return x", "because", TESTS, check="gpu")
    for mutants, option, code, words in (
        ((KILLED, of_gpu), "--no-gpu", 0, "1 of 2 mutants are not run: they are of kernels that"),
        ((of_gpu,), "--no-gpu", 2, "no mutant that can be run here"),
        # With a GPU, those of the interpreter are left to machines without one.
        ((KILLED,), "--gpu", 2, "1 of 1 mutants are not run: they run through"),
    ):
        monkeypatch.setattr(command, "MUTANTS", mutants)
        assert command.main([option], toy) == code
        assert words in " ".join(capsys.readouterr().out.split())


def test_every_mutant_of_the_catalog_can_be_planted_and_says_what_it_breaks() -> None:
    for one in MUTANTS:
        one.planted_in((ROOT / one.file).read_text(encoding="utf-8"))
        assert one.why, one.title
        assert all((ROOT / path).is_file() for path in one.tests)
    changes = [(one.file, one.original, one.replacement) for one in MUTANTS]
    assert len(set(changes)) == len(changes)
    planted = [one.file for one in MUTANTS]
    for path in sorted((ROOT / "kernels").rglob("*.py")):
        if "@triton.jit" in path.read_text() or "@gluon.jit" in path.read_text():
            assert planted.count(path.relative_to(ROOT).as_posix()) >= 3, path.name
