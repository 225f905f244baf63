"""The tool that plants mutants: a survivor and a mutant that cannot be planted are both told."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import __main__ as command
from mutants.catalog import MUTANTS
from mutants.mutant import Mutant, MutantError
from mutants.runner import COPIED, Outcome, Result, run_mutants, unmutated_failure

ROOT = Path(__file__).resolve().parents[2]
KERNEL = "kernels/toy.py"
TESTS = ("tests/test_toy.py",)


def mutant(original: str, replacement: str, only: str = "", file: str = KERNEL) -> Mutant:
    return Mutant(file, original, replacement, "because", TESTS, only)


KILLED = mutant("return x + 1", "return x - 1")
SURVIVING = mutant("UNUSED = 3", "UNUSED = 4")
MISSING = mutant("return x * 2", "return x")
TWICE = mutant("return", "pass")
SAME = mutant("UNUSED = 3", "UNUSED = 3")
ELSEWHERE = mutant("a", "b", file="kernels/none.py")
UNIMPORTABLE = mutant("def next_one(x):", "def next_one(x:")
UNTESTED = mutant("return x + 1", "return x - 1", only="no_such_test")
ENDING = mutant("return x + 1", "import os; os.abort()")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of one function and its test, which need no torch: workers find empty modules."""
    empty = ("torch.py", "triton.py")
    monkeypatch.setattr("mutants.runner.COPIED", (*COPIED, *empty))
    for name in empty:
        (tmp_path / name).touch()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "kernels" / "__init__.py").touch()
    (tmp_path / "kernels" / "toy.py").write_text(
        "UNUSED = 3\n\n\ndef next_one(x):\n    return x + 1\n\n\ndef same(x):\n    return x\n"
    )
    (tmp_path / "tests" / "test_toy.py").write_text(
        "from kernels.toy import next_one\n\n\ndef test_it():\n    assert next_one(1) == 2\n"
    )
    return tmp_path


def run(toy: Path, *mutants: Mutant, jobs: int = 1) -> list[Outcome]:
    seen: list[Outcome] = []
    outcomes = run_mutants(toy, mutants, jobs, seen.append)
    assert sorted(map(repr, seen)) == sorted(map(repr, outcomes))
    return outcomes


def test_a_killed_and_a_surviving_mutant_are_told_apart(toy: Path) -> None:
    before = {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()}
    outcomes = run(toy, KILLED, SURVIVING, KILLED, ENDING, jobs=2)
    assert [one.result for one in outcomes] == ["killed", "survived", "killed", "killed"]
    assert outcomes[0].what == "tests/test_toy.py::test_it"
    assert "signal 6" in outcomes[3].what
    after = {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()}
    assert after == before, "the tree itself is never changed"


def test_a_mutant_that_says_nothing_is_an_error(toy: Path) -> None:
    broken = {
        MISSING: "kernels/toy.py exactly once, but is no longer found",
        TWICE: "but is found 2 times",
        SAME: "the mutant changes nothing",
        ELSEWHERE: "there is no kernels/none.py",
        UNIMPORTABLE: "pytest could not run",
        UNTESTED: "no test is selected by -k no_such_test",
    }
    # One after each is run in the same copy, which must be sound again.
    outcomes = run(toy, *(one for pair in broken for one in (pair, KILLED)))
    for outcome, sentence in zip(outcomes[::2], broken.values(), strict=True):
        assert outcome.result == "error"
        assert sentence in outcome.what
    assert [one.result for one in outcomes[1::2]] == ["killed"] * len(broken)


def test_an_endless_mutant_is_noticed(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutants.runner.TIMEOUT_S", 1)
    (outcome,) = run(toy, mutant("return x + 1", "while True: pass"))
    assert (outcome.result, outcome.what) == ("killed", "no end after 1 s")


def test_tests_that_fail_anyway_prove_nothing(toy: Path) -> None:
    (toy / "tests" / "test_toy.py").write_text("def test_it():\n    assert not 'this'\n")
    assert "assert not 'this'" in (unmutated_failure(toy, [KILLED]) or "")


@pytest.mark.parametrize(
    ("results", "code", "said"),
    [
        (("killed", "survived"), 1, "UNUSED = 3 -> UNUSED = 4"),
        (("killed", "survived", "error"), 2, "3 mutants: 1 noticed, 1 survived, 1 in error"),
    ],
)
def test_the_command_ends_as_its_mutants_do(
    capsys: pytest.CaptureFixture[str],
    results: tuple[Result, ...],
    code: int,
    said: str,
) -> None:
    outcomes = [Outcome(SURVIVING, result, "", 0.0) for result in results]
    assert command.report(outcomes, 1.0) == code
    assert said in capsys.readouterr().out


def test_what_needs_a_gpu_is_counted_and_not_run_without_one(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_gpu = Mutant(KERNEL, "return x + 1", "return x", "because", TESTS, check="gpu")
    monkeypatch.setattr(command, "MUTANTS", (KILLED, of_gpu, of_gpu))
    assert command.main(["--no-gpu"], toy) == 0
    assert "2 of 3 mutants are not run: they are of kernels that only a Hopper GPU runs" in (
        " ".join(capsys.readouterr().out.split())
    )
    monkeypatch.setattr(command, "MUTANTS", (of_gpu,))
    assert command.main(["--no-gpu"], toy) == 2
    # With a GPU, those of the interpreter are left to machines without one.
    monkeypatch.setattr(command, "MUTANTS", (KILLED, KILLED))
    assert command.main(["--gpu"], toy) == 2
    assert "2 of 2 mutants are not run: they run through" in (
        " ".join(capsys.readouterr().out.split())
    )


def test_every_mutant_of_the_catalog_can_be_planted_and_says_what_it_breaks() -> None:
    for one in MUTANTS:
        one.planted_in((ROOT / one.file).read_text(encoding="utf-8"))
        assert one.why, one.title
        assert all((ROOT / path).is_file() for path in one.tests)
    changes = [(one.file, one.original, one.replacement) for one in MUTANTS]
    assert len(set(changes)) == len(changes)


def test_every_kernel_file_has_mutants() -> None:
    planted = [one.file for one in MUTANTS]
    for path in sorted((ROOT / "kernels").rglob("*.py")):
        if "@triton.jit" in path.read_text() or "@gluon.jit" in path.read_text():
            assert planted.count(path.relative_to(ROOT).as_posix()) >= 3, path.name
    with pytest.raises(MutantError):
        MISSING.planted_in("nothing of the kind")
