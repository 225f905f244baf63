"""Where programs that people measure with leave their figures: presets, by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from asv_bench.subjects.metrics import MetricTable, Requests

MISSING: Any = object()
"""What stands at a path where there is nothing."""
_INDEX = re.compile("[0-9]{1,9}")
_UNITS = {"second": "seconds", "byte": "bytes"}
"""What kvtrail calls units that pyperf calls otherwise."""
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
"""Units of which a program may choose another at each commit."""


class Layout(msgspec.Struct, frozen=True):
    """Where a file lists benchmarks; entries of one name are windows of it.

    Paths begin at an entry, or else at the whole file.
    """

    each: str  # the path of the entries
    name: dict[str, str]  # paths of its parts, by what stands before them
    values: tuple[str, ...]  # the first that there are
    unit: str = "seconds"
    unit_at: str = ""  # where an entry says another
    better: Literal["lower", "higher"] = "lower"
    only: tuple[str, str] = ("", "")  # a key, and its value in the entries that count
    apart: tuple[str, ...] = ()  # keys that tell entries of one name apart, where they differ

    def listed(self, content: Any) -> Iterator[tuple[MetricTable, list[Any]]]:
        """The benchmarks that a file lists so, with their values."""
        (key, wanted), entries = self.only, _as_list(at(content, self.each))
        entries = [
            one
            for one in entries
            if isinstance(one, dict) and one.get(key, wanted) == wanted
            if _as_list(at(one, *self.values))
        ]
        called = [self._called(one, content) for one in entries]
        often, groups = Counter(called), dict[str, list[Any]]()
        kinds = {key: len({str(one.get(key)) for one in entries}) for key in self.apart}
        for one, name in zip(entries, called, strict=True):
            apart = [f"{key}={one.get(key)}" for key in kinds if kinds[key] > 1 < often[name]]
            groups.setdefault(" ".join([name, *apart]), []).append(one)
        for name, group in groups.items():
            said = self._said(group[0], content, self.unit_at) if self.unit_at else MISSING
            unit = self.unit if said is MISSING else _UNITS.get(str(said), str(said))
            values = [value for one in group for value in _as_list(at(one, *self.values))]
            if said is not MISSING and unit in _SECONDS:
                factor, unit = _SECONDS[unit], "seconds"
                is_number = [type(one) in (int, float) and abs(one) < 1e99 for one in values]
                pairs = zip(values, is_number, strict=True)
                values = [one * factor if is_one else one for one, is_one in pairs]
            yield MetricTable(name, unit=unit, better=self.better), values

    def _called(self, entry: Any, content: Any) -> str:
        said = {one: self._said(entry, content, path) for one, path in self.name.items()}
        parts = [f"{before}{part}" for before, part in said.items() if part and part is not MISSING]
        return "".join(parts).strip("+ ") or "benchmark"

    @staticmethod
    def _said(entry: Any, content: Any, path: str) -> Any:
        found = at(entry, path)
        return at(content, path) if found is MISSING else found


class Preset(msgspec.Struct, frozen=True):
    """What is known of the files that one program leaves."""

    metrics: dict[str, MetricTable] = {}
    requests: Requests | None = None  # of a client that asks servers
    layouts: tuple[Layout, ...] = ()  # of a program that lists benchmarks, each of them a metric
    # For `init`: what a script holds that measures by it, and how such are run, also several.
    holds: str = ""
    line: str = ""
    takes_many: bool = False

    def benchmarks(self, content: Any) -> dict[str, tuple[MetricTable, list[Any]]]:
        """The benchmarks that a file lists, by name; an earlier layout wins."""
        found = (pair for layout in self.layouts[::-1] for pair in layout.listed(content))
        return {place.path: (place, values) for place, values in found}


class _Data(msgspec.Struct):
    """The file beside this one."""

    presets: dict[str, Preset]
    cell: dict[str, tuple[str, ...]]
    about: dict[str, tuple[str, ...]]
    builds: dict[str, str]


_DATA = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Data)
PRESETS, CELL, ABOUT, BUILDS = _DATA.presets, _DATA.cell, _DATA.about, _DATA.builds
"""Presets by name; what files of one cell have in common, and which numbers of theirs are near; and
how commits are built where such a file lies, the first that does."""


def at(content: Any, *paths: str) -> Any:
    """What is at the first of some paths of keys and indices; `MISSING` where there is nothing.

    A key may have dots of its own: the longest that leads there wins. A `*` means all that is
    there, in one list.
    """
    return next((one for path in paths for one in _found(content, path)), MISSING)


def _found(content: Any, path: str) -> Iterator[Any]:
    key, _, rest = path.partition(".")
    if not path:
        yield content
    elif key == "*" and isinstance(content, dict | list):
        inside = content.values() if isinstance(content, dict) else content
        if found := [one for each in inside for one in _as_list(at(each, rest))]:
            yield found
    elif isinstance(content, dict):
        keys = (key for key in content if f"{path}.".startswith(f"{key}."))
        for key in sorted(keys, key=len, reverse=True):
            yield from _found(content[key], path[len(key) + 1 :])
    elif isinstance(content, list) and _INDEX.fullmatch(key) and int(key) < len(content):
        yield from _found(content[int(key)], rest)


def _as_list(found: Any) -> list[Any]:
    return [] if found is MISSING else found if isinstance(found, list) else [found]
