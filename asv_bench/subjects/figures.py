"""The figures that a life left: in a JSON file, and in what it printed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.process.samples import Absence
from asv_bench.subjects.subject_file import MetricTable


class NoFigure(MeasurementFailed):
    """A life left something that is no figure; the message is a clause."""


@dataclass(slots=True)
class Figures:
    """Values by metric, one for each window, and why other metrics have none."""

    values: dict[str, tuple[float, ...]] = field(default_factory=dict)
    absences: dict[str, Absence] = field(default_factory=dict)


def read_figures(metrics: Mapping[str, MetricTable], result: Path, said: str) -> Figures:
    """The declared metrics of one life, or of one run of a client.

    Parameters
    ----------
    metrics
        By name.
    result
        Where the life was to leave its JSON: one value, or one on each line, of which the last is
        taken.
    said
        What it printed.
    """
    figures = Figures()
    content: Any = None
    trouble: NoFigure | None = None
    if any(metric.path for metric in metrics.values()):
        try:
            content = _content(result)
        except NoFigure as error:
            trouble = error
    for name, metric in metrics.items():
        try:
            if metric.path and trouble:
                raise trouble
            found = _at(content, metric.path) if metric.path else _printed(metric.regex, said)
            if not found:
                where = f"its JSON has no {metric.path}" if metric.path else "it printed nothing"
                regex = f" that {metric.regex!r} finds" if metric.regex else ""
                figures.absences[name] = Absence(f"{where}{regex}.", has_failed=False)
                continue
            figures.values[name] = tuple(_figure(value) for value in found)
        except NoFigure as error:
            figures.absences[name] = Absence(str(error), has_failed=not isinstance(error, _Nothing))
    return figures


class _Nothing(NoFigure):
    """The life left nothing at all."""


def _content(result: Path) -> Any:
    if not result.is_file():
        raise _Nothing("it left no file at $KVTRAIL_RESULT.")
    text = result.read_text(encoding="utf-8", errors="replace").strip()
    if not text:
        raise _Nothing("the file that it left at $KVTRAIL_RESULT is empty.")
    for part in (text, text.splitlines()[-1]):
        try:
            return json.loads(part)
        except ValueError as error:
            reason = error
    raise NoFigure(f"what it left at $KVTRAIL_RESULT is no JSON: {reason}.")


def _at(content: Any, path: str) -> list[Any]:
    """The values at a path of keys and indices with dots between; nothing where there is none."""
    rest = path
    while rest:
        key, _, rest = rest.partition(".")
        if isinstance(content, dict):
            # A key may have dots of its own: the longest that there is wins.
            joined = f"{key}.{rest}" if rest else key
            key = max(
                (one for one in content if f"{joined}.".startswith(f"{one}.")), key=len, default=""
            )
            if key not in content:
                return []
            content, rest = content[key], joined[len(key) + 1 :]
        elif isinstance(content, list) and key.isdecimal() and int(key) < len(content):
            content = content[int(key)]
        else:
            return []
    return content if isinstance(content, list) else [content]


def _printed(regex: str, said: str) -> list[str]:
    return [match for match in re.findall(regex, said, re.MULTILINE) if match]


def _figure(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise NoFigure(f"it gave {value!r}, and only positive figures can be compared.")
    return number
