"""`report`: build the pages from the stored results."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import webbrowser
from collections import Counter
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

import typer
from rich.console import Console

from asv_bench.errors import MeasurementFailed, NothingMeasured, require_packages
from asv_bench.git.repository import NoRepository, Repository
from asv_bench.history.histories import Histories
from asv_bench.measure.processes import run_apart
from asv_bench.output.console import make_console, print_sentences
from asv_bench.output.record import STANDARD_OUTPUT, require_writable
from asv_bench.output.stored_json import UnreadableFile, read_stored
from asv_bench.session import options

_NOTHING_ASKED = options.EngineOptions()


def report(
    *,
    asked: options.EngineOptions = _NOTHING_ASKED,
    results: options.ResultsFolder = None,
    badge: options.BadgeFile = None,
    is_opened: Annotated[
        bool, typer.Option("--open", help="Open the page; a local server shows asv's pages too.")
    ] = False,
) -> None:
    """Build the pages from the stored results."""
    histories = Histories.of_subject(asked.choice().declared("report"), results)
    require_packages("asv", "jinja2")
    # Not at the top, as jinja2 below.
    from asv_bench.pages.machine_view import read_verdicts

    is_measured = any(histories.folder.glob("asv/*/machine.json"))
    if not (is_measured or any(one.name.startswith("bisect-") for one in read_verdicts(histories))):
        raise NothingMeasured("nothing has been measured yet; `history` measures.")
    require_writable(badge, *(histories.folder / kept / "file" for kept in ("pages", "html")))
    console = make_console(stderr=badge == STANDARD_OUTPUT)
    page = build_all_pages(histories, console, badge)
    console.print(f"page: {page}")
    if is_opened:
        show(page, console)


class _Pages(SimpleHTTPRequestHandler):
    """Hands out both folders of pages, and nothing else that lies beside them."""

    def translate_path(self, path: str) -> str:
        found = super().translate_path(path)
        within = Path(found).relative_to(self.directory).parts[:1]
        return found if within in (("pages",), ("html",)) else ""

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing of requests."""


def show(page: Path, console: Console) -> None:
    """Open the page in a browser; where asv's pages lie beside it, serve both until Ctrl-C."""
    folder = page.parents[1]
    if not (folder / "html" / "index.json").is_file():
        webbrowser.open(page.as_uri())
        return
    handler = partial(_Pages, directory=str(folder))
    with suppress(KeyboardInterrupt), ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_port}/{page.relative_to(folder)}"
        console.print(f"serving the pages at {address} until Ctrl-C")
        # Browsers of a terminal return when they end.
        Thread(target=webbrowser.open, args=[address], daemon=True).start()
        server.serve_forever()


def build_all_pages(histories: Histories, console: Console, badge: Path | None = None) -> Path:
    """Build the self-contained page, which is returned, and asv's own of results of commits."""
    # Not at the top: every command would wait for jinja2.
    from asv_bench.pages.site import build_page

    # asv knows commits only.
    if any(histories.results.glob("*/machine.json")) and not histories.labels:
        try:
            publish(histories)
        except (MeasurementFailed, UnreadableFile) as error:
            print_sentences(console, [f"asv's own pages stay as they are: {error}"])
    return build_page(histories, console, badge)


def branch_to_show(repository: Path) -> str:
    """The branch for asv's pages: main, or HEAD if there is no main."""
    with suppress(NoRepository):
        if Repository(repository).resolve("refs/heads/main") is not None:
            return "main"
    return "HEAD"


def publish(histories: Histories) -> None:
    """Build asv's pages of what is stored of the branch to show, in a folder of this process.

    Raises MeasurementFailed with asv's own words, and UnreadableFile where its configuration is.
    """
    config = read_stored(histories.configured / "asv.conf.json", "asv's configuration", dict)
    with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
        path = Path(scratch) / "asv.conf.json"
        config |= {
            "repo": str(histories.repository),
            "env_dir": str(Path(scratch) / "env"),
            "benchmark_dir": str(histories.configured / config["benchmark_dir"]),
            "results_dir": str(histories.results),
            "html_dir": str(histories.folder / "html"),
            "branches": [branch_to_show(histories.repository)],
        }
        path.write_text(json.dumps(config))
        command = sys.executable, "-m", "asv", "--config", str(path), "publish", "--no-pull"
        run_apart(command, "asv could not publish")
    # The overview opens on the first machine, and draws what two commits have.
    index = histories.folder / "html" / "index.json"
    told = json.loads(index.read_bytes())
    counts = Counter(path.parent.name for path in histories.results.glob("*/*.json"))
    told["graph_param_list"].sort(key=lambda one: -counts[one["machine"]])
    index.write_text(json.dumps(told))
    # What asv puts around its graphs fetches scripts from public hosts.
    if (shell := find_spec("asv_tachyon")) and shell.origin:
        static = Path(shell.origin).parent / "static"
        shutil.copytree(static, histories.folder / "html", dirs_exist_ok=True)
