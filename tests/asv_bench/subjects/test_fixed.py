"""Rounds of three commits and of four cells: what became of a regression, and whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from declared_repository import STEP

from asv_bench.errors import Refused

LABELS = """
    [axis]
    labels = ["1.0", "1.1", "1.2"]
    """
PARTLY = "partly fixed, "
SAME = "the same as the culprit in what is"
pytestmark = pytest.mark.usefixtures("lives_in_process")


@pytest.fixture
def made(declared):
    """A repository whose commits take these steps."""
    return lambda *values: declared(STEP, *(f"step = {value}" for value in values))


@pytest.mark.parametrize(
    ("culprit", "values", "code", "sentence"),
    [
        ("HEAD~", (10, 12, 10.001), 0, "wholly fixed: the head is equivalent to the parent"),
        ("HEAD~", (10, 12, 8), 0, "wholly fixed: the head is faster than the parent"),
        ("HEAD~", (10, 12, 10), 0, "wholly fixed: the head is the same as the parent in what is"),
        ("HEAD~", (10, 12, 11), 3, PARTLY),
        ("HEAD~", (10, 12, 12.001), 3, "not fixed: the head is equivalent to the culprit"),
        ("HEAD~", (10, 12, 12), 3, f"not fixed: the head is {SAME}"),
        ("HEAD", (10, 12), 3, f"not fixed: the head is {SAME}"),
        ("HEAD~", (10, 10.001, 12), 3, "no regression to fix was found: the culprit is equiv"),
        ("HEAD~", (10, 10.001, 10.002), 0, "no regression to fix was found: the culprit is equiv"),
        # A fix, or a revert, and a commit that does nothing are accused of nothing.
        ("HEAD", (12, 10), 0, "no regression to fix was found: the culprit is faster"),
        ("HEAD~", (12, 10, 10), 0, "no regression to fix was found: the culprit is faster"),
        ("HEAD", (10, 10), 0, "no regression to fix was found: the culprit is the same as its"),
    ],
)
def test_the_answer_in_words(
    kvtrail, made, tmp_path: Path, culprit: str, values: tuple[float, ...], code: int, sentence: str
) -> None:
    page = tmp_path / "page.md"
    toy = made(*values)
    said = kvtrail(toy, "fixed", culprit, "--markdown", str(page))
    assert f"step: {sentence}" in said.text
    assert said.code == code == said.record["results"]["exit_code"]
    # A revert is known without measuring.
    assert bool(said.record["samples"]) == (values not in ((10, 12, 10), (10, 10)))
    [answer] = said.record["results"]["fixed"]
    assert page.read_text().startswith(f"### {answer['sentence']}"[:40])
    if sentence is PARTLY:
        low, high = answer["back"]["interval"]
        # In logarithms, 12 is log 1.2 above 10, and 11 is log 12/11 of that below it.
        assert low < 0.477 < high
        assert high - low < 0.03
        assert "% of the effect is back" in said.text
        # No contrast waits for a share of the error: it takes no more rounds than compare.
        assert {one["pairs_used"] for one in said.answers.values()} == {6}
        parent, culprit, head = toy.git("rev-list", "--reverse", "HEAD").split()
        assert {name: (one["base"], one["head"]) for name, one in said.answers.items()} == {
            "step culprit/parent": (parent, culprit),
            "step head/parent": (parent, head),
            "step head/culprit": (culprit, head),
        }


def test_rounds_have_all_orders_and_each_is_followed_by_its_opposite(kvtrail, made) -> None:
    said = kvtrail(made(10, 12, 11), "fixed", "HEAD~2", "HEAD~", "HEAD")
    lives = {
        (pair[side]["started_at"], pair[side]["commit"])
        for pair in said.record["samples"]
        for side in ("base", "head")
    }
    commits = [commit for _, commit in sorted(lives)]
    rounds = [tuple(commits[at : at + 3]) for at in range(0, len(commits), 3)]
    assert len(set(rounds[:6])) == 6
    assert all(len(set(order)) == 3 for order in rounds)
    for first, second in zip(rounds[::2], rounds[1::2], strict=False):
        assert second == first[::-1]


def test_three_labels_in_one_working_tree(kvtrail, declared) -> None:
    tables = f'{STEP}better = "higher"\n{LABELS}kind = "labels"'
    toy = declared(tables, "step = {'1.0': 12, '1.1': 10, '1.2': 11}[label]")
    said = kvtrail(toy, "fixed", "1.0", "1.1", "1.2")
    assert PARTLY in said.text
    assert said.record["results"]["fixed"][0]["back"]["value"] == pytest.approx(0.523, abs=0.02)
    with pytest.raises(Refused, match="has no commit before it"):
        kvtrail(toy, "fixed", "1.1")


@pytest.mark.parametrize(
    ("factor", "sentence", "code"),
    [
        ("(1.1 if label == '1.1' else 1)", "the change belongs to the labels", 3),
        ("(1.1 if commit else 1)", "the change belongs to the commits", 3),
        ("(1.2 if commit and label == '1.1' else 1)", "what the commits do depends on", 3),
        ("1", "no change was shown along either axis", 0),
    ],
)
def test_the_axis_that_a_change_belongs_to_is_named(
    kvtrail, declared, factor: str, sentence: str, code: int
) -> None:
    benches = (f"commit = {commit}\nstep = 100 * {factor}" for commit in (False, True))
    made = declared(STEP + LABELS, *benches)
    said = kvtrail(made, "swap", "HEAD~1", "HEAD", "1.0", "1.1")
    assert f"step: {sentence}" in said.text
    assert said.code == code
    assert len(said.record["results"]["cells"]) == 4
    assert len(said.answers) == 3
    if sentence.startswith("the change belongs"):
        assert {one["pairs_used"] for one in said.answers.values()} == {6}
    if "labels" in sentence:
        assert said.answers["step by labels"]["effect"] == pytest.approx(0.1, abs=0.005)


def test_the_noise_of_a_machine_is_the_same_whatever_is_asked(
    kvtrail, declared, tmp_path: Path
) -> None:
    benches = [f"step = {value} + (label == '1.1')" for value in (10, 12, 11)]
    toy = declared(STEP + LABELS, *benches)
    said = kvtrail(toy, "fixed", "HEAD~")
    assert said.record["results"]["pools"] == {}
    assert min(one["pairs_used"] for one in said.answers.values()) > 5
    kvtrail(toy, "calibrate", "--null", "8", "--planted", "none", "--pairs", "6")
    # One session may have met the machine in one of its states: only five pairs are enough then.
    for words, fewest in (
        (("compare", "HEAD~", "HEAD"), 5),
        (("fixed", "HEAD~"), 5),
        (("swap", "HEAD~", "HEAD", "1.0", "1.1"), 5),
        *([(("compare", "HEAD~", "HEAD"), 5)] * 4),
        (("compare", "HEAD~", "HEAD"), 3),
    ):
        said = kvtrail(toy, *words)
        assert said.record["results"]["pools"] == dict.fromkeys(said.answers, 40)
        used = {one["pairs_used"] for one in said.answers.values()}
        assert min(used) == fewest
        assert said.answers["step"]["test"] == "pooled ranks" if words[0] == "compare" else True
    assert len(list((tmp_path / "work" / "noise").iterdir())) == 1


def test_a_culprit_that_cannot_be_measured_leaves_nothing_to_say(kvtrail, declared) -> None:
    toy = declared(STEP, "step = 10", "raise SystemExit(125)", "step = 10.5")
    said = kvtrail(toy, "fixed", "HEAD~")
    assert "step: not measured: commit" in said.text
    assert said.code == 5


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("fixed", "HEAD~2", "HEAD~1"), "needs three commits or labels"),
        (("fixed", "HEAD~", "--rounds", "4"), "can never be significant"),
        (("fixed", "HEAD", "--anyway"), "two of these are the same one"),
        (("swap", "HEAD~1", "HEAD", "a", "a"), "is both the old and the new label"),
    ],
)
def test_what_does_not_fit_is_refused(kvtrail, made, words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        kvtrail(made(10, 12, 10), *words)
