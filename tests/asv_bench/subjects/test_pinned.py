"""Pinned files are the working tree's at every commit, and nothing else is written over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from declared_repository import DeclaredRepository, along

from asv_bench.errors import Refused
from asv_bench.fleet.host import Host, Packed
from asv_bench.measure.samples import CommitUnusable
from asv_bench.subjects.choose import declared_by

TABLES = """
    [subject]
    name = "toy"
    measure = '''{}'''
    pinned = {}
    """
Live = Callable[[DeclaredRepository, str], object]


def lives_on_a_host(made: DeclaredRepository, word: str) -> None:
    """One life, as on a host of a fleet."""
    subject = made.subject
    commit = subject.resolve(word).hash
    host = Host()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", None)
        commits = Packed.of(subject, [commit])
        host.begin(subject.work, subject.pinned, commits, 1, "here", lambda *_: ())
    if error := host.measure("prepare", 0, False, commit).error:
        raise error


WAYS = (DeclaredRepository.prepared, lives_on_a_host)
IN_BOTH_WAYS = pytest.mark.parametrize("live", WAYS)


@pytest.fixture
def made(tmp_path: Path) -> DeclaredRepository:
    """A repository beside a folder of files that no life may change."""
    (tmp_path / "outside" / "sub").mkdir(parents=True)
    (tmp_path / "outside" / "sub" / "old.txt").write_text("old")
    return DeclaredRepository.make(tmp_path / "toy", "", "committed")


@IN_BOTH_WAYS
@pytest.mark.parametrize(
    ("link", "target", "pinned"),
    [
        ("b", "{outside}", "b/sub"),
        ("b", "../../../outside", "b/sub/new.txt"),
        ("b", "lib", "b/sub"),
        ("b/sub", "../lib/sub", "b/sub"),
        ("b", "{outside}/sub/old.txt", "b"),
        ("b", None, "b/sub"),
        ("b", "b", "b/sub"),
    ],
)
def test_nothing_is_written_through_a_link_of_the_commit(
    made: DeclaredRepository, live: Live, link: str, target: str | None, pinned: str
) -> None:
    outside = made.root.with_name("outside")
    made.change("a file", {"lib/sub/old.txt": "old", link: "a file"})
    if target is not None:
        (made.root / link).unlink()
        (made.root / link).symlink_to(target.format(outside=outside))
        made.git("commit", "-qam", "a link")
    (made.root / link).unlink()
    name = Path(pinned if pinned.endswith(".txt") else f"{pinned}/new.txt")
    (made.root / name).parent.mkdir(parents=True, exist_ok=True)
    (made.root / name).write_text("new")
    real = " && ".join(f"! test -L {way}" for way in [name, *list(name.parents)[:-1]])
    measure = f'test "$(cat {name})" = new && test "$(cat lib/sub/old.txt)" = old && {real}'
    made.declare(TABLES.format(measure, [pinned]))
    live(made, "HEAD")
    assert [path for path in outside.rglob("*") if path.is_file()] == [outside / "sub" / "old.txt"]
    assert (outside / "sub" / "old.txt").read_text() == "old"


@IN_BOTH_WAYS
def test_what_links_of_the_working_tree_lead_to_is_pinned(
    made: DeclaredRepository, live: Live
) -> None:
    outside = made.root.with_name("outside")
    (outside / "data.txt").write_text("data")
    (outside / "empty").mkdir()
    (outside / "other").symlink_to("data.txt")
    (outside / "gone").symlink_to("/no/such/place")
    (made.root / "bench.py").unlink()
    (made.root / "bench.py").symlink_to(outside / "data.txt")
    (made.root / "folder").symlink_to(outside)
    measure = (
        "mv $KVTRAIL_SUBJECT/../outside $KVTRAIL_SUBJECT/../moved; test $(cat bench.py) = data && "
        "test $(cat folder/data.txt) = data && test $(readlink folder/other) = data.txt && "
        "test -d folder/empty && test $(readlink folder/gone) = /no/such/place"
    )
    made.declare(TABLES.format(measure, ["bench.py", "folder"]))
    first = made.subject.fixed
    live(made, "HEAD")
    shutil.move(outside.with_name("moved"), outside)
    (outside / "data.txt").write_text("edited")
    assert made.subject.fixed != first


@IN_BOTH_WAYS
@pytest.mark.parametrize("path", ["gone.py", "bench.py/x", "circle", "dangling", "x" * 300, "pipe"])
def test_a_pinned_path_that_is_not_there_is_a_sentence(
    made: DeclaredRepository, live: Live, path: str
) -> None:
    (made.root / "circle").symlink_to("circle")
    (made.root / "dangling").symlink_to("nowhere")
    os.mkfifo(made.root / "pipe")
    made.declare(TABLES.format("true", [path]))
    with pytest.raises(Refused, match=f"{path}.* (cannot be read|is neither a file nor)"):
        live(made, "HEAD")


def test_pinned_paths_are_the_same_however_they_are_written(made: DeclaredRepository) -> None:
    names = ("w", "d/one", "d/two", "[x]")
    commits = [made.change(text, dict.fromkeys(names, text)) for text in ("1", "2")]
    made.declare(TABLES.format("true", ["./w", "d//", "d/./one", "d", "./[x]"]))
    assert made.subject.are_same(*commits)


def test_a_subject_in_a_folder_of_its_repository(made: DeclaredRepository, tmp_path: Path) -> None:
    texts = {"life.sh": "test -f bench.py", "speed/life.sh": "test -f here", "speed/here": ""}
    made.change("with the folder", texts)
    (made.root / "speed" / "life.sh").write_text("test -f here && test -f ../bench.py && echo now")
    measure = 'sh life.sh | grep now && test "$PWD" = "$KVTRAIL_TREE/speed"'
    tables = TABLES.format(measure, ["./life.sh"]).replace('"toy"', '"toy"\nrepository = "speed"')
    for labels in ("", along("a", "b")):
        made.declare(tables + labels)
        for live in WAYS:
            live(made, "a" if labels else "HEAD")
    # So does a file that lies in the folder.
    inner = made.root / "speed" / "kvtrail.toml"
    inner.write_text(dedent(TABLES.format(measure, ["./life.sh"])))
    subject = declared_by(inner)
    with subject.pairs() as source:
        assert source.prepare(subject.resolve("HEAD").hash) == {}
    inner.unlink()
    made.declare(tables.replace("['./life.sh']", "[]"))
    assert made.subject.to_json()["folder"] == "speed"
    with pytest.raises(CommitUnusable, match="it has no folder speed") as caught:
        made.prepared("HEAD~1")
    assert caught.value.is_lacking
    # A link out of the commit's files is no folder of them.
    shutil.rmtree(made.root / "speed")
    (made.root / "speed").symlink_to(tmp_path / "outside")
    made.git("add", "speed")
    made.change("a link", {"bench.py": ""})
    (made.root / "speed").unlink()
    (made.root / "speed").mkdir()
    with pytest.raises(CommitUnusable, match="it has no folder speed"):
        made.prepared()
