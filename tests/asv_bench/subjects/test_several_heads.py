"""`compare A B C ...`: each against the first, in one table."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from declared_repository import STEP, along

from asv_bench.compare.comparison import CommitComparison
from asv_bench.errors import Refused
from asv_bench.measure.lives import Lives
from asv_bench.measure.rounds import in_a_row

CHECK = '\n[check.out]\npath = "out"\n'
FLAKY = """
number = int(calls.read_text()) + 1
calls.write_text(str(number))
assert number <= 3
step = 10
"""
pytestmark = pytest.mark.usefixtures("lives_in_process")


@pytest.fixture
def three(declared):
    """A repository of three commits, the last of which is slower."""
    return declared(STEP, "step = 10", "step = 10.001", "step = 12")


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The cells of each round that is measured."""
    found: list[tuple[str, ...]] = []
    measured = Lives.round

    def round_(self, cells, *rest, **more):
        found.append(tuple(cells))
        return measured(self, cells, *rest, **more)

    monkeypatch.setattr(Lives, "round", round_)
    return found


def test_of_three_commits_the_slower_is_told(kvtrail, three, rounds, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    said = kvtrail(three, "compare", "HEAD~2", "HEAD~1", "HEAD", "--markdown", str(page))
    assert said.verdicts == {"step HEAD~1": "equivalent", "step HEAD": "slower"}
    assert said.code == 3 == said.record["results"]["exit_code"]
    first, second, third = three.git("rev-list", "--reverse", "HEAD").split()
    ends = [(one["base"], one["head"]) for one in said.answers.values()]
    assert ends == [(first, second), (first, third)]
    assert said.answers["step HEAD"]["effect"] == pytest.approx(0.2, abs=0.005)
    assert [one["hash"] for one in said.record["settings"]["heads"]] == [second, third]
    assert f"HEAD~1 {second[:8]}, HEAD {third[:8]} against {first[:8]}" in said.text
    assert f"HEAD: Why: kvtrail explain {first[:8]} {third[:8]}" in said.text
    assert said.record["results"]["why"]
    assert f"**HEAD** **{third[:8]}** change 2" in page.read_text()
    assert "| step HEAD | slower |" in page.read_text()
    # What is answered is measured no further.
    assert rounds == [(first, second, third)] * 6 + [(first, third)] * 4
    record = tmp_path / "kept.json"
    record.write_text(json.dumps(said.record))
    told = kvtrail(three, "explain", "HEAD~2", "HEAD", "--record", str(record))
    assert "step: slower, +20" in told.text or "step: slower, +19.9" in told.text


def test_one_commit_as_all_of_them_gives_no_verdict(kvtrail, declared) -> None:
    toy = declared(STEP, "step = 10")
    said = kvtrail(toy, "compare", *["HEAD"] * 4, "--anyway")
    assert said.verdicts == dict.fromkeys(
        ("step HEAD", "step HEAD (2)", "step HEAD (3)"), "equivalent"
    )
    assert said.code == 0
    said = kvtrail(toy, "compare", *["HEAD"] * 3)
    assert set(said.verdicts.values()) == {"same"}
    assert said.record["samples"] == []


def test_twelve_labels_share_the_error_and_too_few_pairs_are_refused(kvtrail, declared) -> None:
    labels = [f"1.{number}" for number in range(12)]
    toy = declared(STEP + along(*labels), "step = 12 if label == '1.7' else 10")
    said = kvtrail(toy, "compare", *labels)
    assert said.verdicts == {
        f"step {label}": "slower" if label == "1.7" else "equivalent" for label in labels[1:]
    }
    with pytest.raises(Refused, match=r"among 11 comparisons, 8 pairs cannot show .* at least 9,"):
        kvtrail(toy, "compare", *labels, "--pairs", "8")
    assert kvtrail(toy, "compare", *labels[6:9], "--pairs", "8").verdicts["step 1.7"] == "slower"


def test_rounds_have_every_cell_in_every_place_and_after_every_other() -> None:
    for count in (3, 4, 7, 12):
        design = in_a_row("0", {str(one): str(one) for one in range(1, count)})
        orders = [design.order(number) for number in range(2 * count)]
        assert all(
            before == after[::-1] for before, after in zip(orders[::2], orders[1::2], strict=True)
        )
        for place in range(count):
            assert sorted(order[place] for order in orders) == sorted([*range(count)] * 2)
        neighbours = [two for order in orders for two in pairwise(order)]
        assert len({*neighbours}) == count * (count - 1)
        assert {neighbours.count(two) for two in neighbours} == {2}


def test_what_cannot_be_measured_or_fails_takes_nothing_from_the_others(
    kvtrail, declared, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    toy = declared(STEP, "step = 10", "raise SystemExit(125)", "raise ValueError", "step = 12")
    said = kvtrail(toy, "compare", "HEAD~3", "HEAD~2", "HEAD~1", "HEAD")
    assert said.verdicts == {
        "step HEAD~2": "not measured",
        "step HEAD~1": "failed",
        "step HEAD": "slower",
    }
    assert said.code == 3
    assert "step HEAD~1: commit" in said.text
    said = kvtrail(toy, "compare", "HEAD~2", "HEAD~3", "HEAD")
    assert {*said.verdicts.values()} == {"not measured"}
    assert said.code == 5
    calls.write_text("0")
    toy.commit(f"import pathlib\ncalls = pathlib.Path({str(calls)!r})\n" + FLAKY, "fails later")
    said = kvtrail(toy, "compare", "HEAD~4", "HEAD~1", "HEAD")
    assert said.verdicts == {"step HEAD~1": "slower", "step HEAD": "failed"}
    # Once without being measured, twice well, and three times more until it is given up.
    assert calls.read_text() == "6"


def test_results_are_checked_of_each(kvtrail, declared) -> None:
    benches = [f"step = {10 + one / 1000}\nout = {out}" for one, out in enumerate((1, 1, 2))]
    said = kvtrail(declared(STEP + CHECK, *benches), "compare", "HEAD~2", "HEAD~1", "HEAD")
    checks = {one["check"]: one["verdict"] for one in said.record["results"]["checks"]}
    assert checks == {"out HEAD~1": "same", "out HEAD": "differs"}
    assert "2 equivalent, other result" in said.text
    assert said.code == 6


def test_a_control_needs_no_answer_and_voids_all(kvtrail, declared) -> None:
    control = '\n[metrics.control]\npath = "control"\ncontrol = true\n'
    benches = ("step = 10\ncontrol = 5", "step = 9\ncontrol = 5", "step = 12\ncontrol = {}")
    toy = declared(STEP + control, *benches[:2], benches[2].format(5))
    said = kvtrail(toy, "compare", "HEAD~2", "HEAD~1", "HEAD")
    assert (said.verdicts["step HEAD~1"], said.verdicts["step HEAD"]) == ("faster", "slower")
    toy.commit(benches[2].format(7), "moves what nothing moves")
    said = kvtrail(toy, "compare", "HEAD~3", "HEAD~2", "HEAD")
    assert {*said.verdicts.values()} == {"void"}
    assert said.code == 4


def test_it_goes_on_where_it_was_interrupted(
    kvtrail, three, rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("compare", "HEAD~2", "HEAD~1", "HEAD")
    take, calls = CommitComparison._take, []

    def interrupted(self, *rest):
        take(self, *rest)
        calls.append(rest)
        if len(calls) == 8:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CommitComparison, "_take", interrupted)
        said = kvtrail(three, *words)
    assert said.code == 130
    assert said.verdicts == {"step HEAD~1": "equivalent", "step HEAD": "inconclusive"}
    assert said.record["results"]["so_far"] is True
    said = kvtrail(three, *words, "--resume")
    assert "going on with 8 pairs" in said.text
    assert said.verdicts == {"step HEAD~1": "equivalent", "step HEAD": "slower"}
    assert len(rounds) == 10


def test_words_before_the_dashes_are_commits_and_those_behind_a_command(kvtrail, three) -> None:
    (three.root / "kvtrail.toml").unlink()
    said = kvtrail(three, "compare", "HEAD~2", "HEAD~1", "HEAD", "--pairs", "10", "--", "true")
    assert set(said.answers) == {"wall_s HEAD~1", "wall_s HEAD"}
    with pytest.raises(Refused, match="or give a command behind --"):
        kvtrail(three, "compare", "HEAD~1", "HEAD", "true")
    with pytest.raises(Refused, match="needs two commits"):
        kvtrail(three, "compare", "HEAD", "--", "true")
