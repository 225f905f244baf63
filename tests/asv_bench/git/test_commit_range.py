"""The commits of a range: order, merges, and ends that do not belong together."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from asv_bench.errors import Refused
from asv_bench.git.commit_range import commits_between


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(directory: Path, subject: str) -> str:
    git(directory, "commit", "--quiet", "--allow-empty", "-m", subject)
    return git(directory, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    return tmp_path


def test_commits_come_oldest_first_without_the_good_one(repository: Path) -> None:
    hashes = [commit(repository, f"step {number}: do | it") for number in range(4)]
    found = commits_between(hashes[0], hashes[3], repository)
    assert [entry.hash for entry in found] == hashes[1:]
    assert [entry.subject for entry in found] == [f"step {n}: do | it" for n in (1, 2, 3)]
    assert {entry.author for entry in found} == {"Ada"}


@pytest.mark.parametrize("separator", ["\f", "\r", "\x1e", "\u2028"], ids=ascii)
def test_a_subject_may_hold_any_character(repository: Path, separator: str) -> None:
    good, bad = (commit(repository, f"one{separator}{number} two") for number in (1, 2))
    [found] = commits_between(good, bad, repository)
    assert found.hash == bad
    assert "2 two" in found.subject


def test_what_a_merge_brings_counts_as_the_merge(repository: Path) -> None:
    good = commit(repository, "good")
    git(repository, "checkout", "--quiet", "-b", "side")
    side = commit(repository, "on the side")
    git(repository, "checkout", "--quiet", "main")
    middle = commit(repository, "on main")
    git(repository, "merge", "--quiet", "--no-ff", "-m", "merge the side", "side")
    merge = git(repository, "rev-parse", "HEAD")
    assert [entry.hash for entry in commits_between(good, merge, repository)] == [middle, merge]
    with pytest.raises(Refused, match=r"came into .* by a merge"):
        commits_between(side, merge, repository)


def test_ends_in_the_wrong_order_are_refused_with_a_hint(repository: Path) -> None:
    older, newer = commit(repository, "older"), commit(repository, "newer")
    with pytest.raises(Refused, match="wrong way round"):
        commits_between(newer, older, repository)


def test_ends_on_different_branches_are_refused(repository: Path) -> None:
    commit(repository, "root")
    git(repository, "checkout", "--quiet", "-b", "side")
    side = commit(repository, "on the side")
    git(repository, "checkout", "--quiet", "main")
    main = commit(repository, "on main")
    with pytest.raises(Refused, match="is no ancestor of") as refusal:
        commits_between(side, main, repository)
    assert "wrong way round" not in str(refusal.value)


def test_the_same_commit_twice_is_refused(repository: Path) -> None:
    only = commit(repository, "only")
    with pytest.raises(Refused, match="both the good and the bad"):
        commits_between(only, only, repository)
