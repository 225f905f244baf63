"""`report`: build the pages from the stored results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from asv_bench.errors import NothingMeasured
from asv_bench.git.repository import NoRepository, Repository
from asv_bench.history.asv_runs import AsvError, AsvProject, require_project
from asv_bench.output.console import make_console, print_sentences
from asv_bench.output.record import REPOSITORY


def report() -> None:
    """Build the pages from the stored results."""
    project = AsvProject(REPOSITORY, REPOSITORY, REPOSITORY / "reports" / "asv")
    if not any((REPOSITORY / "reports").glob("asv*/*/machine.json")):
        raise NothingMeasured("nothing has been measured yet; `bench` measures the working tree.")
    require_project(REPOSITORY)
    console = make_console()
    page = build_all_pages(project, console)
    console.print(f"page: {page}")
    if project.html.is_dir():
        console.print(
            f"asv's own pages: {project.html}, seen with `python -m asv preview`; they fetch "
            f"scripts from public hosts",
        )


def build_all_pages(project: AsvProject, console: Console) -> Path:
    """Build the self-contained page and, where there are results of commits, asv's own.

    What had to be left out of them is printed.

    Returns
    -------
    Path
        The self-contained page.
    """
    # Not at the top: every command would wait for matplotlib.
    from asv_bench.pages.site import build_page

    if any(project.results.glob("*/machine.json")):
        project = replace(project, branch=branch_to_show(project.repository))
        try:
            project.publish()
        except AsvError as error:
            print_sentences(console, [f"asv's own pages stay as they are: {error}"])
    complaints: list[str] = []
    page = build_page(project.root, complaints)
    print_sentences(console, complaints)
    return page


def branch_to_show(repository: Path) -> str:
    """The branch for asv's pages: main, or HEAD if there is no main."""
    try:
        main = Repository(repository).resolve("refs/heads/main")
    except NoRepository:
        return "HEAD"
    return "HEAD" if main is None else "main"
