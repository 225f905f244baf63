"""Names in sentences."""

from __future__ import annotations

from asv_bench.words import first_of


def test_of_many_names_the_first_stand_in_a_sentence() -> None:
    assert first_of("abcde", 3) == "a, b, c and 2 more"
    assert first_of("abcd", 3) == "a, b, c, d"
    assert first_of("a", 3) == "a"
