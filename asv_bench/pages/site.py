"""The pages of all stored results and of each bisection, which open without a server or network."""

from __future__ import annotations

import base64
import json
import re
import statistics
import time
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console

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
from asv_bench.compare.verdict import Standing
from asv_bench.git.repository import Commit, GitError, Repository, kind_of, short
from asv_bench.history.asv_results import Figure
from asv_bench.history.histories import Histories
from asv_bench.output.console import print_sentences
from asv_bench.output.figure_rows import figure_text, spread_text
from asv_bench.output.issue_text import repeating
from asv_bench.output.record import write_text
from asv_bench.output.stored_json import UnreadableFile, read_stored
from asv_bench.output.table import Table, interval, percentage
from asv_bench.pages.machine_view import LATELY, Graph, MachineView, machine_views, read_verdicts
from asv_bench.process.machine import machine_facts
from asv_bench.words import counted

HERE = Path(__file__).parent
STATES = {True: "regression", False: "improvement", None: "unresolved"}
COLUMNS = ("values", "low", "high", "processes", "sessions")
NOTHING: tuple[float | None, ...] = (None,) * len(COLUMNS)
SCRIPTS = [f"scripts/{name}.js" for name in ("data", "chart", "marks", "graph", "page")]
_REMOTE = re.compile(
    r"(?:https?://|ssh://)?(?:[^@/]+@)?(?P<host>[\w.-]*(?P<forge>github|gitlab)[\w.-]*)"
    r"(?::\d+(?=/))?[:/]/?(?P<path>[\w./~-]+?)(?:\.git)?/?"
)


def build_page(histories: Histories, console: Console, badge: Path | None = None) -> Path:
    """Write the page of everything that is stored of a subject, and its badge; return its path.

    The page is one file, and fetches nothing. What of the stored files is left out is said on it,
    and printed.
    """
    here, left_out = machine_facts().name, list[str]()
    # This machine's first, then those that measured last.
    records = read_verdicts(histories)
    views = sorted(
        machine_views(histories, [one for found in records.values() for one in found], left_out),
        key=lambda view: (view.stored.name != here, -view.newest_ms),
    )
    print_sentences(console, left_out)
    url = commit_url(histories.configured, histories.repository)
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    if badge is not None:
        tone, said = badge_of(views, histories.repository)
        write_text(badge, templates.get_template("badge.svg.j2").render(tone=tone, said=said))
    page = partial(
        templates.get_template("index.html.j2").render,
        subject=histories.subject,
        told=None,  # the one bisection that a page is of
        machines=[],
        bisections={},
        left_out=[],
        here=here,
        short=short,
        commit_url=url,
        style=_texts(["templates/style.css"]),
        script=_texts(SCRIPTS),
        figure_text=figure_text,
        spread_text=spread_text,
        percentage=percentage,
        interval=interval(1),
        moment=_moment,
        built=_moment(1000 * time.time()),
        has_asv=(histories.folder / "html" / "index.json").is_file(),
    )
    bisections: dict[Path, dict[str, Any]] = {}
    for path in [one for one in records if one.name.startswith("bisect-")]:
        # One that ended before any finding has no page.
        with suppress(UnreadableFile):
            told = bisections[path] = read_stored(path, "of a bisection", _bisected)
            payload = _packed(told["machines"], {}, url)
            write_text(histories.pages / f"{path.stem}.html", page(told=told, payload=payload))
    dates = {name: date for view in views for name, date in view.stored.dates.items()}
    text = page(
        machines=views,  # in the order of their tabs
        bisections=bisections,
        left_out=[sentence.replace(f"{histories.configured}/", "") for sentence in left_out],
        payload=_packed([_machine(view) for view in views], dates, url),
    )
    return write_text(histories.pages / "index.html", text)


def badge_of(views: Sequence[MachineView], repository: Path) -> tuple[str, str]:
    """Which regressions of all machines stand: a tone as of `MachineView.news`, and a few words."""
    firsts = {one.stored.commits[-LATELY:][0]: one for one in views if one.stored.commits[1:]}
    if not firsts:
        return "quiet", "too little measured"
    # What holds since the newest of their first commits holds for every machine.
    first, view = max(firsts.items(), key=lambda one: one[1].order[one[0].hash])
    since = first.hash
    if kind_of(since) == "commit":
        since = _moment(view.stored.dates[since])[:10]
        with suppress(GitError):
            since = Repository(repository).line("describe", "--tags", "--exact-match", first.hash)
    found = [one for view in views for graph, one in view.bad_news if not graph.is_taken_back(one)]
    confirmed = sum(one.standing is Standing.REGRESSION for one in found)
    if confirmed or not found:
        said = counted(confirmed, "regression") if found else "no regression"
        return "bad" if found else "good", f"{said} since {since}"
    return "open", f"{counted(len(found), 'regression')} suspected since {since}"


def commit_url(configured: Path, repository: Path) -> str:
    """The address of a commit's page without its hash; "" where none is known.

    It is `show_commit_url` of the asv.conf.json in the folder `configured`, or in the repository,
    else made from the remote called origin, where that is of GitHub or GitLab.
    """
    for folder in (configured, repository):
        with suppress(UnreadableFile):
            # asv itself says what is wrong with its file.
            told = read_stored(folder / "asv.conf.json", "asv's configuration", dict)
            if re.match(r"https?://", url := str(told.get("show_commit_url"))):
                return url
    try:
        remote = Repository(repository).line("remote", "get-url", "origin")
    except GitError:
        return ""
    found = _REMOTE.fullmatch(remote.strip())
    if found is None:
        return ""
    between = "/-" if found["forge"] == "gitlab" else ""
    return f"https://{found['host']}/{found['path']}{between}/commit/"


def _texts(names: Sequence[str]) -> str:
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)


def _moment(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _packed(
    machines: Sequence[Mapping[str, Any]], dates: Mapping[str, int], commit_url: str
) -> str:
    """The figures of all graphs as `scripts/data.js` unpacks them.

    Commits stand once, in one table, and are named by their places. The JSON is deflated and
    written in base 64, which holds no character that a page could take for its own.
    """
    commits = {commit.hash: commit for one in machines for commit in one["commits"]}
    places = {name: place for place, name in enumerate(commits)}
    content = {
        "commits": {
            "hash": list(commits),
            "subject": [commit.subject for commit in commits.values()],
            "author": [commit.author for commit in commits.values()],
            # Labels have no date; what stands for theirs is their place.
            "date": [dates.get(name) if kind_of(name) == "commit" else None for name in commits],
        },
        "url": commit_url,
        "machines": [
            {**one, "commits": [places[commit.hash] for commit in one["commits"]]}
            for one in machines
        ],
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _machine(view: MachineView) -> dict[str, Any]:
    return {
        "name": view.stored.name,
        "commits": view.stored.commits,
        "sessions": view.stored.sessions,
        "environments": view.environments,
        "graphs": [_drawn(graph, view) for graph in view.graphs],
    }


def _drawn(graph: Graph, view: MachineView) -> dict[str, Any]:
    places, series, starts = view.places, graph.series, view.stored.sessions
    begun = [one for one in view.stored.beginnings if series.name in one.benchmarks]
    began = {(*one.environment.items(),): one.changed for one in begun}
    # It finds this series alone, and its texts with quotes around them.
    values = ", ".join(rf"['\"]?{re.escape(value)}['\"]?" for _, value in series.params)
    pattern = re.escape(series.benchmark) + (rf"\({values}\)" if values else "")
    return {
        "key": series.name,
        "group": graph.group,
        "title": graph.title,
        "unit": graph.unit,
        "better": graph.better or "lower",
        "metric": f"^{pattern}$",
        "lines": [
            {
                "environment": environment,
                "began": began.get(view.stored.environments[environment], ""),
                **_columns(_told(line.get(place), starts) for place in places.values()),
            }
            for environment, line in graph.lines.items()
        ],
        "changes": [
            {
                "at": places[one.change.commit.hash],
                "state": "acknowledged" if one.acknowledged else one.standing.name.lower(),
                "worse": one.change.is_worse,
                "rises": one.change.effect > 0,
                "text": one.sentence,
            }
            for one in graph.changes
        ],
        "verdicts": [
            {"at": places[one.said.head], "verdict": one.said.verdict, "text": one.sentence}
            for one in graph.verdicts
        ],
    }


def _told(figure: Figure | None, starts: Sequence[int]) -> tuple[float | None, ...]:
    """The median and the quartiles over processes: whole numbers, or five digits; and more."""
    if figure is None:
        return NOTHING
    session = bisect_right(starts, figure.started_ms)
    if figure.failed:
        return None, None, None, len(figure.samples), session
    low = high = figure.median
    if len(figure.samples) > 1:
        low, _, high = statistics.quantiles(figure.samples, n=4, method="inclusive")
    found = (figure.median, low, high)
    levels = (int(x) if float(x).is_integer() else float(f"{x:.5g}") for x in found)
    return *levels, len(figure.samples), session


def _columns(told: Iterable[Sequence[float | None]]) -> dict[str, Sequence[float | None]]:
    """A line of a graph: its `COLUMNS`, of what it has of each commit."""
    return dict(zip(COLUMNS, zip(*told, strict=True), strict=True))


def _bisected(record: dict[str, Any]) -> dict[str, Any]:
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
        answer = answer_lines(finding, by_hash)
        tables = [commit_table(finding, commits, is_whole=True)]
        course = [probe_line(number, one, by_hash) for number, one in enumerate(probes, 1)]
        drawn = [_curve(finding, [Commit(finding.good), *commits], probes)] if probes else []
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


def _curve(finding: Finding, commits: Sequence[Commit], probes: Sequence[Probe]) -> dict[str, Any]:
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
        "lines": [{"environment": 0, **_columns(levels.get(one, NOTHING) for one in places)}],
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
