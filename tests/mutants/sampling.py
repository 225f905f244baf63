"""Mutants of drawing tokens by thresholds."""

from __future__ import annotations

from .mutant import Mutant

DRAW, DRAW_TESTS = "kernels/sampling/draw.py", ("tests/kernels/sampling/test_draw.py",)

MUTANTS = (
    Mutant(
        DRAW,
        "mass = mass_low + tl.sum(",
        "mass = tl.sum(",
        "what lies before the gathered tokens has no weight",
        DRAW_TESTS,
        "scattered",
    ),
    Mutant(
        DRAW,
        "(below.to(tl.int32, bitcast=True).to(tl.int64) << ID_BITS) | place",
        "(below.to(tl.int32, bitcast=True).to(tl.int64) << ID_BITS) | (num_tokens - 1 - place)",
        "of equally likely tokens the higher ids come first",
        DRAW_TESTS,
        "scattered",
    ),
    Mutant(
        DRAW,
        "nucleus.to(tl.float64) * (1 - SHORT_OF_TOP_P) * mass",
        "nucleus.to(tl.float64) * (1 - SHORT_OF_TOP_P)",
        "the nucleus is not renormalised over what top-k kept",
        DRAW_TESTS,
        "scattered",
    ),
    Mutant(
        DRAW,
        "tl.where(inside, rank, _NO_RANK)",
        "rank",
        "padding after the vocabulary is drawn",
        DRAW_TESTS,
        "sorted",
    ),
    Mutant(
        DRAW,
        "((sought == _DRAW) & (reached == target))",
        "((sought == _DRAW) & (reached < target))",
        "a random number of 0 draws a rank before the first token",
        DRAW_TESTS,
        "numbers",
    ),
    Mutant(
        DRAW,
        "        found += count\n",
        "        found = count\n",
        "what a tile gathers overwrites what those before it did",
        DRAW_TESTS,
        "sorted",
    ),
)
