"""The commits of a range: order, merges, and ends that do not belong together."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from asv_bench.errors import Refused
from asv_bench.git.commits import commits_between
from asv_bench.git.repository import Repository


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
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    return tmp_path


def test_commits_come_oldest_first_without_the_good_one(root: Path) -> None:
    hashes = [commit(root, f"step {number}: do | it") for number in range(4)]
    found = commits_between(hashes[0], hashes[3], Repository(root))
    assert [entry.hash for entry in found] == hashes[1:]
    assert [entry.subject for entry in found] == [f"step {n}: do | it" for n in (1, 2, 3)]
    assert {entry.author for entry in found} == {"Ada"}


@pytest.mark.parametrize("separator", ["\f", "\r", "\x1e", "\u2028"], ids=ascii)
def test_a_subject_may_hold_any_character(root: Path, separator: str) -> None:
    good, bad = (commit(root, f"one{separator}{number} two") for number in (1, 2))
    [found] = commits_between(good, bad, Repository(root))
    assert found.hash == bad
    assert "2 two" in found.subject


def test_what_a_merge_brings_counts_as_the_merge(root: Path) -> None:
    good = commit(root, "good")
    git(root, "checkout", "--quiet", "-b", "side")
    side = commit(root, "on the side")
    git(root, "checkout", "--quiet", "main")
    middle = commit(root, "on main")
    git(root, "merge", "--quiet", "--no-ff", "-m", "merge the side", "side")
    merge = git(root, "rev-parse", "HEAD")
    assert [entry.hash for entry in commits_between(good, merge, Repository(root))] == [
        middle,
        merge,
    ]
    with pytest.raises(Refused, match=r"came into .* by a merge"):
        commits_between(side, merge, Repository(root))


def test_ends_in_the_wrong_order_are_refused_with_a_hint(root: Path) -> None:
    older, newer = commit(root, "older"), commit(root, "newer")
    with pytest.raises(Refused, match="wrong way round"):
        commits_between(newer, older, Repository(root))


def test_ends_on_different_branches_are_refused(root: Path) -> None:
    commit(root, "root")
    git(root, "checkout", "--quiet", "-b", "side")
    side = commit(root, "on the side")
    git(root, "checkout", "--quiet", "main")
    main = commit(root, "on main")
    with pytest.raises(Refused, match="is no ancestor of") as refusal:
        commits_between(side, main, Repository(root))
    assert "wrong way round" not in str(refusal.value)


def test_the_same_commit_twice_is_refused(root: Path) -> None:
    only = commit(root, "only")
    with pytest.raises(Refused, match="both the good and the bad"):
        commits_between(only, only, Repository(root))
