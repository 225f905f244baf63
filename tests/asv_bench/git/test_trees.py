"""A commit, and the working tree, are laid out as they are, whatever git would make of them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from toy_project import git

from asv_bench.errors import Refused
from asv_bench.git.trees import working_tree
from asv_bench.measure.samples import CommitUnusable
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.own_suite import OwnSuite, engine_of

ODD_NAMES = [b"a b.py", b"tab\t.py", b"line\nend.py", 'ä".py'.encode(), b"latin\xfc\\.py", b"-x.py"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "engine").mkdir(parents=True)
    (root / "engine" / "__init__.py").write_bytes(b"# $Id$ $Format:%H$\r\nSTEP = 1\n")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "config", "core.autocrlf", "false")
    committed(root)
    return root


def committed(root: Path) -> str:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "step")
    return git(root, "rev-parse", "HEAD").strip()


def laid_out(root: Path, name: str) -> Path:
    suite = OwnSuite(root)
    return engine_of(suite, suite.resolve(name).hash) / "engine"


@pytest.mark.parametrize(
    "attributes",
    [
        *("export-ignore", "export-subst", "ident", "text eol=crlf", "text eol=lf"),
        *("filter=loud", "working-tree-encoding=UTF-16"),
    ],
)
def test_attributes_change_nothing(root: Path, attributes: str) -> None:
    expected = (root / "engine" / "__init__.py").read_bytes()
    (root / ".gitattributes").write_text(f"engine/*.py {attributes}\n")
    (root / ".git" / "info" / "attributes").write_text(f"engine/*.py {attributes}\n")
    git(root, "add", ".gitattributes")
    git(root, "commit", "--quiet", "--message", "attributes")
    git(root, "config", "filter.loud.smudge", "tr a-z A-Z")
    git(root, "config", "filter.loud.clean", "tr a-z A-Z")
    git(root, "config", "core.autocrlf", "true")
    for name in ("HEAD", "."):
        assert (laid_out(root, name) / "__init__.py").read_bytes() == expected


def test_modes_links_and_submodules_are_kept(root: Path, tmp_path: Path) -> None:
    engine, inner = root / "engine", tmp_path / "inner"
    (engine / "run.sh").write_text("#!/bin/sh\n")
    (engine / "run.sh").chmod(0o755)
    (engine / "sub").mkdir()
    (engine / "sub" / "link.py").symlink_to("../__init__.py")
    (engine / "absolute").symlink_to("/etc/hostname")
    (root / "kernels").symlink_to("engine/sub")
    git(tmp_path, "init", "--quiet", str(inner))
    git(inner, "commit", "--quiet", "--allow-empty", "--message", "inner")
    git(root, "-c", "protocol.file.allow=always", "submodule", "add", str(inner), "engine/third")
    commit = committed(root)
    # A submodule that is not checked out is no change.
    git(root, "submodule", "deinit", "--force", "engine/third")
    suite = OwnSuite(root)
    assert suite.are_same(commit, suite.resolve(".").hash)
    (engine / "untracked.sh").write_text("")
    (engine / "untracked.sh").chmod(0o700)
    for name in ("HEAD", "."):
        found = laid_out(root, name)
        assert stat.S_IMODE((found / "run.sh").stat().st_mode) & 0o111
        assert not stat.S_IMODE((found / "__init__.py").stat().st_mode) & 0o111
        assert (found / "sub" / "link.py").readlink() == Path("../__init__.py")
        assert (found / "absolute").readlink() == Path("/etc/hostname")
        assert (found.parent / "kernels" / "link.py").read_bytes().endswith(b"STEP = 1\n")
        assert list((found / "third").iterdir()) == []
    assert stat.S_IMODE((found / "untracked.sh").stat().st_mode) & 0o111


def test_names_of_any_bytes_are_kept(root: Path) -> None:
    engine = os.fsencode(root / "engine")
    for name in ODD_NAMES:
        Path(os.fsdecode(engine + b"/" + name)).write_bytes(name)
    tree = working_tree(root)
    assert {os.fsencode(path) for path in tree.changed} == {b"engine/" + name for name in ODD_NAMES}
    git(root, "config", "core.autocrlf", "false")
    committed(root)
    assert working_tree(root).changed == ()
    for name in ("HEAD", "."):
        found = {os.fsencode(one.name): one.read_bytes() for one in laid_out(root, name).iterdir()}
        assert found.keys() == {b"__init__.py", *ODD_NAMES}
        assert all(found[odd] == odd for odd in ODD_NAMES)


def test_a_commit_is_not_what_replaces_it(root: Path) -> None:
    commit = git(root, "rev-parse", "HEAD").strip()
    (root / "engine" / "__init__.py").write_text("STEP = 2\n")
    git(root, "replace", commit, committed(root))
    assert (laid_out(root, commit) / "__init__.py").read_bytes().endswith(b"STEP = 1\n")


@pytest.mark.parametrize("name", ["..", ".git", "out", "x.py"])
def test_nothing_is_written_where_a_path_leads_out(root: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "target").write_text(str(tmp_path / "outside"))
    blob, link = git(root, "hash-object", "-w", "engine/__init__.py", "../target").split()

    def tree(*entries: tuple[str, str, str]) -> str:
        made = subprocess.run(
            ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"],
            cwd=root,
            input=b"".join(f"{a} {b}".encode() + b"\0" + bytes.fromhex(c) for a, b, c in entries),
            capture_output=True,
            check=True,
        )
        return made.stdout.decode().strip()

    file = ("100644", "x.py", blob)
    links = [("120000", one, link) for one in ("out", "x.py")]
    inner = tree(*links, ("40000", name, tree(file)), file)
    commit = git(root, "commit-tree", tree(("40000", "engine", inner)), "-m", "out").strip()
    # Git decides itself what it refuses.
    with pytest.raises(CommitUnusable, match="invalid path") if name[0] == "." else nullcontext():
        engine_of(OwnSuite(root), commit)
    with suppress(CommitUnusable), DeclaredSubject.of_command(root, ["true"]).pairs() as source:
        source.prepare(commit)
    assert all(commit in path.parts for path in root.rglob("x.py"))
    assert not list((tmp_path / "outside").iterdir())


def test_files_behind_a_link_that_replaced_their_folder_are_gone(root: Path) -> None:
    for place in ("engine/sub", "other"):
        (root / place).mkdir()
        (root / place / "x.py").write_text(place)
    committed(root)
    shutil.rmtree(root / "engine" / "sub")
    (root / "engine" / "sub").symlink_to("../other")
    found = laid_out(root, ".")
    assert sorted(path.name for path in found.iterdir()) == ["__init__.py", "sub"]
    assert (found / "sub").readlink() == Path("../other")


def test_a_file_that_is_tracked_though_ignored_is_in_a_snapshot(root: Path) -> None:
    (root / ".gitignore").write_text("*.toml\nleft_out.py\n.asv/\n")
    (root / "engine" / "table.toml").write_text("")
    (root / "engine" / "left_out.py").write_text("")
    git(root, "add", "--force", "engine/table.toml")
    assert sorted(one.name for one in laid_out(root, ".").iterdir()) == [
        "__init__.py",
        "table.toml",
    ]


def test_a_checkout_that_no_search_path_can_hold_is_refused(tmp_path: Path) -> None:
    root = tmp_path / f"a{os.pathsep}b"
    with pytest.raises(Refused, match="separates the entries of Python's search path"):
        OwnSuite(root)
    assert not root.exists()
