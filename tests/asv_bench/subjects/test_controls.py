"""Metrics that no change can move: where one does, no verdict of the session stands."""

from __future__ import annotations

import pytest

TABLES = """
    [subject]
    name = "toy"
    measure = "python bench.py"

    [metrics.ref]
    path = "ref"
    control = true

    [metrics.step]
    path = "step"
    """
# A life counts those before it; the first of each commit is not measured.
BENCH = """
import os, random
count = int(os.environ["LIVES"])
os.environ["LIVES"] = str(count + 1)
step = {step}
ref = {ref}
"""
pytestmark = pytest.mark.usefixtures("lives_in_process")
COMPARE = ("compare", "HEAD~1", "HEAD")


@pytest.fixture
def made(declared, monkeypatch: pytest.MonkeyPatch):
    """A repository whose last commits measure these steps, and this control, alike."""
    monkeypatch.setenv("LIVES", "0")

    def make(ref: str, *steps: float):
        benches = [BENCH.format(step=step, ref=ref) for step in steps]
        return declared(TABLES, *(f"{text}#{number}" for number, text in enumerate(benches)))

    return make


def test_a_machine_that_changes_in_the_middle_voids_every_verdict(kvtrail, made) -> None:
    said = kvtrail(made("1.2 if count >= 8 else 1.0", 5.0, 5.5), *COMPARE)
    assert (said.code, said.verdicts) == (4, {"step": "void", "ref": "void"})
    assert "The control ref moved: +" in said.text
    assert "in the middle of the session, after 6 of 12 lives" in said.text
    assert "step: void (+" in said.text


@pytest.mark.parametrize(
    "command",
    [
        COMPARE,
        (*COMPARE, "--metric", "step"),
        ("bisect", "HEAD~1", "HEAD"),
        ("bisect", "HEAD~1", "HEAD", "--metric", "step"),
        ("fixed", "HEAD~2", "HEAD~1", "HEAD"),
    ],
    ids=" ".join,
)
def test_a_control_that_differs_between_the_ends_voids_every_verdict(
    kvtrail, made, command: tuple[str, ...]
) -> None:
    said = kvtrail(made("1.1 if step > 5 else 1.0", 5.0, 5.0, 5.5), *command)
    assert said.code == 4, said.text
    assert "The control ref moved: +" in said.text
    assert "between the ends" in said.text
    assert "void" in said.text
    if "comparisons" in said.record["results"]:
        assert set(said.verdicts.values()) == {"void"}


def test_a_control_that_stands_still_or_only_scatters_decides_nothing(kvtrail, made) -> None:
    said = kvtrail(made("random.uniform(0.8, 1.2)", 5.0, 5.5), *COMPARE)
    assert (said.code, said.verdicts) == (3, {"step": "slower", "ref": "inconclusive"})
    assert said.answers["step"]["pairs_used"] == 6
    assert "step: slower (+" in said.text


def test_a_control_is_watched_to_the_end(kvtrail, made) -> None:
    # It is equivalent at the first look, and the step takes longer.
    toy = made("1.2 if count >= 25 else 1.0", 5.0, 5.5)
    bench = (toy.root / "bench.py").read_text()
    toy.commit(bench.replace("step = 5.5", "step = random.uniform(4.6, 5.6)"), "scatter")
    said = kvtrail(toy, "compare", "HEAD~2", "HEAD")
    assert (said.code, said.verdicts) == (4, {"step": "void", "ref": "void"})


def test_a_drift_of_the_machine_is_no_step(kvtrail, made) -> None:
    said = kvtrail(made("1 + count / 50", 5.0, 5.5), *COMPARE)
    assert (said.code, said.verdicts["step"]) == (3, "slower")


def test_a_control_alone_is_judged_as_any_metric(kvtrail, made) -> None:
    said = kvtrail(made("1.0", 5.0, 5.5), *COMPARE, "--metric", "ref")
    assert (said.code, said.verdicts) == (0, {"ref": "equivalent"})
