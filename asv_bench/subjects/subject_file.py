"""`kvtrail.toml`: what a user measures in a repository, and how."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from asv_bench.errors import Refused
from asv_bench.measure.command_line import PythonCommand, check_address, filled
from asv_bench.subjects import toml_values as toml
from asv_bench.subjects.metrics import BUILT_IN, POINT, READY, RSS_GROWTH, CheckTable, MetricTable
from asv_bench.subjects.presets import PRESETS

FILE_NAME = "kvtrail.toml"
SUBJECT = "KVTRAIL_SUBJECT"
"""Tells setup and lives the folder of the subject's file."""


class SubjectTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[subject]`: the repository, and the command that is one life."""

    name: toml.Name
    """In one word, for records and folders."""
    repository: toml.Text = "."
    """From the file's own folder: the git repository, or a folder in one, where commands then
    run."""
    setup: toml.Text = ""
    """A line for the shell that builds or installs a commit, once."""
    measure: toml.Text = ""
    """A line for the shell that is one life; none where a server and a client are measured."""
    builds: Annotated[int, Meta(ge=1, le=30)] = 1
    """How often `setup` builds a commit, each time in a folder of another path length and with an
    environment of another size. Lives take them in turn; a change is one that all of them show."""
    timeout_s: toml.Seconds = 600.0
    """Seconds after which a life, or a run of the client, is ended."""
    setup_timeout_s: toml.Seconds = 3600.0
    """Seconds after which a setup is ended."""
    devices: toml.Count | None = None
    """GPUs that a life needs; 0: it sees none. Without the key it sees what the user sees."""
    cores: toml.Count = 0
    """CPU cores that a life may use; 0: all."""
    env: dict[toml.Variable, toml.Text] = {}
    """Variables for setup and lives, in which $KVTRAIL_OUT and the like are replaced."""
    pinned: tuple[toml.Text, ...] = ()
    """Paths that are the working tree's at every commit, from the folder of `repository`."""
    preload: tuple[toml.Module, ...] = ()
    """Modules, none of the commit's, that one Python imports once for all lives, which are forks
    of it: `measure` is then `python SCRIPT` or `python -m MODULE`, with nothing for a shell."""
    turns: bool = False
    """Whether the two lives of a pair run at the same time and take turns, as $KVTRAIL_TURNS
    says."""
    preset: str = ""
    """What leaves its file at $KVTRAIL_RESULT, so that figures need no tables of their own."""

    def __post_init__(self) -> None:
        if self.preset and self.preset not in PRESETS:
            raise ValueError(f"preset is {self.preset!r}; there are {', '.join(PRESETS)}")
        if self.preload and PythonCommand.of(self.measure, {}) is None:
            raise ValueError(
                f"preload needs measure to start one script or module of Python, as in `python "
                f"bench.py`, without what a shell would do; it is {self.measure!r}"
            )
        if self.builds > 1 and not self.setup.strip():
            raise ValueError("builds needs setup, the line that builds a commit")
        msgspec.structs.force_setattr(self, "pinned", _normal(self.pinned))


def _normal(paths: Sequence[str]) -> tuple[str, ...]:
    """Pinned paths, each in one way of writing it, without those below another."""
    found: list[str] = []
    for path in paths:
        normal = posixpath.normpath(path)
        if normal == ".":
            raise ValueError(
                f"pinned names {path!r}, which is every file, so that all commits would be alike; "
                f"name the files that measure"
            )
        if normal.startswith("/") or {"..", ".git"}.intersection(path.split("/")):
            raise ValueError(f"pinned names {path!r}; give paths of files within the repository")
        found.append(normal)
    return tuple(
        path
        for path in dict.fromkeys(found)
        if not any(str(parent) in found for parent in PurePosixPath(path).parents)
    )


class ReadyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`ready = { regex = "..." }`: what the server prints when it is ready."""

    regex: toml.Line

    def __post_init__(self) -> None:
        toml.compiled(self.regex)


class ServerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[server]`: a program that is started for each life, and asked by a client."""

    start: toml.Line | None = None
    """A line for the shell, whose server listens at $KVTRAIL_PORT."""
    ready: toml.Words | ReadyTable | None = None
    """An address that answers when the server is ready, or { regex = "..." } of what it prints."""
    ready_timeout_s: toml.Seconds = 300.0
    """Seconds after which a server that is not ready has failed."""
    url: toml.Words | None = None
    """In place of `start`: the address of a server that is there already, in which $KVTRAIL_LABEL
    is replaced, as in `ready`, which is not needed then."""
    pairs_per_start: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Pairs that the servers of both ends live through, asked in turns; each start counts once."""

    def __post_init__(self) -> None:
        if (self.start is None) == (self.url is None):
            raise ValueError("a server needs either start or url")
        if self.ready is None and self.url is None:
            raise ValueError("a server that is started needs ready, to know when to ask it")
        if self.url and (isinstance(self.ready, ReadyTable) or self.pairs_per_start > 1):
            raise ValueError(
                "a server with a url is not started: it prints nothing for ready to find, and "
                "pairs_per_start is not for it"
            )
        if self.url:
            check_address(self.url, "url", "KVTRAIL_LABEL")
        if isinstance(self.ready, str):
            check_address(self.ready, "ready", "KVTRAIL_LABEL" if self.url else "KVTRAIL_PORT")


class ClientTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[client]`: what asks the server, `windows` times in a life after `warmup` unmeasured
    runs."""

    run: toml.Line
    """A line for the shell."""
    warmup: toml.Count = 1
    """Runs of it that do not count."""
    windows: Annotated[int, Meta(ge=1, le=1_000_000)] = 5
    """Runs of it that do."""
    preset: str = ""
    """A client that people use, whose figures need no tables of their own."""
    points: dict[toml.Name, toml.Text] = {}
    """Texts by name, by each of which $KVTRAIL_POINT in `run` is replaced in turn: points of load,
    whose metrics are called ttft_ms@NAME."""

    def __post_init__(self) -> None:
        if self.points and filled(self.run, {POINT: ""}) == self.run:
            raise ValueError("points need a run that holds $KVTRAIL_POINT, where each is put")
        clients = [name for name, one in PRESETS.items() if one.requests]
        if self.preset and self.preset not in clients:
            raise ValueError(f"preset is {self.preset!r}; there are {', '.join(clients)}")


class LabelsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`labels = { ... }`: what lists the labels of `[axis]` when a command begins: one of pip, tags
    and run."""

    pip: toml.Name | None = None
    """A package, whose releases are the labels, as far as the pip of `python` can install them;
    the oldest is the first. Yanked ones are left out."""
    since: toml.Words | None = None
    """The oldest release to take; "2.28" begins with 2.28.0."""
    until: toml.Words | None = None
    """The newest; "2.32" ends with the last 2.32.x."""
    pre: bool = False
    """Whether pre-releases are labels as well."""
    tags: toml.Words | None = None
    """A pattern for tags of the repository, such as "v*", in the order of versions. Each sees the
    files of its own commit."""
    run: toml.Line | None = None
    """A line for the shell that prints a label a line. It runs in the folder of the file."""

    def __post_init__(self) -> None:
        if [self.pip, self.tags, self.run].count(None) != 2:
            raise ValueError("labels in [axis] need exactly one of pip, tags and run")
        if self.pip is None and (self.since or self.until or self.pre):
            raise ValueError("since, until and pre choose among releases, and labels name no pip")


class AxisTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[axis]`: along what is compared."""

    kind: Literal["commits", "labels"] = "commits"
    """Commits of the repository, or labels."""
    labels: tuple[toml.Words, ...] | LabelsTable = ()
    """At least two, in their order, or what lists them."""

    def __post_init__(self) -> None:
        if isinstance(self.labels, LabelsTable):
            return
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("a label stands twice in labels")
        if self.kind == "labels" and len(self.labels) < 2:
            raise ValueError('kind = "labels" needs labels, at least two, in their order')


class TraceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[trace]`: a command that leaves a trace of what is measured, which `explain` reads."""

    run: toml.Line
    """A line for the shell that runs in place of `measure`, or of the client where there is a
    server. It leaves a Chrome trace, such as torch.profiler's, at $KVTRAIL_TRACE: a file,
    gzipped or not, or a folder of them."""


class SubjectText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tables of a file; a key that one of them does not know is an error."""

    subject: SubjectTable
    metrics: dict[toml.Words, MetricTable] = {}
    check: dict[toml.Words, CheckTable] = {}
    server: ServerTable | None = None
    client: ClientTable | None = None
    axis: AxisTable = AxisTable()
    trace: TraceTable | None = None

    def __post_init__(self) -> None:
        if (self.server is None) != (self.client is None):
            raise ValueError("a server needs a client, and a client a server")
        if self.client and not self.client.points and POINT in self.client.run:
            raise ValueError("run in [client] holds $KVTRAIL_POINT, and there are no points")
        if bool(self.subject.measure.strip()) == bool(self.server):
            raise ValueError("give either measure in [subject], or [server] and [client]")
        if self.subject.preset and self.server:
            raise ValueError("a client's preset stands in [client]; [subject] has that of measure")
        if self.subject.turns and not (self.metrics and self.subject.measure.strip()):
            raise ValueError("turns needs measure, and metrics, of which a life gives the windows")
        built_in = {one.name for one in (*BUILT_IN, READY, RSS_GROWTH)}
        if taken := (self.metrics.keys() | self.check.keys()) & built_in:
            raise ValueError(
                f"{min(taken)} is measured of every subject; call the metric otherwise"
            )
        preset = self.client.preset if self.client else self.subject.preset
        known = self.metrics | (PRESETS[preset].metrics if preset else {})
        if taken := self.check.keys() & known.keys():
            raise ValueError(f"{min(taken)} is a metric already; call the check otherwise")


def read_tables(path: Path) -> tuple[SubjectText, str]:
    """The tables of a file, and its text for the record.

    Raises Refused where it cannot be read or is no such file; the sentence names the place.
    """
    try:
        # Some editors put a mark of the encoding before the text.
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Refused(f"{path} cannot be read: {reason}.") from None
    try:
        return msgspec.toml.decode(text, type=SubjectText), text
    except RecursionError:
        raise Refused(f"{path}: its values are nested too deeply.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise Refused(f"{path}: {toml.in_words(str(error))}.") from None
