"""Options that several commands have, with the same words in each."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from asv_bench.compare.plan import DEFAULT_MARGIN
from asv_bench.errors import Refused, require_packages
from asv_bench.git.repository import WORKING_TREE, Commit, kind_of
from asv_bench.output.console import make_console, print_table
from asv_bench.output.formats import Format, in_format
from asv_bench.output.record import REPOSITORY, STANDARD_OUTPUT, Record, require_places, write_text
from asv_bench.output.table import Table, to_csv
from asv_bench.run.settings import EngineWorkload
from asv_bench.session.time_limit import TimeLimit
from asv_bench.subjects.choose import Choice
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.own_suite import OwnSuite
from asv_bench.words import first_of

MOST = 10_000
"""Pairs, rounds or processes of a figure that may be asked for."""


def _option(flags: str, text: str, **more: Any) -> Any:
    """An option by its names, with its help."""
    return typer.Option(*flags.split(), help=text, **more)


def _file_option(text: str) -> Any:
    """An option that names a file to write."""
    return typer.Option(help=text, dir_okay=False, writable=True)


def _metrics(default: str = "") -> Any:
    """An option that chooses metrics or benchmarks."""
    words = "Regular expression, looked for in names of metrics, or of benchmarks with parameters"
    return _option("--metric --benchmark -b", f"{words}; may be given several times{default}.")


def a_number(value: float | None) -> float | None:
    """Refuse `nan`, which lies within every range."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is no number.")
    return value


def _print_names(context: typer.Context, is_wanted: bool) -> None:
    if not is_wanted:
        return
    if "subject" in context.params:
        # Not converted yet by every release of typer.
        path = context.params["subject"]
        file = None if path is None else Path(path)
        declared = Choice(file=file).declared(str(context.info_name))
    else:
        declared = OwnSuite(REPOSITORY)
    declared.choose((".",), None)
    for metric in declared.metrics:
        typer.echo(metric.name)  # plain lines, for other programs too
    raise typer.Exit


BASE: Any = typer.Argument(
    help="The older commit: a hash, branch, tag, HEAD~3, or . for the tree; or a label."
)
HEAD: Any = typer.Argument(help="The newer one; . is the working tree as it stands.")
MeasuredCommand = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- COMMAND...]",
        help="A command whose wall time is measured, in the files of each commit and in any "
        "repository (default: what kvtrail.toml says). One word with spaces is for the shell.",
    ),
]
Metrics = Annotated[list[str] | None, _metrics()]
ComparedMetrics = Annotated[
    list[str] | None,
    _metrics(
        " (default: the metrics of kvtrail.toml, wall_s of a command, step time of the workload "
        "scheduler)"
    ),
]
MostPairs = Annotated[
    int | None, _option("--pairs", "Pairs of processes at most (default: 30).", max=MOST)
]
MostRounds = Annotated[
    int | None, _option("--rounds", "Rounds of a life of each at most (default: 30).", max=MOST)
]
FigureProcesses = Annotated[
    int | None,
    _option("--rounds", "Processes per figure and commit (default: 3, with --full 12).", max=MOST),
]
ResultsFolder = Annotated[
    Path | None,
    typer.Option(
        help="Where a subject's results and pages are kept (default: a folder of its own).",
        file_okay=False,
    ),
]
BadgeFile = Annotated[
    Path | None, _file_option("Where a badge that says what stands goes, as SVG.")
]
Full = Annotated[bool, _option("--full", "Every benchmark, 12 processes a figure.")]
Devices = Annotated[
    str | None,
    typer.Option(
        help="GPUs to spread pairs over: numbers or UUIDs separated by commas, or all "
        "(default: the first).",
    ),
]
Margin = Annotated[
    float,
    typer.Option(
        help="Difference that matters, in per cent: slower and faster are by at least as much, "
        "equivalent is shown to be within it. A noisy machine answers sooner to a wider one.",
        min=0.1,
        max=50,
        callback=a_number,
    ),
]
Anyway = Annotated[
    bool, _option("--anyway", "Measure even where what is measured is the same in both commits.")
]
SubjectPath = Annotated[
    Path | None,
    typer.Option(
        help="The file that says what is measured (default: the nearest kvtrail.toml).",
        is_eager=True,  # known before --list is, wherever it stands
        dir_okay=False,
    ),
]
AxisKind = Annotated[
    str | None, _option("--axis", "Compare commits, or the labels of the subject's file.")
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="End after so many minutes with the best answer so far (default: the limit of the "
        "job, where GitLab CI or Slurm says it). The same command then goes on.",
        min=0.01,
        max=525_600,
        callback=a_number,
    ),
]
RequireGpu = Annotated[bool, _option("--require-gpu", "Fail unless a GPU is measured.")]
ListBenchmarks = Annotated[
    bool,
    _option(
        "--list",
        "Print the metrics or benchmarks that can be named on this machine, and end.",
        callback=_print_names,
    ),
]
Yes = Annotated[bool, _option("--yes", "Begin, however long it takes.")]


@dataclass(frozen=True)
class EngineOptions(EngineWorkload):
    """What is measured, and where; it may be a workload of kvtrail's engine."""

    subject: SubjectPath = None
    axis: AxisKind = None
    devices: Devices = None

    def choice(
        self,
        command: Sequence[str] | None = None,
        patterns: Sequence[str] | None = None,
        how: RunningOptions | None = None,
        *,
        near: Sequence[str | None] = (),
    ) -> Choice:
        """What these options and the others of `Choice` say of the subject.

        Raises Refused if parameters of a workload are given without it.
        """
        if self.workload is None and (changes := self.options()):
            raise Refused(
                f"{changes[0]} changes a workload of kvtrail's engine; name it with --workload."
            )
        return Choice(
            command or (),
            self.subject,
            patterns or (),
            self.devices,
            self.axis,
            require_gpu=how is not None and how.require_gpu,
            workload=None if self.workload is None else self,
            is_elsewhere=how is not None and how.address is not None,
            near=[name for name in near if name is not None],
        )


_on_fleet = partial(typer.Option, rich_help_panel="Measure on many hosts")


@dataclass
class RunningOptions:
    """How long commits are measured, and where; the time counts from when this was made."""

    address: Annotated[
        str | None,
        _on_fleet(
            "--fleet",
            metavar="ADDRESS",
            help="Spread lives over the hosts of a Ray cluster: HOST:PORT of its head, auto for "
            "that of $RAY_ADDRESS or of this machine, local for this machine alone.",
        ),
    ] = None
    kind: Annotated[
        str | None,
        _on_fleet(help="Only on hosts of this kind, as records name machines (default: all)."),
    ] = None
    resume: Annotated[
        bool | None,
        _option(
            "--resume/--fresh",
            "Go on with what an earlier run of the same command measured, or start over "
            "(default: go on where it was interrupted, start over where it had its answer).",
        ),
    ] = None
    minutes: Minutes = None
    require_quiet: Annotated[
        bool, _option("--require-quiet", "Refuse to measure on a machine with other load.")
    ] = False
    require_gpu = False

    def __post_init__(self) -> None:
        if self.kind is not None and self.address is None:
            raise Refused("--kind chooses among the hosts of a fleet; say --fleet too.")
        if self.address is not None:
            require_packages("ray")
        self.limit = TimeLimit.of(self.minutes)


@dataclass
class MeasuringOptions(RunningOptions):
    """The same, and how commits are compared."""

    margin: Margin = 100 * DEFAULT_MARGIN
    anyway: Anyway = False
    require_gpu: RequireGpu = False


@dataclass
class Outputs:
    """Where a command's record and tables go, each tried before anything is measured.

    "-" is standard output. Where a file goes there, everything else goes to standard error.
    """

    json: Annotated[
        Path | None,
        _file_option(
            "Where the record goes; - is standard output (default: a new file in reports/runs)."
        ),
    ] = None
    markdown: Annotated[
        Path | None, _file_option("Where the table goes as Markdown; - is standard output.")
    ] = None
    csv: Annotated[
        Path | None, _file_option("Where the table goes as CSV, raw values; - is standard output.")
    ] = None

    def __post_init__(self) -> None:
        paths = (self.json, self.markdown, self.csv)
        if paths.count(STANDARD_OUTPUT) > 1:
            raise Refused("two files cannot both go to standard output: give one a name.")
        require_places(*paths)
        self.console = make_console(stderr=STANDARD_OUTPUT in paths)  # where the command prints

    def show(self, *tables: Table, page: str | None = None) -> None:
        """Print tables and write them to the files; `page` is the Markdown if it is more than they.

        Raises MeasurementFailed if a file could not be written.
        """
        for table in tables:
            print_table(self.console, table)
        self.write(*tables, page=page)

    def write(self, *tables: Table, page: str | None = None) -> None:
        """The same without printing."""
        if self.markdown is not None:
            text = "\n".join(table.to_markdown() for table in tables) if page is None else page
            write_text(self.markdown, text)
        if self.csv is not None:
            write_text(self.csv, to_csv(tables))

    def write_answers(self, record: Record, higher: Collection[str]) -> None:
        """Write what a record says in a format of others, where one is asked for."""


@dataclass
class AnswerOutputs(Outputs):
    """The same of verbs whose answers others can read."""

    format: Annotated[
        Format | None,
        typer.Option(
            help="Write the answers to standard output as Bencher (bmf), github-action-benchmark "
            "(gab) or what reads JUnit's XML (junit) take them, and all else to standard error.",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format is not None:
            if self.console.stderr:
                raise Refused("--format writes to standard output: give the other file a name.")
            self.console = make_console(stderr=True)

    def write_answers(self, record: Record, higher: Collection[str]) -> None:
        if self.format is not None:
            write_text(STANDARD_OUTPUT, in_format(self.format, record, higher))


def ends_of(
    subject: DeclaredSubject, names: Sequence[str], console: Console
) -> list[tuple[str, Commit]]:
    """Commits or labels beside what the user calls them.

    Where the last is the commit checked out, the changes made since, which are not measured, are
    said.
    """
    # The working tree's snapshot is a file of the checkout, too: it comes last.
    known = {name: subject.resolve(name) for name in sorted(names, key=WORKING_TREE.__eq__)}
    ends, head = [(name, known[name]) for name in names], known[names[-1]]
    if kind_of(head.hash) != "commit":
        return ends
    repository = subject.axis.variant(head.hash).repository
    if not (repository.path / ".git").exists() or head.hash != repository.resolve("HEAD"):
        return ends
    status = ("status", "--porcelain", "-z", "--untracked-files=no", "--no-renames")
    changed = [entry[3:] for entry in repository.names(*status, "--", *subject.pathspecs)]
    if changed:
        console.print(
            f"uncommitted changes in {first_of(changed, 1)} are not measured; . in place of "
            f"{head.short} measures the working tree"
        )
    return ends


def differing(
    subject: DeclaredSubject, before: str | None, commits: Sequence[str], console: Console
) -> list[str]:
    """The commits, oldest first, in which what is measured differs from the commit before.

    `before` is the one before the first; None: the first is one of them. How many are left out is
    said.
    """
    found = [
        commit
        for earlier, commit in zip([before, *commits], commits, strict=False)
        if earlier is None or not subject.are_same(earlier, commit)
    ]
    if len(found) < len(commits):
        console.print(
            f"{len(commits) - len(found)} of {len(commits)} commits are not measured, as what is "
            f"measured is the same as in the commit before; --anyway measures them",
        )
    return found


def parent_of(subject: DeclaredSubject, name: str) -> str:
    """How to call the commit before another, which is named alone.

    Raises Refused if there is none: before the first commit, a label, or the working tree.
    """
    if name == WORKING_TREE or not subject.resolve(name).parents:
        raise Refused(f"{name} has no commit before it that could be meant; name all of them.")
    return f"{name}^"
