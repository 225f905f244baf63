"""What git is asked and what it lays out, whatever is in a repository, settings and environment."""

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
from asv_bench.explain.explanation import files_between
from asv_bench.git.repository import Commit, GitError, Repository, commits_on_line
from asv_bench.git.trees import working_tree
from asv_bench.measure.samples import CommitUnusable
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.own_suite import OwnSuite, engine_of

ODD_NAMES = [b"a b.py", b"tab\t.py", b"line\nend.py", 'ä".py'.encode(), b"latin\xfc\\.py", b"-x.py"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with an engine and one commit."""
    root = tmp_path / "project"
    (root / "engine").mkdir(parents=True)
    (root / "engine" / "__init__.py").write_text("STEP = 1\n")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "config", "core.autocrlf", "false")
    step(root, "first")
    return root


def head_of(root: Path) -> str:
    return git(root, "rev-parse", "HEAD").strip()


def step(root: Path, subject: str) -> str:
    """The full hash of one more commit, of all that was changed."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", subject)
    return head_of(root)


def stored(root: Path, kind: str, content: bytes) -> str:
    """The hash of an object of these bytes, whatever git thinks of them."""
    words = ["git", "hash-object", "-t", kind, "-w", "--literally", "--stdin"]
    done = subprocess.run(words, cwd=root, input=content, capture_output=True, check=True)
    return done.stdout.decode().strip()


def laid_out(root: Path, name: str) -> Path:
    suite = OwnSuite(root)
    return engine_of(suite, suite.resolve(name).hash) / "engine"


@pytest.mark.parametrize(
    ("message", "headers", "subject"),
    [
        (b"J\xfcrgen's\n", b"", "J\ufffdrgen's"),
        (b"J\xfcrgen's\n", b"encoding ISO-8859-1\n", "Jürgen's"),
        (b"J\xfcrgen's\n", b"encoding no-such-thing\n", "J\ufffdrgen's"),
        (b"", b"", ""),
        (b"\n\n  first\nsecond \f\xe2\x80\xa8 \n\nbody\n", b"", "first second \ufffd"),
        (b"\x1b[31mred\x07\n", b"", "\ufffd[31mred\ufffd"),
        (b"signed\n", b"gpgsig -----BEGIN\n \n nothing\n -----END\n", "signed"),
    ],
    ids=repr,
)
def test_a_commit_of_any_bytes_is_read_everywhere(
    root: Path, message: bytes, headers: bytes, subject: str
) -> None:
    good = head_of(root)
    git(root, "config", "log.showSignature", "true")
    git(root, "config", "gpg.program", "echo")
    tree = git(root, "rev-parse", "HEAD^{tree}").strip()
    person = b"J\xfcrgen <a@b> 1750000000 +0000\n"
    content = f"tree {tree}\nparent {good}\n".encode()
    content += b"author " + person + b"committer " + person + headers + b"\n" + message
    bad = stored(root, "commit", content)
    git(root, "update-ref", "HEAD", bad)
    [found] = OwnSuite(root).axis.between(good, bad)
    author = "Jürgen" if b"8859" in headers else "J\ufffdrgen"
    assert (found.hash, found.subject, found.author) == (bad, subject, author)
    assert OwnSuite(root).resolve("HEAD") == found
    ordered, _ = commits_on_line({bad: 0, good: 0}, Repository(root))
    assert [one.subject for one in ordered] == ["first", subject]


def test_another_repository_of_the_environment_is_not_asked(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, other = head_of(root), tmp_path / "other"
    git(tmp_path, "init", "--quiet", str(other))
    git(other, "commit", "--quiet", "--allow-empty", "--message", "of another repository")
    for name, value in {
        "GIT_DIR": other / ".git",
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": other / "index",
        "GIT_OBJECT_DIRECTORY": other / ".git" / "objects",
        "GIT_COMMON_DIR": other / ".git",
        "GIT_NAMESPACE": "elsewhere",
        "GIT_PREFIX": "elsewhere/",
        "GIT_LITERAL_PATHSPECS": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    tree = working_tree(root)
    assert (tree.commit, tree.changed) == (head, ())
    assert OwnSuite(root).resolve("HEAD").hash == head
    assert (laid_out(root, ".") / "__init__.py").is_file()


def test_no_repository_one_around_and_one_without_commits_have_none(
    root: Path, tmp_path: Path
) -> None:
    tree = working_tree(tmp_path)
    assert (tree.commit, tree.changed, tree.label) == (None, (), None)
    inner = root / "engine"
    assert working_tree(inner).commit is None
    dates = {"b" * 40: 2, head_of(root): 1, "a" * 40: 2}
    by_date = [Commit(head_of(root)), Commit("a" * 40), Commit("b" * 40)]
    assert commits_on_line(dates, Repository(inner)) == (by_date, 0)
    git(tmp_path, "init", "--quiet")
    assert working_tree(tmp_path).commit is None
    assert commits_on_line(dates, Repository(tmp_path)) == (by_date, 0)


def test_gits_own_sentence_is_passed_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = head_of(root)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    with pytest.raises(Refused, match=r"(?s)dubious ownership.*safe\.directory") as refused:
        OwnSuite(root).resolve("HEAD")
    assert "knows no commit" not in str(refused.value)
    with pytest.raises(GitError, match="dubious ownership"):
        working_tree(root)
    # Trust that is given in the environment counts.
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(root))
    assert OwnSuite(root).resolve("HEAD").hash == head
    (root / ".git" / "index").write_bytes(b"garbage, and much of it")
    for ask in (lambda: working_tree(root), lambda: OwnSuite(root).resolve(".")):
        with pytest.raises(GitError, match="index file"):
            ask()


@pytest.mark.parametrize(
    "setting",
    [
        *("status.showUntrackedFiles=no", "status.relativePaths=true", "status.branch=true"),
        *("core.quotePath=true", "core.fsmonitor={hook}", "core.hooksPath={folder}"),
        *("core.splitIndex=true", "color.ui=always", "safe.bareRepository=explicit"),
        *("status.renames=copies", "core.attributesFile={attributes}"),
    ],
)
def test_settings_of_the_user_change_nothing(
    root: Path, tmp_path: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("watch", "post-checkout", "post-index-change", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch '{tmp_path}/has-run'\n")
        (hooks / name).chmod(0o755)
    (tmp_path / "attributes").write_text("* filter=nothing text eol=crlf\n")
    filled = setting.format(hook=hooks / "watch", folder=hooks, attributes=tmp_path / "attributes")
    key, _, value = filled.partition("=")
    settings = tmp_path / "gitconfig"
    git(root, "config", "--file", str(settings), key, value)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    (root / "engine" / "new.py").write_bytes(b"NEW = 1\r\n")
    files = sorted(path.name for path in (root / ".git").iterdir())
    tree = working_tree(root)
    assert tree.changed == ("engine/new.py",)
    folder = laid_out(root, ".")
    assert (folder / "new.py").read_bytes() == b"NEW = 1\r\n"
    assert (folder / "__init__.py").read_bytes() == b"STEP = 1\n"
    assert sorted(path.name for path in (root / ".git").iterdir()) == files
    assert not (tmp_path / "has-run").exists()


def test_a_touched_file_is_no_change_and_one_of_the_same_length_is(root: Path) -> None:
    file, index = root / "engine" / "__init__.py", root / ".git" / "index"
    os.utime(file, (1, 1))
    before = index.read_bytes()
    assert working_tree(root).changed == ()
    assert index.read_bytes() == before
    file.write_text("STEP = 2\n")
    assert working_tree(root).changed == ("engine/__init__.py",)


def test_tags_may_have_any_name(root: Path) -> None:
    for tag in ("--all", "two\u2028lines", b"latin\xfc".decode(errors="surrogateescape")):
        git(root, "update-ref", f"refs/tags/{tag}", head_of(root))
        assert OwnSuite(root).resolve(f"tags/{tag}").hash == head_of(root)


def test_commits_that_the_repository_lacks_are_left_out(root: Path) -> None:
    head, tree = git(root, "rev-parse", "HEAD", "HEAD^{tree}").split()
    found = Repository(root).commits([head, "a" * 40, tree, "a label", head])
    assert found == {head: Commit(head, "first", found[head].author)}
    assert Repository(root).commits([]) == {}


def test_commits_come_oldest_first_and_what_a_merge_brings_counts_as_the_merge(root: Path) -> None:
    first, good = head_of(root), step(root, "good")
    git(root, "checkout", "--quiet", "-b", "side")
    side = step(root, "on the side")
    git(root, "checkout", "--quiet", "main")
    middle = step(root, "on main")
    git(root, "merge", "--quiet", "--no-ff", "-m", "merge: do | it", "side")
    merge = head_of(root)
    found = OwnSuite(root).axis.between(good, merge)
    assert [(one.hash, one.subject) for one in found] == [
        (middle, "on main"),
        (merge, "merge: do | it"),
    ]
    for ends in ((side, merge), (merge, first), (side, middle), (good, good)):
        with pytest.raises(Refused, match=r"is no ancestor of .* on its line of first parents"):
            OwnSuite(root).axis.between(*ends)
    with pytest.raises(Refused, match=r"only has \d+ entr"):
        OwnSuite(root).resolve("HEAD@{99}")


def test_files_between_a_commit_and_the_working_tree_are_told_whatever_the_path(
    root: Path, tmp_path: Path
) -> None:
    place = root.rename(tmp_path / 'a:"b')
    subject = DeclaredSubject.of_command(place, ["true"])
    (place / "engine" / "__init__.py").write_text("STEP = 2\n")
    between = files_between(head_of(place), subject.resolve(".").hash, subject)
    assert between is not None
    assert between.files == ("engine/__init__.py (+1 -1)",)


@pytest.mark.parametrize(
    "attributes",
    [
        *("export-ignore", "export-subst", "ident", "text eol=crlf", "text eol=lf"),
        *("filter=loud", "working-tree-encoding=UTF-16"),
    ],
)
def test_attributes_change_nothing(root: Path, attributes: str) -> None:
    expected = b"# $Id$ $Format:%H$\r\nSTEP = 1\n"
    (root / "engine" / "__init__.py").write_bytes(expected)
    step(root, "bytes")
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
    commit = step(root, "modes")
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
    step(root, "step")
    assert working_tree(root).changed == ()
    for name in ("HEAD", "."):
        found = {os.fsencode(one.name): one.read_bytes() for one in laid_out(root, name).iterdir()}
        assert found.keys() == {b"__init__.py", *ODD_NAMES}
        assert all(found[odd] == odd for odd in ODD_NAMES)


def test_a_commit_is_not_what_replaces_it(root: Path) -> None:
    commit = head_of(root)
    (root / "engine" / "__init__.py").write_text("STEP = 2\n")
    git(root, "replace", commit, step(root, "step"))
    assert (laid_out(root, commit) / "__init__.py").read_bytes().endswith(b"STEP = 1\n")


@pytest.mark.parametrize("name", ["..", ".git", "out", "x.py"])
def test_nothing_is_written_where_a_path_leads_out(root: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "target").write_text(str(tmp_path / "outside"))
    blob, link = git(root, "hash-object", "-w", "engine/__init__.py", "../target").split()

    def tree(*entries: tuple[str, str, str]) -> str:
        parts = (f"{a} {b}".encode() + b"\0" + bytes.fromhex(c) for a, b, c in entries)
        return stored(root, "tree", b"".join(parts))

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
    step(root, "step")
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
    found = {one.name for one in laid_out(root, ".").iterdir()}
    assert found == {"__init__.py", "table.toml"}


def test_a_checkout_that_no_search_path_can_hold_is_refused(tmp_path: Path) -> None:
    root = tmp_path / f"a{os.pathsep}b"
    with pytest.raises(Refused, match="separates the entries of Python's search path"):
        OwnSuite(root)
    assert not root.exists()
