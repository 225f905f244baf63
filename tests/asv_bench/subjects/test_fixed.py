"""Three commits in rounds: what became of a regression, in words, figures and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from declared_repository import DeclaredRepository

from asv_bench.errors import Refused

TABLES = """
    [subject]
    name = "toy"
    measure = "sh bench.py"

    [metrics.step]
    path = "step"
    """
PARTLY = "step: partly fixed, "
pytestmark = pytest.mark.usefixtures("lives_in_process")


def made(root: Path, *values: float) -> DeclaredRepository:
    return DeclaredRepository.make(root, TABLES, *(f"step = {value}" for value in values))


@pytest.mark.parametrize(
    ("values", "code", "sentence"),
    [
        ((10, 12, 10.001), 0, "step: wholly fixed: the head is equivalent to the parent"),
        ((10, 12, 8), 0, "step: wholly fixed: the head is faster than the parent"),
        ((10, 12, 11), 3, PARTLY),
        ((10, 12, 12.001), 3, "step: not fixed: the head is equivalent to the culprit"),
        ((10, 10.001, 12), 3, "no regression to fix was found: the culprit is equivalent"),
        ((10, 10.001, 10.002), 0, "no regression to fix was found: the culprit is equivalent"),
    ],
)
def test_the_answer_in_words(
    kvtrail, tmp_path: Path, values: tuple[float, ...], code: int, sentence: str
) -> None:
    page = tmp_path / "page.md"
    said = kvtrail(made(tmp_path / "toy", *values).toy, "fixed", "HEAD~", "--markdown", str(page))
    assert sentence in said.text
    assert said.code == code == said.record["results"]["exit_code"]
    [answer] = said.record["results"]["fixed"]
    assert answer["sentence"] in said.text
    assert page.read_text().startswith(f"### {answer['sentence']}"[:40])
    assert (answer["back"] is not None) == (said.verdicts["step head/culprit"] == "faster")
    if sentence is PARTLY:
        low, high = answer["back"]["interval"]
        # In logarithms, 12 is log 1.2 above 10, and 11 is log 12/11 of that below it.
        assert low < 0.477 < high
        assert high - low < 0.03
        assert "% of the effect is back" in said.text
        assert "the head is slower than the parent (+10" in said.text
    parent, culprit, head = (
        said.record["settings"]["base"]["hash"],
        said.record["settings"]["subject"]["culprit"]["hash"],
        said.record["settings"]["head"]["hash"],
    )
    ends = {name: (one["base"], one["head"]) for name, one in said.answers.items()}
    assert ends == {
        "step culprit/parent": (parent, culprit),
        "step head/parent": (parent, head),
        "step head/culprit": (culprit, head),
    }


def test_rounds_have_all_orders_and_each_is_followed_by_its_opposite(
    kvtrail, tmp_path: Path
) -> None:
    said = kvtrail(made(tmp_path / "toy", 10, 12, 11).toy, "fixed", "HEAD~2", "HEAD~", "HEAD")
    lives = {
        (pair[side]["started_at"], pair[side]["commit"])
        for pair in said.record["samples"]
        for side in ("base", "head")
    }
    commits = [commit for _, commit in sorted(lives)]
    rounds = [tuple(commits[at : at + 3]) for at in range(0, len(commits), 3)]
    assert len(rounds) >= 6
    assert all(len(set(order)) == 3 for order in rounds)
    assert len(set(rounds[:6])) == 6
    for first, second in zip(rounds[::2], rounds[1::2], strict=False):
        assert second == first[::-1]


def test_three_labels_in_one_working_tree(kvtrail, declared) -> None:
    tables = (
        TABLES
        + """
    better = "higher"

    [axis]
    kind = "labels"
    labels = ["1.0", "1.1", "1.2"]
    """
    )
    bench = "step = {'1.0': 12, '1.1': 10, '1.2': 11}[label]"
    toy = declared(tables, bench).toy
    said = kvtrail(toy, "fixed", "1.0", "1.1", "1.2")
    assert PARTLY in said.text
    assert said.record["results"]["fixed"][0]["back"]["value"] == pytest.approx(0.523, abs=0.02)
    with pytest.raises(Refused, match="has no commit before it"):
        kvtrail(toy, "fixed", "1.1")


def test_a_revert_is_known_without_measuring(kvtrail, tmp_path: Path) -> None:
    toy = made(tmp_path / "toy", 10, 12, 10).toy
    said = kvtrail(toy, "fixed", "HEAD~")
    assert "wholly fixed: the head is the same as the parent in what is measured" in said.text
    assert (said.code, said.record["samples"]) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "values", "code", "sentence"),
    [
        # Nothing came after the culprit, or a merge that changed nothing did.
        (["HEAD"], (10, 12), 3, "not fixed: the head is the same as the culprit in what is"),
        (["HEAD~"], (10, 12, 12), 3, "not fixed: the head is the same as the culprit in what is"),
        # A fix, or a revert, and a commit that does nothing are accused of nothing.
        (["HEAD"], (12, 10), 0, "no regression to fix was found: the culprit is faster"),
        (["HEAD~"], (12, 10, 10), 0, "no regression to fix was found: the culprit is faster"),
        (["HEAD"], (10, 10.001), 0, "no regression to fix was found: the culprit is equivalent"),
        (["HEAD"], (10, 10), 0, "no regression to fix was found: the culprit is the same as its"),
    ],
)
def test_a_head_that_holds_the_culprit_is_accused_only_of_what_was_measured(
    kvtrail, tmp_path: Path, arguments, values: tuple[float, ...], code: int, sentence: str
) -> None:
    said = kvtrail(made(tmp_path / "toy", *values).toy, "fixed", *arguments)
    assert (said.code, said.record["results"]["exit_code"]) == (code, code)
    assert f"step: {sentence}" in said.text
    assert bool(said.record["samples"]) == (values[0] != values[1])


def test_the_noise_of_a_machine_is_the_same_whatever_is_asked(
    kvtrail, declared, tmp_path: Path
) -> None:
    axis = """
    [axis]
    labels = ["old", "new"]
    """
    benches = [f"step = {value} + (label == 'new')" for value in (10, 12, 11)]
    toy = declared(TABLES + axis, *benches).toy
    said = kvtrail(toy, "fixed", "HEAD~")
    assert said.record["results"]["pools"] == {}
    assert min(one["pairs_used"] for one in said.answers.values()) > 5
    kvtrail(toy, "calibrate", "--null", "8", "--planted", "none", "--pairs", "6")
    questions = (["compare", "HEAD~", "HEAD"], ["fixed", "HEAD~"], ["swap", "HEAD~", "HEAD"])
    for question, labels in zip(questions, ((), (), ("old", "new")), strict=True):
        said = kvtrail(toy, *question, *labels)
        assert said.record["results"]["pools"] == dict.fromkeys(said.answers, 40)
        assert {one["test"] for one in said.answers.values()} == {"pooled ranks"}
    assert len(list((tmp_path / "work" / "noise").iterdir())) == 1


def test_a_culprit_that_cannot_be_measured_leaves_nothing_to_say(kvtrail, tmp_path: Path) -> None:
    repository = made(tmp_path / "toy", 10)
    repository.commit("raise SystemExit(125)", "cannot run")
    repository.commit("step = 10.5", "fix")
    said = kvtrail(repository.toy, "fixed", "HEAD~")
    assert "step: not measured: commit" in said.text
    assert said.code == 5


def test_what_does_not_fit_is_refused(kvtrail, tmp_path: Path) -> None:
    toy = made(tmp_path / "toy", 10, 12, 10).toy
    with pytest.raises(Refused, match="needs three commits or labels"):
        kvtrail(toy, "fixed", "HEAD~2", "HEAD~1")
    with pytest.raises(Refused, match="can never be significant"):
        kvtrail(toy, "fixed", "HEAD~", "--rounds", "4")
    with pytest.raises(Refused, match="two of these are the same one"):
        kvtrail(toy, "fixed", "HEAD", "--anyway")
