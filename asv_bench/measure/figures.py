"""The figures that a life left: in a JSON file, and in what it printed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any, TypeVar

from asv_bench.errors import MeasurementFailed
from asv_bench.measure.samples import Absence
from asv_bench.output.stored_json import count, decoded, figure, number, shown
from asv_bench.subjects.metrics import CheckTable, MetricTable, Requests

T = TypeVar("T")
_INDEX = re.compile("[0-9]{1,9}")
RESULT_LENGTH = 2**14
"""Characters of a result that are kept; of a longer one a hash of all follows."""


class NoFigure(MeasurementFailed):
    """A life left something that is no figure; the message is a clause."""


@dataclass(slots=True)
class Figures:
    """Values by metric, one for each window, and why other metrics have none."""

    values: dict[str, tuple[float, ...]] = field(default_factory=dict)
    absences: dict[str, Absence] = field(default_factory=dict)
    results: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of checks for equal results: as JSON, one for each window."""
    taken: dict[str, float] = field(default_factory=dict)
    """What counts of a metric, where it is not made of its windows."""
    span: tuple[float, float] | None = None
    """When the life measured, in seconds of the monotonic clock; None: all the time."""

    @classmethod
    def of_windows(cls, windows: Sequence[Figures]) -> Figures:
        """Those of all windows of a life; a metric that one window lacks and others have failed."""
        joined = cls(taken={name: value for one in windows for name, value in one.taken.items()})
        for name in dict.fromkeys(name for one in windows for name in (*one.values, *one.absences)):
            lacking = [at for at, one in enumerate(windows) if name in one.absences]
            if not lacking:
                joined.values[name] = tuple(
                    value for one in windows for value in one.values.get(name, ())
                )
                joined.results[name] = tuple(
                    text for one in windows for text in one.results.get(name, ())
                )
                continue
            absence = windows[lacking[0]].absences[name]
            if len(lacking) < len(windows):
                absence = Absence(f"in window {lacking[0] + 1} {absence.reason}", has_failed=True)
            joined.absences[name] = absence
        return joined

    def at(self, point: str) -> Figures:
        """The same, called by a point of load as well, if it has a name."""
        end = f"@{point}" if point else ""

        def named(told: Mapping[str, T]) -> dict[str, T]:
            return {name + end: one for name, one in told.items()}

        return Figures(named(self.values), named(self.absences), named(self.results))

    def value(self, name: str, take: str) -> float:
        """What counts of a metric that it has, as `[metrics.NAME] take` names it."""
        if name in self.taken:
            return self.taken[name]
        values = self.values[name]
        if take.startswith("p"):
            ranks = quantiles(values, n=100, method="inclusive") if values[1:] else values * 99
            return ranks[int(take[1:]) - 1]
        takes: dict[str, Callable[[Sequence[float]], float]] = {"min": min, "mean": fmean}
        return takes.get(take, median)(values)


class _Nothing(NoFigure):
    """The life left nothing at all."""


@dataclass(frozen=True)
class Left:
    """What one life left, or one run of a client."""

    result: Path
    """Where it was to leave its JSON: one value, or one on each line, of which the last is
    taken."""
    said: str  # what it printed

    def figures(self, tables: Mapping[str, MetricTable | CheckTable]) -> Figures:
        """The declared metrics and checks, by name."""
        figures = Figures()
        for name, table in tables.items():
            try:
                if table.path:
                    found, lacking = self._values(table.path), f"its JSON has no {table.path}."
                else:
                    found = re.findall(table.regex, self.said, re.MULTILINE)
                    lacking = f"it printed nothing that {table.regex!r} finds."
                if not found:
                    raise _Nothing(lacking)
                if isinstance(table, CheckTable) and table.must == "equal":
                    figures.values[name] = (1.0,)
                    figures.results[name] = (_result(found[0] if table.path else found),)
                    continue
                found = found[0] if table.path and isinstance(found[0], list) else found
                if not found:
                    raise _Nothing(lacking)
                figures.values[name] = tuple(_figure(value, table) for value in found)
            except NoFigure as error:
                has_failed = not isinstance(error, _Nothing)
                figures.absences[name] = Absence(str(error), has_failed)
        return figures

    def served(self, requests: Requests) -> tuple[int | None, int | None]:
        """How many requests of a client were completed, and how many failed; None: it says not.

        Raises NoFigure where it gives a count that is none.
        """
        try:
            errors = self._at(requests.errors)
        except NoFigure:  # which the metrics tell
            return None, None
        completed, failed = self._count(requests.completed), self._count(requests.failed)
        printed = re.findall(requests.printed, self.said)[-1:] if requests.printed else []
        asked = max(self._count(requests.asked) or 0, len(errors), *map(int, printed))
        if failed is None and completed is not None and asked:
            failed = max(0, asked - completed)
        told = sum(map(bool, errors))
        return completed, max(failed or 0, told) if told else failed

    def _count(self, paths: tuple[str, ...]) -> int | None:
        """What stands at the first of some paths that there is."""
        found = [value for path in paths for value in self._at(path) if value is not None]
        try:
            return int(count(found[0])) if found else None
        except ValueError as error:
            raise NoFigure(f"{error} of requests.") from None

    def _at(self, path: str) -> list[Any]:
        """The values at a path of keys and indices with dots between; nothing where it is none."""
        content = self._content
        found: Any = next(_found(content, path), []) if path else []
        return found if isinstance(found, list) else [found]

    def _values(self, path: str) -> list[Any]:
        """What stands at a path, as the one value of a list; nothing where it is none."""
        return list(islice(_found(self._content, path), 1))

    @cached_property
    def _content(self) -> Any:
        if not self.result.is_file():
            raise _Nothing("it left no file at $KVTRAIL_RESULT.")
        try:
            content = self.result.read_bytes().strip()
        except OSError as error:
            raise NoFigure(f"$KVTRAIL_RESULT cannot be read: {error.strerror}.") from None
        if not content:
            raise _Nothing("the file that it left at $KVTRAIL_RESULT is empty.")
        # Lines end at a line feed only: a text within JSON may hold what else ends lines.
        for part in (content, content.rpartition(b"\n")[2]):
            try:
                return decoded(part, "replace")
            except ValueError as error:
                reason = error
        raise NoFigure(f"what it left at $KVTRAIL_RESULT is no JSON: {reason}.")


def _found(content: Any, path: str) -> Iterator[Any]:
    """What is at a path: of keys with dots of their own, the longest that leads there first."""
    key, _, rest = path.partition(".")
    if not path:
        yield content
    elif isinstance(content, dict):
        keys = (key for key in content if f"{path}.".startswith(f"{key}."))
        for key in sorted(keys, key=len, reverse=True):
            yield from _found(content[key], path[len(key) + 1 :])
    elif isinstance(content, list) and _INDEX.fullmatch(key) and int(key) < len(content):
        yield from _found(content[int(key)], rest)


def _figure(value: Any, table: MetricTable | CheckTable) -> float:
    if isinstance(table, CheckTable):
        try:
            return table.metric("").figure(number(value))
        except ValueError as error:
            raise NoFigure(f"{error}, as its check wants.") from None
    try:
        return figure(value)
    except ValueError:
        raise NoFigure(
            f"it gave {shown(value)}, and only positive figures can be compared."
        ) from None


def _result(value: Any) -> str:
    """A result as JSON, which two equal results have alike."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(text) <= RESULT_LENGTH:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{text[:RESULT_LENGTH]}... ({len(text)} characters, sha256 {digest})"
