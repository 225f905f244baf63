"""Which figures were measured in one session, and beside which reference.

A machine drifts, and its driver changes, between sessions. asv stores when each figure was
measured, which tells sessions apart. The ratio to a reference commit measured in the same session
is free of what the session added. asv has no place for it, so such a session leaves a file.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from asv_bench.history.asv_results import Figure, Series
from asv_bench.output.record import write_json
from asv_bench.output.stored_json import Moment, Positive, Text, UnreadableFile, read_stored

Ratios: TypeAlias = dict[tuple[Series, str, int], tuple[str, float]]
"""By series, commit and time of measurement in milliseconds: the reference, and its figure."""

APART_MS = 15 * 60 * 1000
"""A longer time in which no benchmark started lies between two sessions."""


class SessionStarts(NamedTuple):
    """When the sessions of a machine began, in milliseconds since 1970, ascending."""

    begun_ms: tuple[int, ...]

    def session_of(self, figure: Figure) -> int:
        """The number of the session that measured a figure, from 1 on."""
        return bisect_right(self.begun_ms, figure.started_ms)


def sessions_of(figures: Iterable[Figure]) -> SessionStarts:
    """The sessions in which a machine measured some figures, whatever their series.

    asv stores when the last round of a figure started, and the last rounds of a session follow one
    another.
    """
    starts = sorted({figure.started_ms for figure in figures})
    later = [second for first, second in pairwise(starts) if second - first > APART_MS]
    return SessionStarts((*starts[:1], *later))


class _RelatedFigure(msgspec.Struct):
    benchmark: Text
    params: tuple[tuple[Text, str], ...]
    commit: Text
    started_ms: Moment
    value: float
    reference_value: Positive
    ratio: float


class _RelatedSession(msgspec.Struct):
    """One file: what was measured beside `reference`, a full hash or a label."""

    schema: Literal[1]
    reference: Text
    figures: list[_RelatedFigure]


def write_session(folder: Path, reference: str, figures: Sequence[Figure]) -> Path | None:
    """Keep what one session measured on one machine beside its reference; returns the file.

    `reference` is the full hash of a commit, or a label, measured in the same, interleaved rounds.
    None where it gave no figure to divide by.
    """
    given = {figure: figure.median for figure in figures if figure.samples and figure.median > 0}
    divisors = {one.series: value for one, value in given.items() if one.commit == reference}
    rows = [
        _RelatedFigure(
            one.series.benchmark,
            one.series.params,
            one.commit,
            one.started_ms,
            value,
            divisor,
            value / divisor,
        )
        for one, value in given.items()
        if (divisor := divisors.get(one.series))
    ]
    if not rows:
        return None
    begun = min(figure.started_ms for figure in figures)
    name = re.sub(r"[^\w.-]", "-", reference)[:8]
    path = folder / figures[0].machine / f"{begun}-{name}.json"
    write_json(path, msgspec.to_builtins(_RelatedSession(1, reference, rows)), indent=1)
    return path


def read_ratios(folder: Path, machine: str, complaints: list[str]) -> Ratios:
    """What the sessions of one machine measured beside references.

    A file that is not one of ours is left out with a sentence in `complaints`.
    """
    ratios: Ratios = {}
    for path in sorted((folder / machine).glob("*.json")):
        try:
            session = read_stored(path, "a session of history", _RelatedSession)
        except UnreadableFile as error:
            complaints.append(f"{error} It is left out.")
            continue
        for row in session.figures:
            key = Series(row.benchmark, row.params), row.commit, int(row.started_ms)
            ratios[key] = session.reference, row.reference_value
    return ratios
