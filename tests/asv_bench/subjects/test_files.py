"""`bisect --files`: the files of a commit that make its effect, and nothing else touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from declared_repository import DeclaredRepository

from asv_bench.errors import Refused
from asv_bench.measure.life import CommandLife

TABLES = """
    [subject]
    name = "toy"
    measure = "sh bench.py"

    [metrics.step]
    path = "step"
    """
pytestmark = pytest.mark.usefixtures("lives_in_process")


def made(root: Path, bench: str, before: dict[str, str], after: dict[str, str]):
    """A repository of two commits; "" takes a file away. bench.py reads texts with `read(name)`."""
    read = "read = lambda name: (tree / name).read_text() if (tree / name).exists() else ''\n"
    repository = DeclaredRepository.make(root, TABLES, read + bench)
    for files, message in ((before, "before"), (after, "all at once")):
        for name, text in files.items():
            path = root / name
            if text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            else:
                path.unlink()
        repository.toy.git("add", "--all", *files)
        repository.toy.git("commit", "-q", "-m", message)
    return repository.toy


FIVE = {f"src/{name}.py": name for name in "abcde"}
CHANGED = {name: f"{text} changed" for name, text in FIVE.items()}
ONE_OF_FIVE = "step = 12 if read('src/d.py') == 'd changed' else 10"


def test_the_one_guilty_file_of_five(kvtrail, tmp_path: Path) -> None:
    toy = made(tmp_path / "toy", ONE_OF_FIVE, FIVE, CHANGED)
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
    assert "To repeat it:" in page.read_text()
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
    kvtrail, tmp_path: Path, guilty: str, tries: list[list[str]]
) -> None:
    names = ("CHANGES", "README.md", "docs/a.py", "pages/b.rst", "src/one.py")
    before = dict.fromkeys(names, "a")
    bench = f"step = 12 if read({guilty!r}) == 'b' else 10"
    toy = made(tmp_path / "toy", bench, before, dict.fromkeys(names, "b"))
    said = kvtrail(toy, "bisect", "HEAD", "--files")
    assert f"{guilty} makes it slower: +" in said.text
    files = said.record["settings"]["files"]
    found = [
        sorted(files[at] for at in one["changes"])
        for one in said.record["results"]["finding"]["tries"]
    ]
    assert found[: len(tries)] == tries
    assert len(found) <= 5


def test_two_files_that_each_do_a_part(kvtrail, tmp_path: Path) -> None:
    bench = """step = 10
if 'changed' in read('src/b.py'): step *= 1.1
if 'changed' in read('src/d.py'): step *= 1.2
"""
    said = kvtrail(made(tmp_path / "toy", bench, FIVE, CHANGED), "bisect", "HEAD", "--files")
    assert said.code == 3
    finding = said.record["results"]["finding"]
    assert [one["changes"] for one in finding["guilty"]] == [[1], [3]]
    # However many there are, they err no more often than one comparison may.
    assert [one["alpha"] for one in finding["guilty"]] == [0.001, 0.0005]
    # Of log 1.32 the one is log 1.1, the other log 1.2.
    assert finding["shares"] == [pytest.approx(0.343, abs=0.02), pytest.approx(0.657, abs=0.02)]
    assert "src/b.py makes it slower: +" in said.text
    assert "src/d.py, with the files above, makes it slower: +" in said.text


def test_a_file_that_needs_another_is_tried_with_it(kvtrail, tmp_path: Path) -> None:
    bench = """uses_b = read('src/c.py') == 'uses b'
if uses_b and read('src/b.py') != 'b for c': raise SystemExit(1)
step = 12 if uses_b else 10
"""
    after = {**CHANGED, "src/b.py": "b for c", "src/c.py": "uses b"}
    said = kvtrail(made(tmp_path / "toy", bench, FIVE, after), "bisect", "HEAD", "--files")
    assert "src/b.py, src/c.py together make it slower: +" in said.text
    assert "cannot be tried" in said.text
    assert said.code == 3
    finding = said.record["results"]["finding"]
    tried = {tuple(one["changes"]): one for one in finding["tries"]}
    assert "SystemExit(1)" in tried[2,]["why_not"]
    assert tried[1,]["comparison"]["verdict"] == "equivalent"


def test_renames_links_modes_and_folders_are_made_as_a_whole(kvtrail, tmp_path: Path) -> None:
    bench = """import os
names = sorted(path.name for path in tree.iterdir())
# A rename is one change: never both names, and never neither.
if ('old.py' in names) == ('new.py' in names): raise SystemExit(1)
step = 12 if (tree / 'link').is_symlink() and os.readlink(tree / 'link') == 'run.sh' else 10
if os.access(tree / 'run.sh', os.X_OK): step *= 1.1
"""
    text = "the same in both\n" * 20
    root = tmp_path / "toy"
    before = {"old.py": text, "place": "x", "run.sh": "true", "gone": "y", "box/inner": "z"}
    toy = made(root, bench, before, {})
    (root / "old.py").rename(root / "new.py")
    (root / "place").unlink()
    (root / "place").mkdir()
    (root / "place" / "inner").write_text("x2")
    (root / "box" / "inner").unlink()
    (root / "box").rmdir()
    (root / "box").write_text("z2")
    (root / "run.sh").chmod(0o755)
    (root / "gone").unlink()
    (root / "link").symlink_to("run.sh")
    toy.git("add", "--all", "new.py", "old.py", "place", "run.sh", "gone", "link", "box")
    toy.git("commit", "-q", "-m", "move things")
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


def test_one_file_is_known_at_once_and_pinned_ones_do_not_count(kvtrail, tmp_path: Path) -> None:
    toy = made(tmp_path / "toy", "step = 10", {"a": "1", "b": "1"}, {"a": "2"})
    said = kvtrail(toy, "bisect", "HEAD", "--files")
    assert "changes one file only, a: there is nothing to divide" in said.text
    assert (said.code, said.record["samples"]) == (0, [])
    tables = (toy.root / "kvtrail.toml").read_text()
    (toy.root / "kvtrail.toml").write_text(
        tables.replace("[metrics", 'pinned = ["b"]\n[metrics', 1)
    )
    (toy.root / "a").write_text("3")
    (toy.root / "b").write_text("3")
    toy.git("commit", "-qam", "both")
    said = kvtrail(toy, "bisect", "HEAD", "--files")
    assert "changes one file only, a" in said.text


def test_without_an_effect_nothing_is_searched(kvtrail, tmp_path: Path) -> None:
    said = kvtrail(made(tmp_path / "toy", "step = 10", FIVE, CHANGED), "bisect", "HEAD", "--files")
    assert "no regression: the whole change is equivalent." in said.text
    assert (said.code, said.record["results"]["finding"]["tries"]) == (0, [])


def test_a_search_ends_after_as_many_pairs_as_it_may_take(kvtrail, tmp_path: Path) -> None:
    toy = made(tmp_path / "toy", ONE_OF_FIVE, FIVE, CHANGED)
    said = kvtrail(toy, "bisect", "HEAD", "--files", "--most-pairs", "3")
    assert "inconclusive: no smaller part shows it." in said.text
    assert "as many pairs as --most-pairs allows" in said.text
    finding = said.record["results"]["finding"]
    assert (said.code, finding["is_cut"], len(finding["tries"])) == (4, True, 1)


def test_a_search_goes_on_after_an_interruption(
    kvtrail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = "step = 8 if read('src/d.py') == 'd changed' else 10"
    toy = made(tmp_path / "toy", bench, FIVE, CHANGED)
    measure, lived = CommandLife.live, []

    def interrupted(self, laid, *others):
        if len(lived) == 40:
            raise KeyboardInterrupt
        lived.append(laid)
        return measure(self, laid, *others)

    monkeypatch.setattr(CommandLife, "live", interrupted)
    arguments = ("bisect", "HEAD", "--files", "--improvement")
    said = kvtrail(toy, *arguments)
    assert said.code == 130
    before = said.record["samples"]
    monkeypatch.setattr(CommandLife, "live", measure)
    said = kvtrail(toy, *arguments)
    assert said.record["samples"][: len(before)] == before
    assert "src/d.py makes it faster: -" in said.text
    assert said.code == 3


def test_labels_and_a_lone_commit_without_the_option_are_refused(kvtrail, tmp_path: Path) -> None:
    toy = made(tmp_path / "toy", "step = 10", FIVE, CHANGED)
    with pytest.raises(Refused, match="bisect needs two commits or labels"):
        kvtrail(toy, "bisect", "HEAD")
    path = toy.root / "kvtrail.toml"
    path.write_text(path.read_text() + '[axis]\nkind = "labels"\nlabels = ["a", "b"]\n')
    with pytest.raises(Refused, match="labels have no files of their own"):
        kvtrail(toy, "bisect", "a", "b", "--files")
