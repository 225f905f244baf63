"""The figures that a life left: in a JSON file, and in what it printed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.measure.samples import Absence
from asv_bench.output.stored_json import count, decoded, figure, number, shown
from asv_bench.subjects.metrics import CheckTable, MetricTable
from asv_bench.subjects.presets import MISSING, PRESETS, at

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
    """Of checks for equal results, or of such as are scored: as JSON, one for each window."""
    taken: dict[str, float] = field(default_factory=dict)
    """What counts of a metric, where it is not made of its windows."""
    listed: dict[str, MetricTable] = field(default_factory=dict)
    """The benchmarks that a preset finds, each of which is a metric."""
    span: tuple[float, float] | None = None
    """When the life measured, in seconds of the monotonic clock; None: all the time."""

    @classmethod
    def of_windows(cls, windows: Mapping[str, Sequence[Figures]]) -> Figures:
        """Those of all windows of a life, by their point of load, which is "" where there is none.

        Metrics are called by the point as well. One that one window lacks and others have failed.
        Of results that are all the same one is kept.
        """
        joined = cls()
        for point, every in windows.items():
            for name in dict.fromkeys(one for of in every for one in (*of.values, *of.absences)):
                called = f"{name}@{point}" if point else name
                lacking = [at for at, one in enumerate(every) if name in one.absences]
                if not lacking:
                    joined.values[called] = sum((one.values.get(name, ()) for one in every), ())
                    results = sum((one.results.get(name, ()) for one in every), ())
                    joined.results[called] = results if len({*results}) > 1 else results[:1]
                    continue
                absence = every[lacking[0]].absences[name]
                if len(lacking) < len(every):
                    reason = f"in window {lacking[0] + 1} {absence.reason}"
                    absence = Absence(reason, has_failed=True)
                joined.absences[called] = absence
            joined.taken |= {name: value for one in every for name, value in one.taken.items()}
        return joined

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
    said: str = ""  # what it printed
    preset: str = ""
    """A name in `PRESETS`: whose benchmarks are metrics whose paths are their names."""
    name: str = ""  # of the file, where it is no life's

    def figures(self, tables: Mapping[str, MetricTable | CheckTable]) -> Figures:
        """The declared metrics and checks, by name."""
        figures = Figures(listed=self.listed)
        for name, table in tables.items():
            try:
                if table.path:
                    found, lacking = self._values(table.path), f"its JSON has no {table.path}."
                else:
                    found = re.findall(table.regex, self.said, re.MULTILINE)
                    lacking = f"it printed nothing that {table.regex!r} finds."
                if not found:
                    raise _Nothing(lacking)
                if isinstance(table, CheckTable) and (table.score or table.must == "equal"):
                    figures.values[name] = (1.0,)
                    figures.results[name] = (_result(found[0] if table.path else found, table),)
                    continue
                found = found[0] if table.path and isinstance(found[0], list) else found
                if not found:
                    raise _Nothing(lacking)
                figures.values[name] = tuple(_figure(value, table) for value in found)
            except NoFigure as error:
                has_failed = not isinstance(error, _Nothing)
                figures.absences[name] = Absence(str(error), has_failed)
        return figures

    def served(self) -> tuple[int | None, int | None]:
        """How many requests of a client were completed, and how many failed; None: it says not.

        Raises NoFigure where it gives a count that is none.
        """
        requests = PRESETS[self.preset].requests if self.preset else None
        if requests is None:
            return None, None
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
        found: Any = next(iter(self._values(path)), []) if path else []
        return found if isinstance(found, list) else [found]

    def _values(self, path: str) -> list[Any]:
        """What stands at a path, as the one value of a list; nothing where it is none."""
        if path in self._benchmarks:
            return [self._benchmarks[path][1]]
        found = at(self.content, path)
        return [] if found is MISSING else [found]

    @cached_property
    def _benchmarks(self) -> dict[str, tuple[MetricTable, list[Any]]]:
        try:
            return PRESETS[self.preset].benchmarks(self.content) if self.preset else {}
        except NoFigure:  # which the metrics tell
            return {}

    @property
    def listed(self) -> dict[str, MetricTable]:
        """The benchmarks that its preset finds in the file."""
        return {name: table for name, (table, _) in self._benchmarks.items()}

    @cached_property
    def content(self) -> Any:
        """The JSON that it left; NoFigure where it is none."""
        if not self.result.is_file():
            none = f"{self.name} is no file." if self.name else ""
            raise _Nothing(none or "it left no file at $KVTRAIL_RESULT.")
        what = self.name or "what it left at $KVTRAIL_RESULT"
        try:
            content = self.result.read_bytes().strip()
        except OSError as error:
            raise NoFigure(f"{what} cannot be read: {error.strerror}.") from None
        if not content:
            raise _Nothing(f"{what} is empty.")
        # Lines end at a line feed only: a text within JSON may hold what else ends lines.
        lines = content.split(b"\n")
        is_list = bool(self.preset and PRESETS[self.preset].layouts)
        for parts in ([content], lines if is_list else lines[-1:]):
            try:
                read = [decoded(part, "replace") for part in parts if part.strip()]
                return read if parts[1:] else read[0]
            except ValueError as error:
                reason = error
        raise NoFigure(f"{what} is no JSON: {reason}.")


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


def _result(value: Any, table: CheckTable) -> str:
    """A result as JSON, which two equal results have alike; whole where it is scored."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(text) <= RESULT_LENGTH or table.score:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{text[:RESULT_LENGTH]}... ({len(text)} characters, sha256 {digest})"
