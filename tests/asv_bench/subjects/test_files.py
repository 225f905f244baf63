"""`bisect --files`: the files of a commit that make its effect, and nothing else touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from declared_repository import STEP, DeclaredRepository, along

from asv_bench.errors import Refused

FIVE = {f"src/{name}.py": name for name in "abcde"}
CHANGED = {name: f"{text} changed" for name, text in FIVE.items()}
ONE_OF_FIVE = "step = 12 if read('src/d.py') == 'd changed' else 10"
TWO_OF_FIVE = """
step = 10
if 'changed' in read('src/b.py'): step *= 1.1
if 'changed' in read('src/d.py'): step *= 1.2
"""
pytestmark = pytest.mark.usefixtures("lives_in_process")


@pytest.fixture
def made(declared) -> Callable[..., DeclaredRepository]:
    """A repository of two commits, whose bench.py reads texts with `read(name)`."""

    def make(bench: str, before: dict[str, str], after: dict[str, str]) -> DeclaredRepository:
        read = "read = lambda name: (tree / name).read_text() if (tree / name).exists() else ''"
        toy = declared(STEP, f"{read}\n{bench}")
        toy.change("before", before)
        toy.change("all at once", after)
        return toy

    return make


def test_the_one_guilty_file_of_five(kvtrail, made, tmp_path: Path) -> None:
    toy = made(ONE_OF_FIVE, FIVE, CHANGED)
    said = kvtrail(toy, "bisect", "HEAD~1", "HEAD")
    assert "Which of its 5 files did it: " in said.text
    page = tmp_path / "page.md"
    said = kvtrail(toy, "bisect", "HEAD", "--files", "--markdown", str(page))
    assert "src/d.py makes it slower: +" in said.text
    assert said.code == 3
    finding = said.record["results"]["finding"]
    [guilty] = finding["guilty"]
    assert guilty["changes"] == [3]
    assert guilty["comparison"]["effect"] == pytest.approx(0.2, abs=0.003)
    assert guilty["against_whole"]["verdict"] == "equivalent"
    assert finding["shares"] == [pytest.approx(1, abs=0.02)]
    # Halves, not one by one: the last half, a half of it, and the file alone.
    tried = [one["changes"] for one in finding["tries"]]
    assert tried[:2] == [[0, 1], [2, 3, 4]]
    assert len(tried) <= 5
    assert page.read_text().startswith("### step: src/d.py makes it slower: +")


@pytest.mark.parametrize(
    ("guilty", "tries"),
    [
        # The file is tried before what no program reads, and then nothing else is left to try.
        ("src/one.py", [["src/one.py"]]),
        ("README.md", [["src/one.py"], ["CHANGES", "README.md", "docs/a.py", "pages/b.rst"]]),
    ],
)
def test_documents_are_one_part_and_the_last(
    kvtrail, made, guilty: str, tries: list[list[str]]
) -> None:
    names = ("CHANGES", "README.md", "docs/a.py", "pages/b.rst", "src/one.py")
    bench = f"step = 12 if read({guilty!r}) == 'b' else 10"
    toy = made(bench, dict.fromkeys(names, "a"), dict.fromkeys(names, "b"))
    said = kvtrail(toy, "bisect", "HEAD", "--files")
    assert f"{guilty} makes it slower: +" in said.text
    files = said.record["settings"]["files"]
    tried = said.record["results"]["finding"]["tries"]
    found = [sorted(files[at] for at in one["changes"]) for one in tried]
    assert found[: len(tries)] == tries
    assert len(found) <= 5


@pytest.mark.parametrize(("names", "guilty"), [("abcde", [[1], [3]]), ("bd", [[0], [1]])])
def test_two_files_that_each_do_a_part(kvtrail, made, names: str, guilty) -> None:
    before, after = (
        {f"src/{one}.py": of[f"src/{one}.py"] for one in names} for of in (FIVE, CHANGED)
    )
    said = kvtrail(made(TWO_OF_FIVE, before, after), "bisect", "HEAD", "--files")
    assert said.code == 3
    finding = said.record["results"]["finding"]
    assert [one["changes"] for one in finding["guilty"]] == guilty
    # However many there are, they err no more often than one comparison may.
    assert [one["alpha"] for one in finding["guilty"]] == [0.001, 0.0005]
    # Of log 1.32 the one is log 1.1, the other log 1.2.
    assert finding["shares"] == [pytest.approx(0.343, abs=0.02), pytest.approx(0.657, abs=0.02)]
    assert "src/b.py makes it slower: +" in said.text
    assert "src/d.py, with the files above, makes it slower: +" in said.text


def test_a_file_that_needs_another_is_tried_with_it(kvtrail, made) -> None:
    bench = """uses_b = read('src/c.py') == 'uses b'
if uses_b and read('src/b.py') != 'b for c': raise SystemExit(1)
step = 12 if uses_b else 10
"""
    after = {**CHANGED, "src/b.py": "b for c", "src/c.py": "uses b"}
    said = kvtrail(made(bench, FIVE, after), "bisect", "HEAD", "--files")
    assert "src/b.py, src/c.py together make it slower: +" in said.text
    assert said.code == 3
    tried = {tuple(one["changes"]): one for one in said.record["results"]["finding"]["tries"]}
    assert "SystemExit(1)" in tried[2,]["why_not"]
    assert tried[1,]["comparison"]["verdict"] == "equivalent"


def test_renames_links_modes_and_folders_are_made_as_a_whole(kvtrail, made) -> None:
    bench = """import os
names = sorted(path.name for path in tree.iterdir())
# A rename is one change: never both names, and never neither.
if ('old.py' in names) == ('new.py' in names): raise SystemExit(1)
step = 12 if (tree / 'link').is_symlink() and os.readlink(tree / 'link') == 'run.sh' else 10
if os.access(tree / 'run.sh', os.X_OK): step *= 1.1
"""
    before = {"old.py": "the same in both\n" * 20, "place": "x", "gone": "y", "box/inner": "z"}
    toy = made(bench, before, {"run.sh": "true"})
    (toy.root / "old.py").rename(toy.root / "new.py")
    for name in ("place", "gone"):
        (toy.root / name).unlink()
    shutil.rmtree(toy.root / "box")
    (toy.root / "run.sh").chmod(0o755)
    (toy.root / "link").symlink_to("run.sh")
    toy.git("add", "--all", ":!kvtrail.toml")
    toy.change("move things", {"place/inner": "x2", "box": "z2"})
    said = kvtrail(toy, "bisect", "HEAD", "--files")
    files = said.record["settings"]["files"]
    # A folder in place of a file, and a file in place of a folder, are two changes each.
    places = ["box", "box/inner", "place", "place/inner"]
    moved = sorted([*places, "gone", "link", "old.py → new.py", "run.sh"])
    assert sorted(files) == moved
    finding = said.record["results"]["finding"]
    named = [[files[number] for number in one["changes"]] for one in finding["guilty"]]
    assert sorted(named) == [["link"], ["run.sh"]]
    assert not [one["why_not"] for one in finding["tries"] if one["why_not"]]


def test_one_file_is_known_at_once_and_pinned_ones_do_not_count(kvtrail, made) -> None:
    toy = made("step = 10", {"a": "1", "b": "1"}, {"a": "2"})
    said = kvtrail(toy, "bisect", "HEAD", "--files")
    assert "changes one file only, a: there is nothing to divide" in said.text
    assert (said.code, said.record["samples"]) == (0, [])
    toy.declare(STEP.replace("[metrics", 'pinned = ["b"]\n[metrics', 1))
    toy.change("both", {"a": "3", "b": "3"})
    assert "changes one file only, a" in kvtrail(toy, "bisect", "HEAD", "--files").text


@pytest.mark.parametrize(
    ("bench", "options", "code", "words"),
    [
        ("step = 10", (), 0, "no regression: the whole change is equivalent."),
        (ONE_OF_FIVE, ("--most-pairs", "3"), 4, "as many pairs as --most-pairs allows"),
    ],
)
def test_without_an_effect_or_beyond_the_limit_nothing_is_searched(
    kvtrail, made, bench: str, options: tuple[str, ...], code: int, words: str
) -> None:
    said = kvtrail(made(bench, FIVE, CHANGED), "bisect", "HEAD", "--files", *options)
    assert words in said.text
    finding = said.record["results"]["finding"]
    assert (said.code, len(finding["tries"]) <= 1) == (code, True)
    assert finding["is_cut"] == bool(options)


def test_labels_and_a_lone_commit_without_the_option_are_refused(kvtrail, made) -> None:
    toy = made("step = 10", FIVE, CHANGED)
    with pytest.raises(Refused, match="bisect needs two commits or labels"):
        kvtrail(toy, "bisect", "HEAD")
    toy.declare(STEP + along("a", "b"))
    with pytest.raises(Refused, match="labels have no files of their own"):
        kvtrail(toy, "bisect", "a", "b", "--files")
