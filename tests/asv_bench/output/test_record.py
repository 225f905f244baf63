"""Records: what they hold, and that nobody ever reads half of one."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from asv_bench.git.working_tree import WorkingTree, working_tree
from asv_bench.output.record import (
    REPOSITORY,
    RUNS,
    Record,
    finite,
    without_folders,
    write_json,
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    (repository / "kept.py").write_text("1\n")
    (repository / ".gitignore").write_text("ignored/\n")
    git(repository, "add", ".")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    return repository


def git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_clean_tree(repository: Path) -> None:
    (repository / "ignored").mkdir()
    (repository / "ignored" / "run.json").write_text("{}")
    tree = working_tree(repository)
    assert tree.commit == git(repository, "rev-parse", "HEAD")
    assert not tree.dirty
    assert tree.label == tree.commit


def test_a_changed_tree_names_what_changed(repository: Path) -> None:
    (repository / "kept.py").write_text("2\n")
    (repository / "new file.py").write_text("3\n")
    tree = working_tree(repository)
    assert tree.dirty
    assert set(tree.changed) == {"kept.py", "new file.py"}
    assert tree.label == f"{tree.commit}-dirty"


def test_outside_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    tree = working_tree(tmp_path)
    assert (tree.commit, tree.dirty, tree.label) == (None, False, None)


def test_a_record_holds_where_its_figures_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["asv_bench", "scheduler", "--seed", "3"])
    record = Record("scheduler", {"seed": 3}, tree=WorkingTree("abc", ("x.py",)))
    record.samples.append({"wall_s": 1.5, "odd": float("nan")})
    record.results["step_ms"] = 2.0
    record.notes.append("A note.")
    path = record.write(tmp_path / "deep" / "run.json")
    content = json.loads(path.read_text())
    assert content["command"] == "scheduler"
    assert content["argv"] == ["scheduler", "--seed", "3"]
    assert (content["commit"], content["dirty"], content["changed"]) == ("abc", True, ["x.py"])
    assert content["machine"]["python"] == sys.version.split()[0]
    assert set(content["gpu_state"]) == {"before", "after"}
    assert content["settings"] == {"seed": 3}
    assert content["samples"] == [{"wall_s": 1.5, "odd": None}]
    assert content["results"] == {"step_ms": 2.0}
    assert content["notes"] == ["A note."]
    assert content["started"].endswith("+00:00")


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        ("--json=reports/runs/a.json", "--json=reports/runs/a.json"),
        (f"{REPOSITORY}/reports/a.json", "reports/a.json"),
        ("/home/somebody/a.json", "a.json"),
        ("--json=/home/somebody/a.json", "--json=a.json"),
        ("HEAD~3..HEAD", "HEAD~3..HEAD"),
        ("Scheduler.*'gpt2'", "Scheduler.*'gpt2'"),
    ],
)
def test_a_record_names_no_folders_of_the_machine(argument: str, kept: str) -> None:
    assert without_folders(argument) == kept


def test_by_default_records_go_where_git_ignores_them() -> None:
    path = Record("streaming", {}).default_path()
    assert path.parent == RUNS
    assert path.name.startswith("streaming-")
    assert path.suffix == ".json"


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"old": True})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    assert json.loads(path.read_text()) == {"old": True}
    assert list(tmp_path.iterdir()) == [path]


def test_records_are_as_readable_as_other_files(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    write_json(tmp_path / "run.json", {})
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == stat.S_IMODE(
        plain.stat().st_mode
    )


def test_what_is_not_finite_becomes_null() -> None:
    assert finite({"a": [1.0, float("inf")], "b": (float("nan"), "nan"), "c": {"d": 2}}) == {
        "a": [1.0, None],
        "b": [None, "nan"],
        "c": {"d": 2},
    }


def test_what_a_command_wrote_itself_makes_no_tree_dirty(tmp_path: Path) -> None:
    own, other = "reports/headline.json", "engine/x.py"
    tree = WorkingTree("abc", (own, other))
    assert tree.apart_from(REPOSITORY, REPOSITORY / own, tmp_path / "elsewhere.json").changed == (
        other,
    )
    assert WorkingTree("abc", (own,)).apart_from(REPOSITORY, REPOSITORY / own).label == "abc"
    assert tree.apart_from(REPOSITORY, REPOSITORY / own).label == "abc-dirty"
