"""What the page of a bisection says, by its record: the answer, the curve, and how it went."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from asv_bench.bisect.account import (
    answer_lines,
    commit_table,
    compared,
    file_lines,
    file_table,
    probe_line,
)
from asv_bench.bisect.file_search import FileFinding
from asv_bench.bisect.finding import Finding, Probe
from asv_bench.git.repository import Commit, short
from asv_bench.output.issue_text import repeating
from asv_bench.output.table import Table, percentage

STATES = {True: "regression", False: "improvement", None: "unresolved"}
COLUMNS = ("values", "low", "high", "processes", "sessions")
NOTHING: tuple[float | None, ...] = (None,) * len(COLUMNS)


def columns(told: Iterable[Sequence[float | None]]) -> dict[str, Sequence[float | None]]:
    """A line of a graph: its `COLUMNS`, of what it has of each commit."""
    return dict(zip(COLUMNS, zip(*told, strict=True), strict=True))


def told_of(record: dict[str, Any]) -> dict[str, Any]:
    """What `templates/bisection.html.j2` is given of a record, and the graph of commits.

    Raises what Python and msgspec raise where it is no bisection, or came to nothing.
    """
    settings, results = record["settings"], record["results"]
    commits = msgspec.convert(settings.get("commits", ()), list[Commit])
    tables, course, machines = list[Table](), list[str](), list[dict[str, Any]]()
    if "files" in settings:
        of_files = msgspec.convert(results["finding"], FileFinding)
        answer = file_lines(of_files, settings["files"])
        tables = [file_table(of_files, settings["files"])]
    elif "check" in settings:
        seen = ((one, results["seen"].get(one.hash)) for one in commits)
        looks = (f"{one.short} {one.subject}: {result}" for one, result in seen if result)
        answer = [results["answer"], *looks]
    else:
        probes = msgspec.convert(record["samples"], list[Probe])
        finding = msgspec.convert(results["finding"], Finding)
        by_hash = {one.hash: one for one in commits}
        answer, tables = (
            answer_lines(finding, by_hash),
            [commit_table(finding, commits, is_whole=True)],
        )
        course = [probe_line(number, one, by_hash) for number, one in enumerate(probes, 1)]
        drawn = [_machine(finding, [Commit(finding.good), *commits], probes)] if probes else []
        machines = [{"name": record["machine"]["name"], **one} for one in drawn]
    return {
        "of": settings.get("benchmark") or settings["check"],
        "when": record["started"][:10],
        "machine": record["machine"]["name"],
        "answer": answer,
        "remarks": [*results.get("why", ()), *record["notes"], *record["warnings"]],
        "tables": tables,
        "command": results.get("repeat") or repeating(record["argv"], {}),
        "course": "\n".join(course),
        "machines": machines,
    }


def _machine(
    finding: Finding, commits: Sequence[Commit], probes: Sequence[Probe]
) -> dict[str, Any]:
    """One graph, in per cent of the good end, with lives, and the probability of each commit."""
    places = {commit.hash: place for place, commit in enumerate(commits)}
    pairs = [probe.pair for probe in probes if probe.pair]
    # A life may stand in several pairs.
    lives = {(one.commit, one.started_at): one for pair in pairs for one in (pair.base, pair.head)}
    counts = Counter(one.commit for one in lives.values())
    good = statistics.median(one.value for one in lives.values() if one.commit == finding.good)
    levels: dict[str, Sequence[float]] = {
        one.commit: (*(100 * x for x in (one.effect, *one.interval)), counts[one.commit], 0)
        for one in finding.curve
    }
    levels[finding.good] = (0, 0, 0, counts[finding.good], 0)
    compares = [finding.gate, *finding.confirmations]
    is_falling = any(pair.higher_is_better for pair in pairs)
    graph = {
        "key": finding.benchmark,
        "group": "level",
        "title": f"change against {short(finding.good)}, the good end",
        "unit": "%",
        "better": "higher" if is_falling else "lower",
        "band": "95 % interval of the level",
        "metric": f"^{re.escape(finding.benchmark)}$",
        "lines": [{"environment": 0, **columns(levels.get(one, NOTHING) for one in places)}],
        "changes": [
            {
                "at": places[one.commit],
                "state": STATES[is_worse if one.confirmed else None],
                "worse": is_worse,
                "rises": one.effect > 0,
                "text": f"a step, probability {percentage(one.probability, 1)}",
            }
            for one in finding.steps
            for is_worse in [(one.effect > 0) is not is_falling]
        ],
        "verdicts": [
            {"at": places[one.head], "verdict": one.verdict, "text": f"compared: {compared(one)}"}
            for one in compares
        ],
        "lives": [[places[one.commit], 100 * (one.value / good - 1)] for one in lives.values()],
        "odds": [finding.posterior.get(name, 0.0) for name in places],
    }
    return {"commits": commits, "sessions": [], "environments": [""], "graphs": [graph]}
