"""Files of figures that somebody measured, and whether they are of one cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asv_bench.errors import Refused
from asv_bench.measure.figures import Left, NoFigure
from asv_bench.measure.samples import Absence, Metric
from asv_bench.output.record import without_folders
from asv_bench.output.stored_json import shown
from asv_bench.output.table import percentage
from asv_bench.subjects.metrics import MetricTable
from asv_bench.subjects.presets import ABOUT, CELL, MISSING, PRESETS, at

_NEARLY = 1.1
_ONE_CELL = "Files that are judged are of one cell: the same model, load, machine and GPU."


class ResultFiles:
    """The files of both sides, whose cells are alike; `base` and `head` are their names.

    `metrics` are those that were asked for; without any those of the preset, or where none is named
    of the one that knows most of the first file. Raises Refused where a file is none, where two
    hold the same, and where they are of unlike cells.
    """

    def __init__(
        self,
        base: Sequence[str],
        head: Sequence[str],
        preset: str = "",
        metrics: Mapping[str, MetricTable] | None = None,
    ) -> None:
        if preset and preset not in PRESETS:
            raise Refused(f"--preset is {preset!r}; there are {', '.join(PRESETS)}.")
        known = {}
        for one in PRESETS:
            left = Left(Path(base[0]), preset=one, name=base[0])
            known[one] = len(left.figures({**PRESETS[one].metrics, **left.listed}).values)
        best = max(known, key=known.__getitem__)
        self.preset = preset or (best if known[best] else "")
        if not (self.preset or metrics):
            raise Refused(
                f"no preset knows {base[0]}; name a figure with --metric NAME=PATH, or with "
                f"--preset one of {', '.join(PRESETS)}."
            )
        every = [Left(Path(name), preset=self.preset, name=name) for name in (*base, *head)]
        self._require_apart(every)
        self.cell = self._cell(every)
        self.share_failed = self._share_failed(every)
        self._sides = {"base": every[: len(base)], "head": every[len(base) :]}
        listed = {name: place for one in every for name, place in one.listed.items()}
        self._tables = metrics or {**PRESETS[self.preset].metrics, **listed}
        self._of = {one.name: one.figures(self._tables) for one in every}
        there = {name for one in self._of.values() for name in one.values}
        if not metrics and there:
            # A program writes more or less as it is asked to.
            self._tables = {name: one for name, one in self._tables.items() if name in there}
        self.figures: dict[Metric, tuple[list[float], list[float]]] = {}
        self.absences: dict[Metric, Absence] = {}
        for name, table in self._tables.items():
            metric = Metric(name, table.unit, table.better)
            reasons = [(one.name, self._of[one.name].absences.get(name)) for one in every]
            absent = [(file, reason) for file, reason in reasons if reason]
            if absent:
                gone = {file for file, _ in absent}
                is_whole = any(gone >= {one.name for one in side} for side in self._sides.values())
                has_failed = absent[0][1].has_failed or not is_whole
                self.absences[metric] = Absence("{}: {.reason}".format(*absent[0]), has_failed)
            else:
                base_values, head_values = (
                    [self._of[one.name].value(name, table.take) for one in side]
                    for side in self._sides.values()
                )
                self.figures[metric] = base_values, head_values

    def samples(self) -> list[dict[str, Any]]:
        """Every figure of every file, for the record."""
        return [
            {
                "side": side,
                "file": without_folders(one.name),
                "benchmark": metric,
                "value": self._of[one.name].value(metric, self._tables[metric].take),
                "samples": list(values),
            }
            for side, files in self._sides.items()
            for one in files
            for metric, values in self._of[one.name].values.items()
            if metric in self._tables
        ]

    def doubts(self) -> Iterator[str]:
        """What the files do not say, or say of all of them."""
        if not self.cell.keys() & {"GPU", "CPU"}:
            yield "The files do not say on which machine or GPU they were measured: it must be one."
        if self.share_failed:
            share = percentage(self.share_failed, 1)
            yield f"In every file {share} of the requests failed, and figures are of the others."

    def _require_apart(self, every: Sequence[Left]) -> None:
        """Raise Refused where a file is none, or another holds the same."""
        seen: dict[str, str] = {}
        for one in every:
            try:
                text = repr(one.content)
            except NoFigure as error:
                raise Refused(str(error)) from None
            if text in seen:
                raise Refused(
                    f"{seen[text]} and {one.name} hold the same; each file is to be of its own run."
                )
            seen[text] = one.name

    def _cell(self, every: Sequence[Left]) -> dict[str, Any]:
        """What files say of their cell; Refused where they differ."""
        cell: dict[str, Any] = {}
        for word, paths in (*CELL.items(), *ABOUT.items()):
            said = [(one.name, at(one.content, *paths)) for one in every]
            known = [(name, _in_words(value)) for name, value in said if value is not MISSING]
            for name, value in known:
                first, other = known[0]
                if not (_is_near(value, other) if word in ABOUT else value == other):
                    raise Refused(
                        f"{name} is of another {word} than {first}: {shown(value)} in place of "
                        f"{shown(other)}. {_ONE_CELL}"
                    )
                cell[word] = other
        return cell

    def _share_failed(self, every: Sequence[Left]) -> float:
        """The share of requests that failed; Refused where it differs."""
        shares = []
        for one in every:
            try:
                completed, failed = one.served()
            except NoFigure as error:
                raise Refused(f"{one.name}: {error}") from None
            shares.append(failed / (failed + (completed or 0)) if failed else 0.0)
            if shares[-1] != shares[0]:
                raise Refused(
                    f"{one.name} has another share of failed requests than {every[0].name}: "
                    f"{percentage(shares[-1], 1)} in place of {percentage(shares[0], 1)}. Figures "
                    f"are of completed requests only. {_ONE_CELL}"
                )
        return shares[0]


def _in_words(value: Any) -> Any:
    """What a list says, each once: a file may name the GPU with every figure."""
    return ", ".join(sorted(set(map(str, value)))) if isinstance(value, list) else value


def _is_near(value: Any, other: Any) -> bool:
    try:
        return float(max(value, other)) <= _NEARLY * float(min(value, other))
    except (TypeError, ValueError):
        return bool(value == other)
