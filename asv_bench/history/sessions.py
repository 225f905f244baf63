"""Which figures were measured in one session, beside which reference.

asv keeps one result for each commit, whenever that was measured. A machine drifts, and its driver
changes, between sessions; the ratio to a reference commit measured in the same session is free of
both. asv has no place for it, so each session leaves a file of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from asv_bench.history.asv_results import Figure, Series
from asv_bench.output.record import write_json

Ratios = dict[tuple[Series, str, int], tuple[str, float]]
"""By series, commit and time of measurement in milliseconds: the reference, and its figure."""

SCHEMA = 1
SESSIONS = "asv-sessions"
"""The folder below reports."""


def write_session(folder: Path, reference: str, figures: Sequence[Figure]) -> Path | None:
    """Keep what one run of asv measured beside its reference; returns the file.

    Parameters
    ----------
    folder
        Where sessions are kept, a folder in it for each machine.
    reference
        Full hash of a commit that was measured in the same, interleaved rounds.
    figures
        Everything that the run measured on one machine, the reference's figures included.

    Returns
    -------
    Path
        None where the reference gave no figure to divide by.
    """
    of_reference = {
        figure.series: figure.median
        for figure in figures
        if figure.commit == reference and not figure.failed and figure.median > 0
    }
    rows = [
        {
            "benchmark": figure.series.benchmark,
            "params": [list(pair) for pair in figure.series.params],
            "commit": figure.commit,
            "started_ms": figure.started_ms,
            "value": figure.median,
            "reference_value": of_reference[figure.series],
            "ratio": figure.median / of_reference[figure.series],
        }
        for figure in figures
        if figure.series in of_reference and not figure.failed
    ]
    if not rows:
        return None
    begun = min(figure.started_ms for figure in figures)
    path = folder / figures[0].machine / f"{begun}-{reference[:8]}.json"
    write_json(path, {"schema": SCHEMA, "reference": reference, "figures": rows}, indent=1)
    return path


def read_ratios(folder: Path, machine: str) -> Ratios:
    """What the sessions of one machine measured beside references.

    Raises
    ------
    ValueError
        If a file is not one of ours.
    """
    ratios: Ratios = {}
    for path in sorted((folder / machine).glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            for row in content["figures"]:
                series = Series(
                    row["benchmark"], tuple((name, value) for name, value in row["params"])
                )
                key = (series, row["commit"], int(row["started_ms"]))
                ratios[key] = (content["reference"], float(row["reference_value"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a session of history: {error!r}") from error
    return ratios
