"""Trials of bisect as a table, and the page of the records that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from asv_bench.compare.plan import DEFAULT_MARGIN
from asv_bench.errors import Refused
from asv_bench.output.console import add_figure_columns
from asv_bench.output.record import SCHEMA
from asv_bench.output.stored_json import UnreadableFile, read_stored, require_schema
from asv_bench.output.table import MISSING, percentage
from asv_bench.output.tables import markdown

Json = Mapping[str, Any]

RECORDS = "bisect-trials-*.json"
PAGE = "bisect-trials.md"

_INTRODUCTION = """# Bisection of planted slowdowns

Each range is a scratch clone with harmless commits and one that makes a decode step slower by a
known time, or none. Made by `python -m asv_bench.lab.calibration.bisect_trials --render` from the
records beside it.
"""


def trial_table(trials: Sequence[Json]) -> Table:
    """A row for each trial, as `Trial.to_json` has them."""
    table = Table(
        title="bisection of planted slowdowns",
        title_justify="left",
        caption="Right: it names the culprit, or says that there is none where none was planted.",
    )
    table.add_column("trial", overflow="fold")
    add_figure_columns(table, "planted", "measured", "bisect", "pairs", "seconds")
    add_figure_columns(table, "asv find", "its seconds")
    for trial in trials:
        place, planted, measured = trial["place"], trial["planted"], trial["measured"]
        theirs = trial["asv_find"]
        table.add_row(
            f"{'nothing planted' if place is None else f'commit {place}'} of {trial['commits']}",
            MISSING if planted is None else percentage(planted, 1, signed=True),
            MISSING if measured is None else percentage(measured, 2, signed=True),
            _said(trial["bisect_right"], trial["bisect"]),
            str(trial["pairs"]),
            f"{trial['bisect']['seconds']:.0f}",
            MISSING if theirs is None else _said(trial["asv_find_right"], theirs),
            MISSING if theirs is None else f"{theirs['seconds']:.0f}",
        )
    return table


def write_page(folder: Path, complaints: list[str] | None = None) -> Path:
    """Write the page of all records of trials in `folder`; returns its path.

    Records that cannot be read are left out, and `complaints` gets a sentence for each.

    Raises
    ------
    Refused
        If there is no record.
    """
    paths = sorted(folder.glob(RECORDS), key=lambda path: path.stem)
    if not paths:
        raise Refused(f"{folder} holds no {RECORDS}; measure one with --json.")
    parts = [_INTRODUCTION]
    for path in paths:
        try:
            parts.append(read_stored(path, "a record of trials", partial(_section, path)))
        except UnreadableFile as error:
            if complaints is not None:
                complaints.append(f"{error} It is left out.")
    page = folder / PAGE
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


def _section(path: Path, record: Json) -> str:
    require_schema(record, SCHEMA)
    machine, settings, results = record["machine"], record["settings"], record["results"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores"
    count = len(settings["devices"])
    margin = settings.get("margin", 100 * DEFAULT_MARGIN)
    table = trial_table(record["samples"])
    table.title = None
    return (
        f"## {path.stem.removeprefix('bisect-trials-')}\n\n"
        f"{', '.join(settings['benchmark'])}, {1e3 * results['step_s']:.3f} ms, on "
        f"{f'{count} ' if count > 1 else ''}{where}; commit {record['commit'][:9]}, "
        f"{record['started'][:10]}; a difference of {margin:g} % matters.\n\n{markdown(table)}"
        f"{_what_is_missing(record)}"
    )


def _what_is_missing(record: Json) -> str:
    """Trials that the command was to make and that have no row, and why, or nothing."""
    settings = record["settings"]
    places = [trial["place"] for trial in record["samples"]]
    nulls = places.count(None)
    missing = {
        "with a planted commit": settings["positions"] - (len(places) - nulls),
        "without one": settings["nulls"] - nulls,
    }
    lacking = [f"{count} {what}" for what, count in missing.items() if count]
    notes = "".join(f"\n{note}\n" for note in record["notes"])
    if not lacking:
        return notes
    return f"\nTrials that were asked for and are not here: {', '.join(lacking)}.\n{notes}"


def _said(is_right: bool, answer: Json) -> str:
    return f"{'right' if is_right else 'wrong'}, {answer['outcome']}"
