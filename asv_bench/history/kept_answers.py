"""What `changes` found out by comparing, kept beside the histories for their pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from asv_bench.compare.confirmation import Standing
from asv_bench.history.asv_results import EnvironmentFacts, Series
from asv_bench.history.change_points import Change
from asv_bench.history.triage import Triaged
from asv_bench.output.record import write_json
from asv_bench.output.stored_json import UnreadableFile, read_stored, require_schema, text

SCHEMA = 1
ANSWERS = "asv-changes"
"""The folder beside asv's results."""


class KeptAnswer(msgspec.Struct, frozen=True):
    """What a change turned out to be: its standing, and sentences of the comparison's figures.

    `effect` and `interval` are as in `compare.verdict.Comparison`; None where nothing was measured.
    """

    standing: Standing
    effect: float | None
    interval: tuple[float, float] | None
    pairs: int
    reason: str


Answers = dict[tuple[Series, EnvironmentFacts, str], KeptAnswer]
"""By series, environment and the hash of the commit of the change; of one machine."""


def keep_answers(folder: Path, started: str, triaged: Sequence[Triaged]) -> None:
    """Write the changes that were compared, a file a machine; `started` tells runs apart.

    `started` is a time as ISO writes it, so that files in the order of their names are in the order
    of time.
    """
    by_machine: dict[str, list[dict[str, Any]]] = {}
    for entry in triaged:
        if entry.answer is not None:
            by_machine.setdefault(entry.change.machine, []).append(entry.to_json())
    moment = started.replace(":", "").replace("-", "").split("+")[0]
    for machine, rows in by_machine.items():
        write_json(folder / machine / f"{moment}.json", {"schema": SCHEMA, "changes": rows})


def read_answers(folder: Path, machine: str, complaints: list[str]) -> Answers:
    """What was found out last about the changes of a machine.

    A file that is not one of ours is left out with a sentence in `complaints`.
    """
    answers: Answers = {}
    for path in sorted((folder / machine).glob("*.json")):
        try:
            answers |= read_stored(path, "a file of `changes`", _answers)
        except UnreadableFile as error:
            complaints.append(f"{error} It is left out.")
    return answers


def key_of(change: Change) -> tuple[Series, EnvironmentFacts, str]:
    """What the answer to a change is kept under."""
    return change.series, change.environment, change.commit.hash


def _answers(content: dict[str, Any]) -> Answers:
    require_schema(content, SCHEMA)
    answers: Answers = {}
    for row in content["changes"]:
        params, environment = (
            tuple((text(name), str(value)) for name, value in row[facts].items())
            for facts in ("params", "environment")
        )
        told = row["confirmation"] | {"standing": row["standing"]}
        told["pairs"] = told["pairs_used"]
        key = Series(text(row["benchmark"]), params), tuple(sorted(environment))
        answers[*key, text(row["commit"])] = msgspec.convert(told, KeptAnswer)
    return answers
