"""What is looked at beside the figures of two ends: checks of results, and controls.

A check says whether a head computes what its base computes, as measured lives leave it. A control
is a metric that no change can move: where one moves, something else changed as well.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np

from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import MeasurementFailed
from asv_bench.git.repository import short
from asv_bench.measure.samples import Metric, Pair
from asv_bench.output.stored_json import shown
from asv_bench.output.table import percentage

_BESIDE = 20
"""Characters of a text that are shown before the first that differs."""
_LACKS = object()
_FEWEST, _AROUND = 12, 4
"""Lives in which a step can be seen, and those on either side of it."""


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """What is known of one result of two commits or labels.

    The verdict is `SAME`, `DIFFERS`, `UNSTABLE` where the base differs from itself, or
    `INCONCLUSIVE`.
    """

    check: str
    base: str  # a full hash, or a label
    head: str
    verdict: Verdict
    what: str  # the verdict in words, and what differed first, or by how much
    lives: int = 0  # of either end

    @property
    def sentence(self) -> str:
        """The answer, for people."""
        return f"{self.check}: {self.what}"


def checks_in(results: Mapping[str, Any], ends: tuple[str, str]) -> tuple[CheckAnswer, ...]:
    """What the results of a record say of checks of two commits or labels."""
    found = [one for one in results.get("checks") or () if (one["base"], one["head"]) == ends]
    return msgspec.convert(found, tuple[CheckAnswer, ...])


_WORDS = {
    Verdict.DIFFERS: "other result",
    Verdict.UNSTABLE: "unstable result",
    Verdict.INCONCLUSIVE: "result not told",
    Verdict.SAME: "same result",
}
"""The worst first."""
_OF_NUMBERS = {Verdict.SLOWER: "worse", Verdict.EQUIVALENT: "not worse", Verdict.FASTER: "better"}


def in_words(answers: Iterable[CheckAnswer]) -> str:
    """What all answers come to, such as "same result"; "" without any."""
    verdicts = {one.verdict for one in answers}
    return next((word for verdict, word in _WORDS.items() if verdict in verdicts), "")


def answer_of(
    metric: Metric,
    name: str,  # of the check, and of the contrast where there are several
    ends: tuple[str, str],
    pairs: Sequence[Pair],
    answer: Comparison | None,  # of results that are numbers, or why there are none
) -> CheckAnswer:
    """What the pairs tell of a check."""
    if metric.tolerance is not None and answer is not None and answer.effect is not None:
        return CheckAnswer(name, *ends, *_of_numbers(metric, answer), len(pairs))
    verdict, what = _of_results(pairs)
    if answer is not None and answer.reason:
        is_gone = answer.reason.startswith(f"commit {short(ends[1])}: ")
        verdict, what = Verdict.DIFFERS if is_gone else Verdict.INCONCLUSIVE, answer.reason
    return CheckAnswer(name, *ends, verdict, f"{_WORDS[verdict]}, {what}", len(pairs))


def _of_numbers(metric: Metric, answer: Comparison) -> tuple[Verdict, str]:
    assert answer.effect is not None
    before, after = (metric.result(one or 1.0) for one in (answer.base_value, answer.head_value))
    what = f"{_OF_NUMBERS.get(answer.verdict, 'whether it is worse is not told')}, "
    what += f"{before:.6g} → {after:.6g} ({metric.result(1 + answer.effect):+.3g}"
    if answer.interval is not None:
        low, high = (f"{metric.result(1 + bound):+.3g}" for bound in answer.interval)
        what += f", {low} to {high}"
    what += f"; {metric.tolerance:g} is tolerated)"
    if answer.verdict is Verdict.SLOWER:
        return Verdict.DIFFERS, what
    return Verdict.SAME if answer.verdict in _OF_NUMBERS else Verdict.INCONCLUSIVE, what


def _of_results(pairs: Sequence[Pair]) -> tuple[Verdict, str]:
    bases, heads = ([getattr(pair, end).results for pair in pairs] for end in ("base", "head"))
    lives, distinct = len(pairs), list(dict.fromkeys(bases))
    if len(distinct) > 1:
        differs = first_difference(*distinct[:2])
        return Verdict.UNSTABLE, f"{lives} lives of the base gave {len(distinct)}: {differs}"
    others = [one for one in heads if one not in distinct]
    if not pairs:
        return Verdict.INCONCLUSIVE, "as no pair was measured"
    if not others:
        return Verdict.SAME, f"in {lives} lives of either end"
    differs = f"{first_difference(bases[0], others[0])} in {len(others)} of {lives} lives"
    # A single life of the base may differ from the next.
    return (Verdict.DIFFERS if lives > 1 else Verdict.INCONCLUSIVE), differs


def first_difference(base: Sequence[str], head: Sequence[str]) -> str:
    """Where results of windows, as JSON, differ first, as a clause."""
    for number, (before, after) in enumerate(zip_longest(base, head), 1):
        if before == after:
            continue
        where = f"in window {number} " if len(base) > 1 or len(head) > 1 else ""
        if before is None or after is None:
            return f"{where}there is one for one end only"
        try:
            values = json.loads(before), json.loads(after)
        except ValueError:  # they are too long to be kept whole
            at = next(_unlike(before, after), 0)
            return f"{where}character {at + 1} of the JSON and what follows"
        path, old, new = next(_differences(*values, ""))
        return f"{where}{path.lstrip('.') or 'it'} was {_told(old, new)} and is {_told(new, old)}"
    return "nothing"


def _differences(base: Any, head: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(base, dict) and isinstance(head, dict):
        for key in sorted(base.keys() | head.keys()):
            old, new = base.get(key, _LACKS), head.get(key, _LACKS)
            yield from _differences(old, new, f"{path}.{key}")
    elif isinstance(base, list) and isinstance(head, list):
        for number, (old, new) in enumerate(zip_longest(base, head, fillvalue=_LACKS)):
            yield from _differences(old, new, f"{path}[{number}]")
    elif repr(base) != repr(head):  # 0.0 is not -0.0, and what is not a number is itself
        yield path, base, head


def _unlike(base: str, head: str) -> Iterator[int]:
    """The places where two texts differ."""
    return (at for at, (old, new) in enumerate(zip_longest(base, head)) if old != new)


def _told(value: Any, other: Any) -> str:
    """A value as a sentence quotes it; of a long text the part that differs from the other."""
    if value is _LACKS:
        return "missing"
    if isinstance(value, str) and isinstance(other, str):
        at = next(_unlike(value, other), 0)
        value = f"...{value[at - _BESIDE :]}" if at > 2 * _BESIDE else value
    return shown(value)


class ControlMoved(MeasurementFailed):
    """A search ends, as a control moved; the message says which, and how."""


def why_void(control: Comparison, pairs: Sequence[Pair], least: float) -> str:
    """How a control moved, by at least so much, and what follows; "" where it did not.

    It moves between the ends, by its own verdict, or in the middle of the session, from one life of
    a device to the next, whatever they are of.
    """
    moved = ""
    if control.verdict in (Verdict.SLOWER, Verdict.FASTER):
        moved = f"{percentage(control.effect or 0, 2, signed=True)} between the ends"
    for device in dict.fromkeys(pair.base.device for pair in pairs):
        lives = [one for pair in pairs for one in (pair.base, pair.head) if one.device == device]
        lives.sort(key=lambda one: one.started_at)
        step, place = _step([math.log(one.value) for one in lives])
        if not moved and abs(step) >= math.log1p(least):
            size = percentage(math.expm1(step), 2, signed=True)
            moved = f"{size} in the middle of the session, after {place} of {len(lives)} lives"
    if not moved:
        return ""
    return (
        f"{moved}. No change moves it, so the machine or what runs on it changed, and every "
        f"verdict of this session is void."
    )


def _step(values: Sequence[float]) -> tuple[float, int]:
    """The widest step from all values before a place to all after it, and the place.

    Both sides lie apart by at least as much as either is wide, which a drift does not bring about.
    """
    found = 0.0, 0
    for place in range(_AROUND, len(values) - _AROUND + 1) if len(values) >= _FEWEST else ():
        before, after = values[:place], values[place:]
        gap = max(min(after) - max(before), min(before) - max(after))
        shift = statistics.median(after) - statistics.median(before)
        if gap > 0 and gap >= max(np.ptp(before), np.ptp(after)) and abs(shift) > abs(found[0]):
            found = shift, place
    return found
