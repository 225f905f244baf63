"""Names and figures in sentences."""

from __future__ import annotations

import math

import pytest

from asv_bench.words import first_of, gathered, processes_apart


def test_of_many_names_the_first_stand_in_a_sentence() -> None:
    assert first_of("abcde", 3) == "a, b, c and 2 more"
    assert first_of("abc", 3) == "a, b, c"
    assert first_of("a", 3) == "a"


def test_what_is_said_of_several_is_said_once() -> None:
    same = [f"commit {name}: a: b" for name in "abcde"]
    assert gathered([*same, "it rains", "commit a: c", "it rains"]) == [
        "commit a, commit b, commit c and 2 more: a: b",
        "it rains",
        "commit a: c",
    ]
    assert gathered([]) == []


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [0.0, 5.0], [1.0, math.inf]])
def test_nothing_is_said_of_what_cannot_be_compared(values: list[float]) -> None:
    assert processes_apart([("step", value) for value in values]) == []


def test_the_worst_are_listed_and_the_rest_counted() -> None:
    values = [(f"figure {number}", each) for number in range(6) for each in (1.0, 2.0 + number)]
    (sentence,) = processes_apart(values, "ms")
    assert "figure 5 is 1 to 7 ms, figure 4" in sentence
    assert "figure 0" not in sentence
    assert "and 3 more. Make the machine idle and measure again" in sentence
