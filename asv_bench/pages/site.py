"""The page of all stored results: one file that opens without a server or a network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from asv_bench.git.repository import GitError, Repository
from asv_bench.history.histories import Histories
from asv_bench.output.destinations import write_text
from asv_bench.output.figure_rows import figure_text
from asv_bench.output.stored_json import UnreadableFile, read_stored
from asv_bench.output.table import interval, percentage
from asv_bench.pages.machine_view import LATELY, MachineView, StoredPage
from asv_bench.pages.payload import packed
from asv_bench.pages.records import reasons_of
from asv_bench.process.machine import machine_facts

HERE = Path(__file__).parent
SCRIPTS = (
    "uplot/uPlot.iife.min.js",
    "scripts/data.js",
    "scripts/marks.js",
    "scripts/graph.js",
    "scripts/page.js",
)
LICENCE = ("uplot/LICENSE",)
_REMOTE = re.compile(
    r"(?:https?://|ssh://)?(?:[^@/]+@)?(?P<host>[\w.-]+)(?::\d+(?=/))?[:/](?P<path>[\w./~-]+?)(?:\.git)?/?"
)
_PAGES = {"github": "/commit/", "gitlab": "/-/commit/"}
"""By a part of the host's name: what stands before the hash."""
STYLES = ("uplot/uPlot.min.css", "templates/style.css")


@dataclass(frozen=True, slots=True)
class Site:
    """Everything that the page shows of a subject; machines in the order of their tabs.

    `reasons` are what `explain` found, by the hash of the commit whose change it explains.
    """

    subject: str
    is_own: bool
    machines: Sequence[MachineView]
    reasons: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    commit_url: str = ""

    def render(self) -> str:
        """The page."""
        return (
            _templates()
            .get_template("index.html.j2")
            .render(
                site=self,
                payload=packed(self.machines, self.commit_url),
                script=f"/*\n{_texts(LICENCE)}*/\n{_texts(SCRIPTS)}",
                style=_texts(STYLES),
                address=address,
                percentage=percentage,
                interval=interval(1),
                figure_text=figure_text,
                moment=_moment,
                lately=LATELY,
                built=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            )
        )


def build_page(histories: Histories, complaints: list[str] | None = None) -> Path:
    """Write the page of everything that is stored of a subject and return its path.

    The page is one file, and fetches nothing. What of the stored files is left out is said on it,
    and in `complaints`.
    """
    stored = StoredPage.of(histories)
    left_out, here = stored.complaints, machine_facts().name
    views = [stored.view(name, is_here=name == here) for name in stored.machines]
    site = Site(
        subject=histories.subject,
        is_own=histories.is_own,
        # This machine's first, then those that measured last.
        machines=sorted(
            (view for view in views if view.graphs),
            key=lambda view: (not view.is_here, -view.newest_ms),
        ),
        reasons=reasons_of(stored.records),
        left_out=[sentence.replace(f"{histories.configured}/", "") for sentence in left_out],
        commit_url=commit_url(histories.configured, histories.repository),
    )
    if complaints is not None:
        complaints += left_out
    return write_text(histories.pages / "index.html", site.render())


def address(machine: str, key: str = "") -> str:
    """A graph's, or a machine's, address on the page."""
    parts = [machine, key] if key else [machine]
    return "#" + "/".join(quote(part, safe="(),'") for part in parts)


def _templates() -> Environment:
    """The templates; what they show is escaped."""
    return Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _texts(names: Sequence[str]) -> str:
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


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
        return page_of_remote(Repository(repository).line("remote", "get-url", "origin"))
    except GitError:
        return ""


def page_of_remote(remote: str) -> str:
    """The address of commits at a remote, without their hash; "" where the host is another."""
    found = _REMOTE.fullmatch(remote.strip())
    if found is None:
        return ""
    host, path = found["host"], found["path"].strip("/")
    before = next((page for name, page in _PAGES.items() if name in host), None)
    return "" if before is None else f"https://{host}/{path}{before}"
