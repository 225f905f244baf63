"""kvtrail's own benchmarks: what of a commit is measured, which benchmarks, and where.

Commits are unpacked from any kind of checkout, whole or not at all, and nothing else is touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy_project import ToyProject, git, make_project

from asv_bench.errors import Refused
from asv_bench.git import trees
from asv_bench.measure.samples import CommitUnusable
from asv_bench.subjects import own_suite
from asv_bench.subjects.own_suite import OwnSuite


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ToyProject:
    return make_project(tmp_path_factory.mktemp("toy") / "project", commits=3, measures=False)


@pytest.fixture
def toy(original: ToyProject, tmp_path: Path) -> ToyProject:
    shutil.copytree(original.root, tmp_path / "project")
    return ToyProject(tmp_path / "project", list(original.commits))


def engine_of(directory: Path) -> str:
    return (directory / "engine" / "__init__.py").read_text()


def state_of(root: Path) -> tuple[str, ...]:
    """Everything of a repository that belongs to its user."""
    commands = (
        *("status --porcelain --untracked-files=all --ignored=no", "for-each-ref", "stash list"),
        *("worktree list", "config --local --list", "reflog", "count-objects -v"),
    )
    said = [git(root, *command.split()) for command in commands]
    index = root / ".git" / "index"
    return (*said, index.read_bytes().hex() if index.is_file() else "")


def test_a_commit_is_found_by_every_kind_of_name(toy: ToyProject) -> None:
    first, second, third = toy.commits
    toy.git("tag", "v1", first)
    toy.git("tag", "--annotate", "--message", "a tag with an object of its own", "v2", second)
    toy.git("branch", "topic", second)
    suite = OwnSuite(toy.root)
    names = {"HEAD": third, "HEAD~2": first, "v1": first, "v2": second, "topic": second}
    names |= {"main^": second, first: first, first[:9]: first}
    assert {name: suite.resolve(name).hash for name in names} == names
    assert suite.resolve("v1").subject == "step 1 <b>"


@pytest.mark.parametrize("name", ["nowhere", "HEAD~99", "f" * 40, "--all", "", "HEAD:engine"])
def test_a_name_of_no_commit_is_refused(original: ToyProject, name: str) -> None:
    with pytest.raises(Refused, match=r"names no commit|no commit called"):
        OwnSuite(original.root).resolve(name)


def test_a_shallow_repository_says_that_it_may_lack_the_commit(
    toy: ToyProject, tmp_path: Path
) -> None:
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", toy.root.as_uri(), str(shallow))
    with pytest.raises(Refused, match=r"no commit called 'HEAD~1'.*git fetch --unshallow"):
        OwnSuite(shallow).resolve("HEAD~1")
    with pytest.raises(Refused) as refused:
        OwnSuite(toy.root).resolve("nowhere")
    assert "--unshallow" not in str(refused.value)


def test_the_repository_is_left_as_it_was(toy: ToyProject) -> None:
    toy.set_engine(7)
    toy.git("stash")
    toy.set_engine(8)
    toy.git("add", "--all")
    toy.set_engine(9)
    (toy.root / "untracked").write_text("")
    before = state_of(toy.root)
    suite = OwnSuite(toy.root)
    for name in ("HEAD~2", "HEAD~1", "HEAD", "."):
        suite.folder_of(suite.resolve(name).hash)
    assert state_of(toy.root) == before


def test_the_working_tree_is_unpacked_as_it_stands(toy: ToyProject) -> None:
    toy.set_engine(99)
    suite = OwnSuite(toy.root)
    tree = suite.resolve(".")
    assert tree.hash not in toy.commits
    toy.set_engine(100)
    other = suite.resolve(".")
    assert engine_of(suite.folder_of(tree.hash)) == "STEP = 99\n"
    assert engine_of(suite.folder_of(other.hash)) == "STEP = 100\n"


def test_a_linked_worktree_and_an_offline_clone_do(toy: ToyProject, tmp_path: Path) -> None:
    toy.git("worktree", "add", "--quiet", "-b", "topic", str(tmp_path / "linked"), "HEAD~1")
    bundle = tmp_path / "history.bundle"
    toy.git("bundle", "create", "--quiet", str(bundle), "HEAD")
    git(tmp_path, "clone", "--quiet", str(bundle), str(tmp_path / "clone"))
    for root, expected in ((tmp_path / "linked", "STEP = 2\n"), (tmp_path / "clone", "STEP = 3\n")):
        before = git(root, "status", "--porcelain"), git(root, "worktree", "list")
        suite = OwnSuite(root)
        assert engine_of(suite.folder_of(suite.resolve("HEAD").hash)) == expected
        assert (git(root, "status", "--porcelain"), git(root, "worktree", "list")) == before
        assert (root / ".asv" / "verdicts").is_dir()


def test_a_commit_is_laid_out_once_and_again_where_it_is_half_made(toy: ToyProject) -> None:
    suite = OwnSuite(toy.root)
    directory = suite.folder_of(toy.commits[0])
    assert sorted(path.name for path in directory.iterdir()) == ["COMMIT", "engine", "kernels"]
    assert (directory / "COMMIT").read_text() == toy.commits[0] + "\n"
    assert directory == toy.root / ".asv" / "verdicts" / "commits" / toy.commits[0]
    (directory / "engine" / "mark").write_text("kept")
    assert (suite.folder_of(toy.commits[0]) / "engine" / "mark").is_file()
    shutil.rmtree(directory)
    (directory / "engine").mkdir(parents=True)
    assert engine_of(suite.folder_of(toy.commits[0])) == "STEP = 1\n"


def test_a_commit_without_an_engine_or_that_git_lacks_is_unusable(toy: ToyProject) -> None:
    toy.git("rm", "--quiet", "-r", "engine", "kernels")
    commit = toy.commit("nothing to measure")
    for name, said in (
        (commit, "has none of engine, kernels"),
        ("f" * 40, "git could not unpack it"),
    ):
        with pytest.raises(CommitUnusable, match=said) as caught:
            OwnSuite(toy.root).folder_of(name)
        assert caught.value.is_lacking == (name == commit)


def test_commits_are_the_same_where_engine_and_kernels_are(toy: ToyProject) -> None:
    (toy.root / "README.md").write_text("only this is new\n")
    documented = toy.commit("document it")
    suite = OwnSuite(toy.root)
    assert suite.are_same(toy.commits[2], documented)
    assert suite.are_same(documented, suite.resolve(".").hash)
    assert not suite.are_same(toy.commits[1], documented)
    (toy.root / "engine" / "__init__.py").chmod(0o755)
    assert not suite.are_same(documented, suite.resolve(".").hash)
    (toy.root / "engine" / "__init__.py").chmod(0o644)
    (toy.root / "kernels" / "new.py").write_text("")
    assert not suite.are_same(documented, suite.resolve(".").hash)
    toy.git("rm", "--quiet", "-r", "engine", "kernels/__init__.py")
    (toy.root / "kernels" / "new.py").unlink()
    lacking = toy.commit("nothing to measure")
    assert not suite.are_same(lacking, lacking)


def test_an_interrupted_unpacking_leaves_nothing(
    toy: ToyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    suite = OwnSuite(toy.root)
    monkeypatch.setattr(trees, "_exact", interrupt)
    with pytest.raises(KeyboardInterrupt):
        suite.folder_of(toy.commits[0])
    assert not list((toy.root / ".asv" / "verdicts" / "commits").iterdir())
    monkeypatch.undo()
    assert engine_of(suite.folder_of(toy.commits[0])) == "STEP = 1\n"


def test_two_processes_may_unpack_the_same_commit(toy: ToyProject) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from asv_bench.subjects.own_suite import OwnSuite\n"
        f"OwnSuite(Path({str(toy.root)!r})).folder_of({toy.commits[0]!r})\n"
    )
    root = Path(own_suite.__file__).parents[2]
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(root)})
        for _ in range(3)
    ]
    assert [process.wait() for process in started] == [0, 0, 0]
    folder = toy.root / ".asv" / "verdicts" / "commits"
    assert [path.name for path in folder.iterdir()] == [toy.commits[0]]


def test_the_least_lately_used_are_forgotten(
    toy: ToyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_KEPT_FOLDERS", 2)
    suite = OwnSuite(toy.root)
    folder = toy.root / ".asv" / "verdicts" / "commits"
    first, second = (suite.folder_of(commit) for commit in toy.commits[:2])
    for moment, path in ((1000, first), (2000, second)):
        os.utime(path, (moment, moment))
    suite.folder_of(toy.commits[0])
    stale = folder / ".partial-old"
    stale.mkdir()
    os.utime(stale, (1000, 1000))
    (folder / ".partial-new").mkdir()
    suite.folder_of(toy.commits[2])
    kept = {toy.commits[0], toy.commits[2], ".partial-new"}
    assert {path.name for path in folder.iterdir()} == kept
