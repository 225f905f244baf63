"""`reports/ladder.md` and its pictures: made from the records that exist."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asv_bench.errors import Refused
from asv_bench.output.record import SCHEMA, write_text
from asv_bench.output.stored_json import UnreadableFile, positive, read_stored, require_schema
from asv_bench.studies.ladder.ladder_tables import (
    agreement,
    answer_table,
    claim_table,
    rung_table,
)

Json = Mapping[str, Any]

PREFIX = "ladder-"
PAGE = "ladder.md"

INTRODUCTION = """# The ladder

Five write-ups of one inference project are where this one comes from. Each changes one thing in how
a token is decoded. The ladder runs every step of that way on this project's model and kernels, from
the first write-up's starting point to today's engine: each rung changes one thing from the rung
before, and has to generate the first one's tokens. Two rungs are compared as two commits are: fresh
processes in pairs, exact tests on the log-ratios.

`nox -s ladder` measures it on your machine. This page is made from the records that it names.
"""
ANSWERS = """## The five answers

Each is of the record that decides it: faster, or shown to be within the margin of no change.
"""
DECIDED = ("faster", "slower", "equivalent")

STAND_IN = (
    "\\* The write-up's own rung before needs Triton; the nearest rung below, which appends as the "
    "rung after does here, stands in for it.\n"
)


def machine_of(path: Path) -> str:
    """What a record's file calls its machine: ladder-h200.json is of h200."""
    return path.stem.removeprefix(PREFIX)


def write_page(folder: Path, complaints: list[str] | None = None) -> Path:
    """Write the page and a picture for each record in `folder`; returns the page's path.

    Records that cannot be read are left out, and `complaints` gets a sentence for each.

    Raises
    ------
    Refused
        If there is no record.
    """
    # Not at the top: every command would wait for matplotlib.
    from asv_bench.studies.ladder.waterfall_plot import waterfall_svg

    records = read_records(folder, complaints)
    parts = [INTRODUCTION, ANSWERS, answer_table(decided(folder, records)).to_markdown()]
    for machine, record in records.items():
        svg = waterfall_svg(record["results"]["rungs"], title_of(record))
        write_text(folder / f"{PREFIX}{machine}.svg", svg)
        parts.append(_section(machine, record))
    return write_text(folder / PAGE, "\n".join(parts))


def read_records(folder: Path, complaints: list[str] | None = None) -> dict[str, Json]:
    """The records in a folder by machine, GPUs first; see `write_page`.

    Raises
    ------
    Refused
        If there is none that can be read.
    """
    records: dict[str, Json] = {}
    wrong: list[str] = []
    for path in sorted(folder.glob(f"{PREFIX}*.json")):
        try:
            records[machine_of(path)] = read_stored(path, "a record of the ladder", _checked)
        except UnreadableFile as error:
            wrong.append(f"{error} It is left out.")
    if not records:
        raise Refused(
            " ".join(
                [
                    f"{folder} holds no {PREFIX}MACHINE.json that can be read; measure one without "
                    f"--render.",
                    *wrong,
                ]
            )
        )
    if complaints is not None:
        complaints += wrong
    return dict(sorted(records.items(), key=lambda entry: entry[1]["machine"]["gpu"] is None))


def decided(folder: Path, records: Mapping[str, Json]) -> list[tuple[str, Json, Json]]:
    """The claims with an answer, in their order: the record's file, the record, and the claim.

    Records of single claims lie among the verdicts. Of several answers that of most pairs counts.
    """
    named = {f"{PREFIX}{machine}.json": record for machine, record in records.items()}
    for path in sorted((folder / "verdicts").glob(f"{PREFIX}*.json")):
        named[f"verdicts/{path.name}"] = read_stored(path, "a record of the ladder", _checked)
    found: dict[str, tuple[str, Json, Json]] = {}
    for name, record in named.items():
        for claim in record["results"]["claims"]:
            known = found.get(claim["seed"])
            is_better = known is None or claim["pairs"] > known[2]["pairs"]
            if claim["finding"] in DECIDED and is_better:
                found[claim["seed"]] = name, record, claim
    return [found[seed] for seed in sorted(found)]


def title_of(record: Json) -> str:
    """What was measured, on what."""
    machine, settings = record["machine"], record["settings"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores"
    model = settings["rung_settings"]["model"]
    dtype = settings["rung_settings"]["dtype"]
    return f"{settings['waterfall_workload']}: {model} {dtype} on {where}"


def _checked(record: dict[str, Any]) -> Json:
    """The record, if all that pages take of it is there."""
    require_schema(record, SCHEMA)
    if not record["results"]["rungs"]:
        raise ValueError("it holds no rungs")
    for rung in record["results"]["rungs"]:
        positive(rung["step_ms"])
    _section("", record)
    return record


def _section(machine: str, record: Json) -> str:
    results, facts = record["results"], record["machine"]
    commit = (record["commit"] or "none")[:9] + (" with changes" if record["dirty"] else "")
    versions = f"torch {facts['torch']}, Triton {facts['triton']}, Python {facts['python']}"
    lines = [
        f"## {machine}\n",
        f"{title_of(record)}; commit {commit}, {versions}, {record['started'][:10]}.\n",
        f"![Waterfall of the rungs on {machine}]({PREFIX}{machine}.svg)\n",
        "### Rungs\n",
        rung_table(results["rungs"], "").to_markdown(),
        *(f"- **{rung['rung']}**: {rung['what']}" for rung in results["rungs"]),
        "",
        f"{agreement(results['rungs'])}\n",
    ]
    if results["claims"]:
        table = claim_table(results["claims"], record["settings"]["plan"], "")
        lines += ["### Claims\n", table.to_markdown()]
    if any(not claim["as_claimed"] for claim in results["claims"]):
        lines.append(STAND_IN)
    lines += [f"{note}\n" for note in record["notes"]]
    return "\n".join(lines)
