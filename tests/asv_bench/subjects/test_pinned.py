"""Pinned files are the working tree's at every commit, and nothing else is written over."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository

from asv_bench.errors import Refused
from asv_bench.fleet.host import Host, Order
from asv_bench.measure.samples import CommitUnusable
from asv_bench.subjects.choose import declared_by
from asv_bench.subjects.declared import DeclaredSubject

TABLES = """
    [subject]
    name = "toy"
    measure = '''{measure}'''
    pinned = {pinned}
    """


def lives_here(subject: DeclaredSubject, commit: str) -> None:
    """One life, on this machine."""
    with subject.pairs() as source:
        source.prepare(commit)


def lives_on_a_host(subject: DeclaredSubject, commit: str) -> None:
    """One life, as on a host of a fleet."""
    host = Host()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", None)
        host.begin(Order.of(subject, [commit]), 1, "here", lambda *_: ())
    if error := host.measure("prepare", 0, False, commit).error:
        raise error


WAYS = pytest.mark.parametrize("live", [lives_here, lives_on_a_host])


def files(folder: Path) -> dict[str, str]:
    """Names and texts of all files below a folder."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.*")}


def declared(made: DeclaredRepository, measure: str, *pinned: str) -> DeclaredSubject:
    """The subject with these pinned paths."""
    path = made.root / "kvtrail.toml"
    path.write_text(TABLES.format(measure=measure, pinned=list(pinned)))
    return declared_by(path)


@WAYS
@pytest.mark.parametrize(
    ("link", "target", "pinned"),
    [
        ("b", "{outside}", "b/sub"),
        ("b", "../../../outside", "b/sub/new.txt"),
        ("b", "lib", "b/sub"),
        ("b/sub", "{outside}/sub", "b/sub/deep"),
        ("b/sub", "../lib/sub", "b/sub"),
        ("b", "{outside}/sub/old.txt", "b"),
        ("b", "lib/sub/old.txt", "b"),
        ("b", None, "b/sub"),
        ("b", "b", "b/sub"),
    ],
)
def test_nothing_is_written_through_a_link_of_the_commit(
    tmp_path: Path, live, link: str, target: str | None, pinned: str
) -> None:
    outside = tmp_path / "outside"
    made = DeclaredRepository.make(tmp_path / "toy", "")
    for folder in (outside, made.root / "lib"):
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "old.txt").write_text("old")
    (made.root / link).parent.mkdir(exist_ok=True)
    if target is None:
        (made.root / link).write_text("a file")
    else:
        (made.root / link).symlink_to(target.format(outside=outside))
    made.toy.git("add", "--all")
    commit = made.commit("", "with a link")
    before = files(outside)
    (made.root / link).unlink()
    place = made.root / pinned
    place = place if "." in place.name else place / "new.txt"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("new")
    name = place.relative_to(made.root)
    ways = [name, *list(name.parents)[:-1]]
    real = " && ".join(f"! test -L {way}" for way in ways)
    measure = f'test "$(cat {name})" = new && test "$(cat lib/sub/old.txt)" = old && {real}'
    live(declared(made, measure, pinned), commit)
    assert files(outside) == before


@WAYS
def test_what_links_of_the_working_tree_lead_to_is_pinned(tmp_path: Path, live) -> None:
    made = DeclaredRepository.make(tmp_path / "toy", "", "committed")
    outside = tmp_path / "outside"
    outside.mkdir()
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
    subject = declared(made, measure, "bench.py", "folder")
    first = subject.fixed
    live(subject, made.toy.git("rev-parse", "HEAD"))
    shutil.move(tmp_path / "moved", outside)
    (outside / "data.txt").write_text("edited")
    assert declared(made, measure, "bench.py", "folder").fixed != first


@WAYS
@pytest.mark.parametrize("path", ["gone.py", "bench.py/x", "circle", "dangling", "x" * 300, "pipe"])
def test_a_pinned_path_that_is_not_there_is_a_sentence(tmp_path: Path, live, path: str) -> None:
    made = DeclaredRepository.make(tmp_path / "toy", "", "")
    (made.root / "circle").symlink_to("circle")
    (made.root / "dangling").symlink_to("nowhere")
    os.mkfifo(made.root / "pipe")
    with pytest.raises(Refused, match=f"{path}.* (cannot be read|is neither a file nor)"):
        live(declared(made, "true", path), made.toy.git("rev-parse", "HEAD"))


def test_pinned_paths_are_the_same_however_they_are_written(kvtrail, tmp_path: Path) -> None:
    made = DeclaredRepository.make(tmp_path / "toy", "", "1")
    for text in ("1", "2"):
        for name in ("w", "d/one", "d/two", "[x]"):
            (made.root / name).parent.mkdir(exist_ok=True)
            (made.root / name).write_text(text)
        made.toy.git("add", "--all")
        made.commit("1", text)
    declared(made, "true", "./w", "d//", "d/./one", "d", "./[x]")
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD")
    assert said.verdicts == {"wall_s": "same"}, said.text


def test_a_subject_in_a_folder_of_its_repository(declared) -> None:
    made = declared("", "")
    without = made.toy.git("rev-parse", "HEAD")
    folder = made.root / "tools" / "speed"
    folder.mkdir(parents=True)
    for place in (made.root, folder):
        (place / "life.sh").write_text(f"test -f {'bench.py' if place == made.root else 'here'}")
    (folder / "here").write_text("")
    made.toy.git("add", "--all")
    made.commit("", "with the folder")
    (folder / "life.sh").write_text("test -f here && test -f ../../bench.py && echo today")
    path = folder / "kvtrail.toml"
    path.write_text(
        TABLES.format(
            measure='sh life.sh | grep today && test "$PWD" = "$KVTRAIL_TREE/tools/speed"',
            pinned=["./life.sh"],
        )
    )
    tables = path.read_text()
    for labels in ("", '[axis]\nkind = "labels"\nlabels = ["a", "b"]'):
        path.write_text(f"{tables}\n{labels}")
        for live in (lives_here, lives_on_a_host):
            subject = declared_by(path)
            live(subject, subject.resolve("a" if labels else "HEAD").hash)
    assert subject.to_json()["folder"] == "tools/speed"
    path.write_text(tables.replace("['./life.sh']", "[]"))
    with pytest.raises(CommitUnusable, match="it has no folder tools/speed") as caught:
        lives_here(declared_by(path), without)
    assert caught.value.is_lacking


def test_lives_do_not_follow_a_link_out_of_the_files_of_the_commit(
    declared, tmp_path: Path
) -> None:
    made = declared("", "")
    (tmp_path / "outside").mkdir()
    (made.root / "speed").symlink_to(tmp_path / "outside")
    made.toy.git("add", "--all")
    commit = made.commit("", "with a link")
    (made.root / "speed").unlink()
    (made.root / "speed").mkdir()
    path = made.root / "speed" / "kvtrail.toml"
    path.write_text(TABLES.format(measure="touch written", pinned=[]))
    with pytest.raises(CommitUnusable, match="it has no folder speed"):
        lives_here(declared_by(path), commit)
    assert list((tmp_path / "outside").iterdir()) == []
