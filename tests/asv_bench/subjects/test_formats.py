"""Answers in the formats of Bencher, github-action-benchmark and JUnit."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from asv_bench.errors import Refused

TABLES = """
    [subject]
    name = "toy"
    measure = "python bench.py"

    [metrics.step]
    path = "step"
    unit = "ms"

    [metrics.rate]
    path = "rate"
    unit = "tok/s"
    better = "higher"

    [check.tokens]
    path = "out"
    """
OF_STEP = TABLES[: TABLES.index("[metrics.rate]")]
BENCH = "step = {0}\nrate = 1000 / step\nout = {1}"
OPEN = "__import__('random').uniform(5, 15)"
GOOD, SLOW = BENCH.format(10.0, 1), BENCH.format(12.0, 1)
pytestmark = pytest.mark.usefixtures("lives_in_process")


@pytest.fixture
def written(kvtrail, monkeypatch: pytest.MonkeyPatch):
    """What a command writes to standard output alone, and its exit code."""
    said = []
    invoke = CliRunner.invoke

    def keep(self: CliRunner, *arguments: Any, **options: Any) -> Any:
        said[:] = [invoke(self, *arguments, **options)]
        return said[0]

    def run(toy, *words: str) -> tuple[int, str]:
        with monkeypatch.context() as patch:
            patch.setattr(CliRunner, "invoke", keep)
            code = kvtrail(toy, *words).code
        assert "record: " in said[0].stderr
        return code, said[0].stdout

    return run


def cases_of(text: str) -> dict[str, tuple[str, str]]:
    """By the name of its case, what JUnit's XML calls an answer, and why."""
    root = ElementTree.fromstring(text.encode())
    [suite] = root
    found = {}
    for case in suite:
        [element] = case
        assert case.get("classname", "").startswith("kvtrail.")
        found[case.attrib["name"]] = element.tag, element.text or ""
    kinds = [kind for kind, _ in found.values()]
    for of in (root, suite):
        counts = {"tests": len(kinds), "skipped": kinds.count("skipped")}
        counts |= {"failures": kinds.count("failure"), "errors": kinds.count("error")}
        assert {name: int(of.attrib[name]) for name in counts} == counts
    return found


def test_bencher_gets_the_heads_figures_and_their_intervals(written, declared) -> None:
    code, text = written(declared(TABLES, GOOD, SLOW), "compare", "HEAD~1", "HEAD", "--format=bmf")
    found = json.loads(text)
    assert (code, found.keys()) == (3, {"step", "rate"})
    for name, unit, value in (("step", "ms", 12), ("rate", "tok/s", 1000 / 12)):
        [(measure, figures)] = found[name].items()
        assert (measure, figures["value"]) == (unit, pytest.approx(value, rel=0.01))
        assert figures["lower_value"] < figures["value"] < figures["upper_value"]
        assert figures["upper_value"] == pytest.approx(value, rel=0.01)


def test_github_action_benchmark_gets_a_list_that_splits_by_what_is_better(
    written, declared
) -> None:
    toy = declared(TABLES, GOOD, SLOW)
    step, rate = json.loads(written(toy, "compare", "HEAD~1", "HEAD", "--format", "gab")[1])
    assert (step["name"], step["unit"], step["better"]) == ("step", "ms", "lower")
    assert (rate["name"], rate["unit"], rate["better"]) == ("rate", "tok/s", "higher")
    assert isinstance(step["value"], float)
    low, _, high = step["range"].partition(" to ")
    assert float(low) < step["value"] < float(high)
    assert step["extra"].startswith("slower: +")


@pytest.mark.parametrize(
    ("head", "options", "code", "kinds"),
    [
        (SLOW, (), 3, ("failure", "failure", "system-out")),
        (SLOW, ("--gate", "none"), 0, ("failure", "failure", "system-out")),
        (BENCH.format(8.0, 1), (), 0, ("system-out",) * 3),
        (BENCH.format(10.0, 2), (), 6, ("system-out", "system-out", "failure")),
        (BENCH.format(OPEN, 1), (), 4, ("skipped", "skipped", "system-out")),
        ("raise SystemExit('\\x1b[31mbroken')", (), 1, ("error", "error", "skipped")),
        ("raise SystemExit(125)", (), 5, ("skipped", "skipped", "skipped")),
    ],
    ids=["slower", "no gate", "faster", "other result", "open", "broken", "absent"],
)
def test_junit_has_a_case_for_each_benchmark_and_check(
    written, declared, head: str, options: tuple[str, ...], code: int, kinds: tuple[str, ...]
) -> None:
    toy = declared(TABLES, GOOD, head)
    ended, text = written(toy, "compare", "HEAD~1", "HEAD", *options, "--format", "junit")
    cases = cases_of(text)
    assert ended == code
    assert [kind for kind, _ in cases.values()][: len(kinds)] == list(kinds)


def test_a_regression_that_is_fixed_passes_and_one_that_is_not_fails(written, declared) -> None:
    other = BENCH.format(12.0, 2)
    tables = OF_STEP + TABLES[TABLES.index("[check") :]
    toy = declared(tables, GOOD, other, GOOD + "\n", other + "\n")
    fixed, text = written(toy, "fixed", "HEAD~3", "HEAD~2", "HEAD~1", "--format", "junit")
    (kind, why), (of_check, _) = cases_of(text).values()
    assert (fixed, kind, of_check) == (0, "system-out", "system-out")
    assert why.startswith("step: wholly fixed: ")
    code, text = written(toy, "fixed", "HEAD~3", "HEAD~2", "HEAD", "--format", "junit")
    assert (code, cases_of(text)["step"][0]) == (6, "failure")


def test_a_bisection_is_a_case_that_names_the_commit(written, declared) -> None:
    toy = declared(OF_STEP, GOOD, GOOD + "\n", SLOW, SLOW + "\n")
    code, text = written(toy, "bisect", "HEAD~3", "HEAD", "--format", "junit")
    [(name, (kind, why))] = cases_of(text).items()
    assert (code, name, kind) == (3, "step", "failure")
    assert "change 2" in why
    figures = json.loads(written(toy, "bisect", "HEAD~3", "HEAD", "--format", "bmf")[1])
    assert figures["step"]["ms"]["value"] == pytest.approx(12, rel=0.01)
    _, text = written(toy, "bisect", "HEAD~1", "--files", "--format", "junit")
    [(kind, why)] = cases_of(text).values()
    assert (kind, "there is nothing to divide" in why) == ("system-out", True)


def test_what_holds_the_same_has_no_figure_and_passes(written, declared) -> None:
    toy = declared(OF_STEP, GOOD)
    same = ("compare", "HEAD", "HEAD", "--format")
    assert cases_of(written(toy, *same, "junit")[1])["step"][0] == "system-out"
    assert [json.loads(written(toy, *same, one)[1]) for one in ("bmf", "gab")] == [{}, []]


def test_standard_output_is_for_one_file(kvtrail, declared) -> None:
    with pytest.raises(Refused, match="give the other file a name"):
        kvtrail(declared(OF_STEP, GOOD), "compare", "HEAD", "HEAD", "--format=gab", "--csv=-")
