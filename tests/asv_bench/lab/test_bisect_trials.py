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

from asv_bench.errors import MeasurementFailed
from asv_bench.lab.calibration import bisect_trials
from asv_bench.lab.calibration.bisect_trials import Trial, run_trial, trial_table
from asv_bench.lab.calibration.planting import PLANTED_IN, ScratchClone
from asv_bench.process.measured_process import CPU, Place


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, str, str]]:
    """Ranges that were bisected, by a tool that blames the last commit."""
    ranges: list[tuple[Path, str, str]] = []

    def blame_last(root: Path, good: str, bad: str, options):
        ranges.append((root, good, bad))
        return {
            "finding": {
                "outcome": "found",
                "suspects": [bad],
                "confirmations": [
                    {"head": bad, "effect": 0.03},
                    {"head": good, "effect": -0.02},
                ],
                "probability": 0.99,
            },
            "pairs": {good: 5, bad: 15},
        }

    monkeypatch.setattr(bisect_trials, "bisect_in", blame_last)
    return ranges


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_range_has_one_culprit_where_the_seed_puts_it(tmp_path: Path, asked) -> None:
    clone = ScratchClone(tmp_path / "clone", Place(CPU))
    trial = run_trial(clone, 4, 6, 1e-4, 0.03, ())
    [(root, good, bad)] = asked
    assert trial.place == random.Random(4).randint(1, 6)
    listed = git(root, "rev-list", "--reverse", f"{good}..{bad}").split()
    assert len(listed) == 6
    assert trial.culprit == listed[trial.place - 1]
    # The planted work is of no length at the good end and before the culprit, and of full after.
    lengths = [
        git(root, "show", f"{commit}:{PLANTED_IN}").rpartition("_plant(")[2].rpartition(", ")[2]
        for commit in (good, *listed)
    ]
    assert lengths == ["0.0)"] * trial.place + ["0.0001)"] * (7 - trial.place)
    changed = git(root, "show", "--format=", "--name-only", trial.culprit)
    assert changed == str(PLANTED_IN)
    others = {commit for commit in listed if commit != trial.culprit}
    for commit in others:
        added = git(root, "show", "--format=", "--unified=0", commit).splitlines()[5:]
        assert {line.rstrip() for line in added} <= {"+", added[-1]}
        assert added[-1].startswith("+# Remark ")
    assert trial.is_right == (trial.culprit == bad)
    assert (trial.named, trial.measured, trial.pairs) == (bad, 0.03, 20)


def test_the_same_seed_makes_the_same_range_and_another_does_not(tmp_path: Path, asked) -> None:
    trees = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_trial(ScratchClone(tmp_path / name, Place(CPU)), seed, 5, 1e-4, 0.03, ())
        trees.append(git(tmp_path / name, "rev-parse", "HEAD^{tree}"))
    assert trees[0] == trees[1] != trees[2]


def test_without_a_culprit_only_the_answer_none_is_right(tmp_path: Path, asked) -> None:
    clone = ScratchClone(tmp_path / "clone", Place(CPU))
    trial = run_trial(clone, 4, 3, None, 0.03, ())
    assert trial.culprit is None
    assert trial.place is None
    assert not trial.is_right
    assert replace(trial, named=None, outcome="none").is_right
    assert not replace(trial, named=None, outcome="inconclusive").is_right


RIGHT = Trial(0, 32, 7, 1e-5, 0.03, "c", "c", "found", 0.031, 0.995, 40, 60.0)


def test_the_table_says_who_was_right() -> None:
    wrong = replace(RIGHT, named="d")
    nothing = Trial(1, 32, None, None, None, None, None, "none", 0.001, 0.99, 24, 9.0)
    page = trial_table([RIGHT, wrong, nothing]).to_markdown()
    assert "| commit 7 of 32 | +3.0 % | +3.10 % | right, found | 40 | 60 |" in page
    assert "| wrong, found |" in page
    assert "| nothing planted of 32 | - | +0.10 % | right, none | 24 | 9 |" in page


def test_a_trial_without_an_answer_is_noted_and_the_next_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(clone: object, seed: int, *_: object, **__: object) -> Trial:
        if seed == 0:
            raise MeasurementFailed("bisect gave no answer.")
        return replace(RIGHT, seed=seed)

    monkeypatch.setattr(bisect_trials, "run_trial", answer)
    reading = SimpleNamespace(value=1e-3)
    pair = SimpleNamespace(base=reading, head=reading)
    setup = SimpleNamespace(
        benchmarks=["step"],
        devices=(CPU,),
        sources=SimpleNamespace(resolve=lambda name: SimpleNamespace(hash="a" * 40)),
        pairs=lambda: nullcontext(SimpleNamespace(pair=lambda *_, **__: {"step": pair})),
    )
    monkeypatch.setattr(bisect_trials, "set_up", lambda *_: setup)
    monkeypatch.setattr(bisect_trials, "ScratchClone", lambda *_: None)
    path = tmp_path / "bisect-trials-here.json"
    with pytest.raises(typer.Exit):
        bisect_trials.run(positions=2, nulls=0, json=path, devices=None)
    written = json.loads(path.read_text())
    assert [sample["seed"] for sample in written["samples"]] == [1]
    assert written["notes"] == ["Trial 0: bisect gave no answer."]
    assert written["results"]["right"] == 1
