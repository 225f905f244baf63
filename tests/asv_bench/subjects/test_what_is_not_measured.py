"""What a command leaves out is said: uncommitted changes, submodules, commits beside the line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from declared_repository import STEP, DeclaredRepository


@pytest.fixture
def toy(declared, lives_in_process: None) -> DeclaredRepository:
    return declared(STEP.replace("measure", 'setup = "true"\n    measure'), *["step = 5"] * 3)


@pytest.mark.parametrize(
    ("changed", "words", "is_said"),
    [
        ("bench.py", ("compare", "HEAD~1", "HEAD"), True),
        ("bench.py", ("bisect", "HEAD~2", "main"), True),
        ("bench.py", ("explain", "HEAD~1", "HEAD", "--traces", "0"), True),
        ("bench.py", ("compare", "HEAD~1", "."), False),
        ("bench.py", ("compare", "HEAD~2", "HEAD~1"), False),
        ("notes.txt", ("compare", "HEAD~1", "HEAD"), False),
    ],
)
def test_uncommitted_changes_of_the_commit_checked_out(
    kvtrail, toy: DeclaredRepository, changed: str, words: tuple[str, ...], is_said: bool
) -> None:
    with (toy.root / changed).open("a") as file:
        file.write("# changed\n")
    said = "uncommitted changes in bench.py are not measured"
    assert (said in kvtrail(toy, *words).text) is is_said


def test_a_submodule_is_named_once_however_many_commits_have_it(
    kvtrail, toy: DeclaredRepository, tmp_path: Path
) -> None:
    toy.git("init", "-q", str(tmp_path / "inner"))
    toy.git("-C", str(tmp_path / "inner"), "commit", "-q", "--allow-empty", "-m", "inner")
    allowed = ("-c", "protocol.file.allow=always")
    toy.git(*allowed, "submodule", "add", "-q", str(tmp_path / "inner"), "third")
    for number in range(2):
        toy.commit(f"step = {5 + number / 1000}", f"with a submodule {number}")
    for _ in ("laid out", "found in the cache"):
        said = kvtrail(toy, "compare", "HEAD~1", "HEAD")
        assert " and 1 more: the files of the submodule third are missing" in said.text
        assert len(said.record["notes"]) == 2


def test_a_merge_that_is_the_culprit_comes_with_the_command_that_goes_into_it(
    kvtrail, toy: DeclaredRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(3)
    fork = toy.git("rev-parse", "HEAD")
    toy.git("checkout", "-q", "-b", "side")
    toy.commit("step = 7", "slower")
    toy.commit("step = 7.001", "more")
    toy.git("checkout", "-q", "main")
    toy.git("merge", "-q", "--no-ff", "side", "-m", "merge side")
    merge = toy.git("rev-parse", "HEAD")[:8]
    toy.commit("step = 7.002", "later")
    words = ("bisect", "HEAD~3", "HEAD")
    monkeypatch.setattr("sys.argv", ["kvtrail", *words])
    said = kvtrail(toy, *words)
    assert said.code == 3, said.text
    assert "1 of 3 commits are merges: only first parents are searched" in said.text
    assert f"It is a merge. Which of the commits that it brought in: kvtrail bisect {fork[:8]}" in (
        said.text
    )
    assert "slower" in kvtrail(toy, "bisect", fork[:8], f"{merge}^2").text
