"""What a command leaves out is said: uncommitted changes, submodules, commits beside the line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository

TABLES = """
    [subject]
    name = "toy"
    measure = "python bench.py"

    [metrics.step_ms]
    path = "step_ms"
    """
UNMEASURED = "uncommitted changes in bench.py are not measured; . in place of "


def bench(step_ms: float) -> str:
    return f"step_ms = {step_ms}\n"


@pytest.fixture
def toy(tmp_path: Path, lives_in_process: None) -> DeclaredRepository:
    return DeclaredRepository.make(tmp_path / "toy", TABLES, *[bench(5)] * 3)


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
    head = toy.toy.git("rev-parse", "HEAD")[:8]
    assert (f"{UNMEASURED}{head} measures the working tree" in kvtrail(toy.toy, *words).text) is (
        is_said
    )


def test_a_submodule_is_named_once_however_many_commits_have_it(
    kvtrail, toy: DeclaredRepository, tmp_path: Path
) -> None:
    inner = tmp_path / "inner"
    toy.toy.git("init", "-q", str(inner))
    toy.toy.git("-C", str(inner), "commit", "-q", "--allow-empty", "-m", "inner")
    allowed = ("-c", "protocol.file.allow=always")
    toy.toy.git(*allowed, "submodule", "add", "-q", str(inner), "third")
    for number in range(2):
        toy.commit(bench(5 + number / 1000), f"with a submodule {number}")
    file = toy.root / "kvtrail.toml"
    file.write_text(file.read_text().replace("[metrics", 'setup = "true"\n[metrics', 1))
    for _ in ("laid out", "found in the cache"):
        said = kvtrail(toy.toy, "compare", "HEAD~1", "HEAD")
        assert " and 1 more: the files of the submodule third are missing" in said.text
        assert len(said.record["notes"]) == 2


def test_a_merge_that_is_the_culprit_comes_with_the_command_that_goes_into_it(
    kvtrail, toy: DeclaredRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(3)
    fork = toy.toy.git("rev-parse", "HEAD")
    toy.toy.git("checkout", "-q", "-b", "side")
    toy.commit(bench(7), "slower")
    toy.commit(bench(7.001), "more")
    toy.toy.git("checkout", "-q", "main")
    toy.toy.git("merge", "-q", "--no-ff", "side", "-m", "merge side")
    merge = toy.toy.git("rev-parse", "HEAD")[:8]
    toy.commit(bench(7.002), "later")
    words = ("bisect", "HEAD~3", "HEAD")
    monkeypatch.setattr("sys.argv", ["kvtrail", *words])
    said = kvtrail(toy.toy, *words)
    assert said.code == 3, said.text
    assert "1 of 3 commits are merges: only first parents are searched" in said.text
    into = ("bisect", fork[:8], f"{merge}^2")
    assert (
        f"It is a merge. Which of the commits that it brought in: kvtrail {' '.join(into[:2])}"
        in (said.text)
    )
    assert "slower" in kvtrail(toy.toy, *into).text
