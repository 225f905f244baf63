"""`report`: build the pages from the stored results."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console

from asv_bench.cli.options import AxisKind, ResultsFolder, SubjectPath
from asv_bench.errors import NothingMeasured, Refused
from asv_bench.git.repository import NoRepository, Repository
from asv_bench.history.asv_runs import AsvError, AsvProject, require_project
from asv_bench.history.histories import Histories
from asv_bench.output.console import make_console, print_sentences
from asv_bench.output.record import REPOSITORY, WORKPLACE
from asv_bench.packages import require_packages
from asv_bench.subjects.choose import Choice
from asv_bench.subjects.declared import DeclaredSubject


def report(
    subject: SubjectPath = None, axis: AxisKind = None, results: ResultsFolder = None
) -> None:
    """Build the pages from the stored results."""
    declared = Choice(file=subject, axis=axis).declared("report")
    histories = histories_of(declared, results, REPOSITORY)
    if not any(histories.folder.glob("asv*/*/machine.json")):
        hint = "`bench` measures the working tree" if declared is None else "`history` measures"
        raise NothingMeasured(f"nothing has been measured yet; {hint}.")
    if declared is None:
        require_project(REPOSITORY)
    else:
        require_packages("asv", "jinja2")
    console = make_console()
    page = build_all_pages(histories, console)
    console.print(f"page: {page}")
    html = histories.folder / "html"
    if html.is_dir():
        console.print(
            f"asv's own pages, which fetch scripts from public hosts, are seen by "
            f"{shlex.join(['python3', '-m', 'http.server', '--directory', str(html)])}"
        )


def histories_of(
    declared: DeclaredSubject | None, results: Path | None, checkout: Path
) -> Histories:
    """Where histories are kept: of a subject at `results`, or of kvtrail in its checkout.

    Raises
    ------
    Refused
        If another place is named for kvtrail's own.
    """
    if declared is not None:
        return Histories.of_subject(declared, results)
    if results is not None:
        raise Refused("--results is for a subject's file; kvtrail's own are kept in reports/.")
    return Histories.of_checkout(checkout)


def build_all_pages(histories: Histories, console: Console) -> Path:
    """Build the self-contained page and, where there are results of commits, asv's own.

    What had to be left out of them is printed.

    Returns
    -------
    Path
        The self-contained page.
    """
    # Not at the top: every command would wait for jinja2.
    from asv_bench.pages.site import build_page

    # asv knows commits only.
    if any(histories.results.glob("*/machine.json")) and not histories.labels:
        project = AsvProject(
            histories.configured,
            histories.repository,
            histories.results,
            branch_to_show(histories.repository),
            None if histories.is_own else WORKPLACE,
        )
        try:
            project.publish()
        except AsvError as error:
            print_sentences(console, [f"asv's own pages stay as they are: {error}"])
    complaints: list[str] = []
    page = build_page(histories, complaints)
    print_sentences(console, complaints)
    return page


def branch_to_show(repository: Path) -> str:
    """The branch for asv's pages: main, or HEAD if there is no main."""
    try:
        main = Repository(repository).resolve("refs/heads/main")
    except NoRepository:
        return "HEAD"
    return "HEAD" if main is None else "main"
