"""Explanations as tests want them: of two ends whose commits do not matter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from asv_bench.compare.verdict import Verdict
from asv_bench.explain.clue import Clue
from asv_bench.explain.explanation import Effect, Explanation
from asv_bench.git.repository import Commit


def slower(
    effect: float = 0.1, *, verdict: Verdict = Verdict.SLOWER, is_on_gpu: bool = True
) -> Effect:
    """A change of the time of a token that a comparison measured."""
    return Effect(
        *("tpot_ms", "ms", verdict, effect, None, 6),
        higher_is_better=False,
        is_on_gpu=is_on_gpu,
        machine="a machine",
        started="2026-01-01",
    )


def explanation_of(clues: Iterable[Clue], **known: Any) -> Explanation:
    """What explains a change, by these clues."""
    return Explanation(Commit("a"), Commit("b"), clues=list(clues), **known)
