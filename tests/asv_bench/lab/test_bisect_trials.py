"""Trials of bisect: harmless changes that are harmless, and a fair account of who was right."""

from __future__ import annotations

import json
import random
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.lab.calibration import bisect_trials
from asv_bench.lab.calibration.bisect_trials import BisectTrial, Kind, run_trial, trial_table
from asv_bench.lab.calibration.planting import PLANTED_IN, ScratchClone
from asv_bench.subjects.lives import Place
from asv_bench.subjects.places import CPU
from asv_bench.subjects.subject import Metric


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, str, str]]:
    """Ranges that were bisected, by a tool that blames the last commit."""
    ranges: list[tuple[Path, str, str]] = []

    def blame_last(root: Path, good: str, bad: str, options):
        ranges.append((root, good, bad))
        return {
            "finding": {
                "outcome": "found",
                "shape": "one step",
                "steps": [
                    {"commit": good, "confirmed": False},
                    {"commit": bad, "confirmed": True},
                ],
                "gate": {"effect": 0.03},
            },
            "pairs": {good: 5, bad: 15},
        }

    monkeypatch.setattr(bisect_trials, "bisect_in", blame_last)
    return ranges


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def lengths(root: Path, commits: list[str]) -> list[float]:
    """What is planted in each commit, in units of 0.1 ms."""
    texts = (git(root, "show", f"{commit}:{PLANTED_IN}") for commit in commits)
    ends = (text.rpartition("_plant(")[2].rpartition(", ")[2] for text in texts)
    return [round(1e4 * float(end.rstrip(")")), 3) for end in ends]


def tried(clone: Path, asked, seed: int, kind: Kind, commits: int, effect: float = 0.1):
    """A trial, the commits of its range, oldest first, and what is planted in each."""
    trial = run_trial(ScratchClone(clone, Place()), seed, kind, commits, effect, 1e-3, ())
    root, good, bad = asked[-1]
    listed = git(root, "rev-list", "--reverse", f"{good}..{bad}").split()
    assert len(listed) == commits
    assert lengths(root, [good]) == [0.0]
    return trial, listed, lengths(root, listed)


def test_a_range_has_one_culprit_where_the_seed_puts_it(tmp_path: Path, asked) -> None:
    trial, listed, planted = tried(tmp_path / "clone", asked, 4, Kind.STEP, 6)
    [place] = trial.places
    assert place == random.Random(4).randint(1, 6)
    assert trial.culprits == (listed[place - 1],)
    # The planted work is of no length before the culprit, and of full length after.
    assert planted == [0.0] * (place - 1) + [1.0] * (7 - place)
    root, bad = tmp_path / "clone", listed[-1]
    changed = git(root, "show", "--format=", "--name-only", *trial.culprits)
    assert changed == str(PLANTED_IN)
    for commit in {*listed} - {*trial.culprits}:
        added = git(root, "show", "--format=", "--unified=0", commit).splitlines()[5:]
        assert {line.rstrip() for line in added} <= {"+", added[-1]}
        assert added[-1].startswith("+# Remark ")
    assert trial.is_right == (trial.culprits == (bad,))
    assert (trial.named, trial.measured, trial.pairs) == ((bad,), 0.03, 20)


def test_of_two_steps_the_second_takes_a_part_back(tmp_path: Path, asked) -> None:
    trial, _, planted = tried(tmp_path / "clone", asked, 1, Kind.TWO, 5)
    assert sorted(set(planted), key=planted.index)[-2:] == [1.0, 0.4]
    assert len(trial.culprits) == 2
    assert not trial.is_right, "one of them is not named"
    assert replace(trial, named=trial.culprits[::-1]).is_right


def test_a_slope_and_nothing_have_no_culprit(tmp_path: Path, asked) -> None:
    trial, _, planted = tried(tmp_path / "slope", asked, 2, Kind.SLOPE, 16, 0.15)
    rising = planted[trial.places[0] - 1 : trial.places[-1]]
    assert rising == pytest.approx([0.1 * number for number in range(1, 16)])
    assert trial.culprits == ()
    assert not trial.is_right
    assert replace(trial, named=(), shape="slope", outcome="inconclusive").is_right
    trial, _, _ = tried(tmp_path / "nothing", asked, 4, Kind.NOTHING, 3)
    assert trial.culprits == trial.places == ()
    assert not trial.is_right
    assert replace(trial, named=(), outcome="none").is_right
    assert not replace(trial, named=(), outcome="inconclusive").is_right


def test_the_same_seed_makes_the_same_range_and_another_does_not(tmp_path: Path, asked) -> None:
    trees = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        tried(tmp_path / name, asked, seed, Kind.STEP, 5)
        trees.append(git(tmp_path / name, "rev-parse", "HEAD^{tree}"))
    assert trees[0] == trees[1] != trees[2]


def test_kinds_that_there_are_not_are_refused() -> None:
    with pytest.raises(Refused, match="--kinds is 'steps'; there are step, two, slope, nothing"):
        bisect_trials.run(kinds="steps", devices=None)


RIGHT = BisectTrial(
    seed=0,
    kind=Kind.STEP,
    commits=32,
    places=(7,),
    effects=(0.03,),
    culprits=("c",),
    named=("c",),
    shape="one step",
    outcome="found",
    measured=0.031,
    pairs=40,
    seconds=60.0,
)


def test_the_table_says_who_was_right() -> None:
    wrong = replace(RIGHT, named=("d",))
    slope = replace(
        RIGHT,
        kind=Kind.SLOPE,
        places=tuple(range(4, 19)),
        effects=(0.002,) * 15,
        culprits=(),
        named=(),
        shape="slope",
        outcome="inconclusive",
    )
    nothing = replace(slope, kind=Kind.NOTHING, places=(), effects=(), shape="nothing", pairs=24)
    nothing = replace(nothing, outcome="none", measured=0.001)
    page = trial_table([RIGHT, wrong, slope, nothing]).to_markdown()
    assert "| step at 7 of 32 commits | +3 % | +3.10 % | right: one step | 40 | 60 |" in page
    assert "| wrong: one step |" in page
    assert "| slope from 4 to 18 of 32 commits | +0.2 % | +3.10 % | right: slope |" in page
    assert "| nothing of 32 commits | - | +0.10 % | right: nothing | 24 | 60 |" in page


def test_a_trial_without_an_answer_is_noted_and_the_next_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(clone: object, seed: int, *_: object, **__: object) -> BisectTrial:
        if seed == 0:
            raise MeasurementFailed("bisect gave no answer.")
        return replace(RIGHT, seed=seed)

    monkeypatch.setattr(bisect_trials, "run_trial", answer)
    reading = SimpleNamespace(value=1e-3)
    pair = SimpleNamespace(base=reading, head=reading)
    suite = SimpleNamespace(
        metrics=[Metric("step", "seconds")],
        devices=(CPU,),
        choose=lambda *_: None,
        resolve=lambda name: SimpleNamespace(hash="a" * 40),
        pairs=lambda: nullcontext(SimpleNamespace(pair=lambda *_, **__: {"step": pair})),
    )
    monkeypatch.setattr(bisect_trials, "OwnSuite", lambda root: suite)
    monkeypatch.setattr(bisect_trials, "ScratchClone", lambda *_: None)
    path = tmp_path / "bisect-trials-here.json"
    with pytest.raises(typer.Exit):
        bisect_trials.run(kinds="step,step", json=path, devices=None)
    written = json.loads(path.read_text())
    assert [sample["seed"] for sample in written["samples"]] == [1]
    assert written["notes"] == ["Trial 0: bisect gave no answer."]
    assert written["results"]["right"] == 1
