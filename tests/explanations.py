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
    return Effect("tpot_ms", verdict, effect, effect, is_on_gpu, "tpot_ms: slower")


def explanation_of(clues: Iterable[Clue], **known: Any) -> Explanation:
    """What explains a change, by these clues."""
    return Explanation(Commit("a"), Commit("b"), clues=list(clues), **known)
