"""The page of all stored results: one file that opens without a server or a network."""

from __future__ import annotations

import base64
import json
import re
import statistics
import time
import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console

from asv_bench.compare.verdict import Standing
from asv_bench.git.repository import GitError, Repository, kind_of, short
from asv_bench.history.asv_results import Figure
from asv_bench.history.histories import Histories
from asv_bench.output.console import print_sentences
from asv_bench.output.figure_rows import figure_text, spread_text
from asv_bench.output.record import write_text
from asv_bench.output.stored_json import UnreadableFile, read_stored
from asv_bench.output.table import interval, percentage
from asv_bench.pages.bisection import NOTHING, columns, told_of
from asv_bench.pages.machine_view import LATELY, Graph, MachineView, machine_views, read_verdicts
from asv_bench.process.machine import machine_facts
from asv_bench.words import counted

HERE = Path(__file__).parent
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
            told = bisections[path] = read_stored(path, "of a bisection", told_of)
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
                **columns(_told(line.get(place), starts) for place in places.values()),
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
