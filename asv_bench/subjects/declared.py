"""A subject that its user declares: by a `kvtrail.toml`, or by a command on the command line."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asv_bench.errors import MeasurementFailed, NothingMeasured, NothingSelected, Refused
from asv_bench.git.repository import Commit, NoRepository, Repository
from asv_bench.measure.life import CommandLife, Life, ServerLife, Work
from asv_bench.measure.lives import WALL, Lives
from asv_bench.measure.places import HOST, Place, places
from asv_bench.measure.processes import Processes
from asv_bench.measure.samples import CommitUnusable, Metric, RoundSource
from asv_bench.measure.software import Software
from asv_bench.measure.trees import Laid, Trees
from asv_bench.output.console import Progress, make_console
from asv_bench.output.redaction import without_secrets
from asv_bench.run.settings import EngineWorkload
from asv_bench.subjects import subject_file
from asv_bench.subjects.axis import Commits, Labels, listed, place_of
from asv_bench.subjects.metrics import ASKED_FOR, CheckTable, MetricTable, undeclared
from asv_bench.subjects.pinned import Pinned
from asv_bench.subjects.presets import PRESETS
from asv_bench.subjects.subject_file import (
    SUBJECT,
    ClientTable,
    LabelsTable,
    SubjectTable,
    SubjectText,
)

if TYPE_CHECKING:
    from asv_bench.fleet.fleet import Fleet

_NEWER: Any = {"take": "median", "url": None, "pairs_per_start": 1, "points": {}, "score": ""}
"""Keys that are newer than stored histories, and what they are where nobody gives them."""


class DeclaredSubject:
    """What a user's tables say: something that commits of a repository have, or labels.

    The repository is only read. Files of commits are laid out in a temporary folder that goes with
    `pairs`, or in the cache of setups.

    Pinned paths of `text` are from `root`, the repository's folder. `command` is what a life runs
    where that is not the line of `[subject] measure`, `source` the file's text for the record, and
    `folder` where in the repository commands run; "": at its top.
    """

    is_portable = True
    """Whether lives can run on machines that lack the files around the repository."""
    lists_packages = True
    """Whether variants, also under labels, may run with other packages than the ruler's Python."""
    kept_in: Path | None = None
    """The checkout that keeps its histories; None: they have a folder of their own."""
    stored: Sequence[str] = ()
    """Patterns of what its histories keep where nobody names any; none: what is compared."""
    is_compared = True
    """Whether figures are compared; else a life of kvtrail's benchmarks takes each once, as asv."""

    def __init__(
        self,
        root: Path,
        text: SubjectText,
        *,
        command: tuple[str, ...] = (),
        source: str = "",
        axis: str | None = None,
        folder: str = "",
    ) -> None:
        self.repository = root
        self.name = text.subject.name
        """In one word, for records and folders."""
        self._where = folder
        self._words = command
        self._source = source
        self.axis = self._axis_of(axis or text.axis.kind, text)
        self.labels = self.axis.labels
        """What is compared in place of commits, in its order; empty where commits are."""
        self.elsewhere: Fleet | None = None
        """Other machines, which run the lives of `pairs`."""
        self._declare(text)
        self.cells: dict[str, Software] = {}
        """What variants ran with, by hash or label."""
        self.others: dict[str, dict[str, list[float]]] = {}
        """Figures that are not compared: by metric, and by hash or label."""
        self.remarks: list[str] = []
        """Sentences about commits that were laid out so far, for the record."""
        self.near: Sequence[str] = ()
        """Revisions that are measured; an asv suite lists its benchmarks with one of them."""
        self._keepers = 0

    @classmethod
    def of_file(cls, path: Path, axis: str | None = None) -> DeclaredSubject:
        """The subject of a `kvtrail.toml`; `axis` "commits" or "labels" overrules its own."""
        content, source = subject_file.read_tables(path)
        table, beside = content.subject, path.resolve().parent
        root, folder = place_of((beside / table.repository).resolve())
        table = msgspec.structs.replace(
            table,
            env={**table.env, SUBJECT: str(beside)},
            pinned=tuple(f"{folder}/{path}" if folder else path for path in table.pinned),
        )
        text = msgspec.structs.replace(content, subject=table)
        return cls(root, text, source=source, axis=axis, folder=folder)

    @classmethod
    def of_command(cls, root: Path, command: Sequence[str]) -> DeclaredSubject:
        """The wall time of a command; one word that a shell reads as more is a line for it.

        Raises Refused where the command is empty.
        """
        if not command or not command[0].strip():
            raise Refused("the command to measure is empty; give it behind --.")
        is_line = len(command) == 1 and shlex.quote(command[0]) != command[0]
        line = command[0] if is_line else shlex.join(command)
        name = re.sub(r"[^\w.-]", "-", root.name) or "command"
        text = SubjectText(SubjectTable(name=name, measure=line))
        return cls(root, text, command=() if is_line else tuple(command))

    def _declare(self, text: SubjectText, listed: dict[str, MetricTable] | None = None) -> None:
        """Take tables, and the benchmarks that a file of the preset listed."""
        self._text, self._is_listed = text, listed is not None
        self._preset = text.client.preset if text.client else text.subject.preset
        preset = listed or (PRESETS[self._preset].metrics if self._preset else {})
        self._left: dict[str, MetricTable | CheckTable] = {**preset, **text.metrics, **text.check}
        self._tables = {
            f"{name}{point}": table for point in self._points for name, table in self._left.items()
        }
        found = [table.metric(name) for name, table in self._tables.items()]
        self._declared = [one for one in found if not one.check]
        self.checks = [one for one in found if one.check]
        """What is looked at beside figures, in the same lives."""
        # Without any, the wall time at all points.
        declared = self.known[: len(self._declared) or len(self._points)]
        self.metrics: Sequence[Metric] = sorted(declared, key=attrgetter("control"))
        """The figures that are compared: those declared, or the wall time where there is none."""

    @property
    def _points(self) -> list[str]:
        """What names of metrics end with, one for each point of load."""
        client = self._text.client
        return [f"@{point}" for point in client.points] if client and client.points else [""]

    def _axis_of(self, kind: str, text: SubjectText) -> Commits:
        if kind == "labels":
            labels, are_tags = text.axis.labels, False
            if not labels:
                raise Refused("--axis labels needs [axis] labels = [...] in the subject's file.")
            if isinstance(labels, LabelsTable):
                are_tags = labels.tags is not None
                labels = listed(labels, self.repository, text.subject)
            return Labels(labels, self.repository, self._folder, are_tags=are_tags)
        try:
            Repository(self.repository).line("rev-parse", "--git-dir")
        except NoRepository as error:
            raise Refused(
                f"{self.repository} is no git repository, and commits of it are to be measured: "
                f"{error}"
            ) from None
        return Commits(self.repository, self._folder)

    @cached_property
    def _scratch(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="kvtrail-")

    def _folder(self) -> Path:
        return Path(self._scratch.name)

    def version(self, metric: str) -> str:
        """What decides what figures of a metric mean: those of two versions do not compare."""
        table = self._tables.get(metric)
        if isinstance(table, MetricTable):
            table = msgspec.structs.replace(table, margin=None)
        content = (
            self._words,
            # Wherever the ruler's own Python lies.
            self._text.subject.measure.replace(sys.executable, "python"),
            self._text.server and _meaning(self._text.server),
            self._text.client and _meaning(self._text.client),
            table and _meaning(table),
            *filter(None, [self._where]),
        )
        return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]

    @property
    def known(self) -> list[Metric]:
        """All metrics that a life may give: those declared first, then those of every subject."""
        names = {one.name for one in self._declared}
        is_started = self._text.server is not None and self._text.server.start is not None
        others = undeclared(self._points, self._text.subject.devices or 0, is_started=is_started)
        return [*self._declared, *(one for one in others if one.name not in names)]

    @property
    def fixed(self) -> str:
        """A hash of the files that all commits take from the working tree; "" without such files.

        Figures taken under another are not those of the same measurement.
        """
        return " ".join(filter(None, [self.axis.fixed(), *self.pinned.digests.values()]))

    @cached_property
    def pinned(self) -> Pinned:
        """The pinned files; Refused if one is not there."""
        return Pinned.read(self.repository, self._text.subject.pinned)

    @property
    def devices(self) -> Sequence[str]:
        """Where it is measured, a round at a time on each."""
        if self.elsewhere is not None:
            return self.elsewhere.devices
        return [place.device for place in self._places]

    @cached_property
    def _places(self) -> list[Place]:
        """The places on this machine; Refused if it lacks what a life needs."""
        return places(self._text.subject, None)

    @property
    def work(self) -> Work:
        """What lives are, for whoever runs them."""
        table, metrics = self._text.subject, (*self.metrics, *self.checks)
        return Work(self._life(), table, metrics, self._where, self.lists_packages)

    def choose(self, patterns: Sequence[str], devices: str | None) -> None:
        """Compare other metrics than the declared ones, on this machine or on other GPUs of it.

        `patterns` are regular expressions, looked for in names of metrics; `devices` are GPUs by
        number or UUID with commas between, or "all". Raises Refused where there is no such metric
        or device.
        """
        self._places = places(self._text.subject, devices)
        self.choose_metrics(patterns)

    def _list_benchmarks(self) -> None:
        """Let a life of the newest commit that can be measured show what its preset finds."""
        for cell in map(self.resolve, reversed(self.near or self.labels[-1:] or ["HEAD"])):
            processes = Processes()
            lives = Lives(self.work, self._places, self._laying(processes), processes)
            nothing = f"{cell.short} left nothing at $KVTRAIL_RESULT that {self._preset} writes."
            failure: MeasurementFailed = NothingMeasured(nothing)
            try:
                with Progress(make_console(stderr=True), f"listing benchmarks with {cell.short}"):
                    lives.prepare(cell.hash)
            except CommitUnusable as error:
                failure = NothingMeasured(str(error)) if error.is_lacking else error
            finally:
                processes.stop()
            if lives.listed:
                return self._declare(self._text, lives.listed)
        raise failure

    def choose_metrics(self, patterns: Sequence[str]) -> None:
        """Compare other metrics than the declared ones; Refused as in `choose`."""
        if self._preset and PRESETS[self._preset].layouts and not self._is_listed:
            self._list_benchmarks()
        if patterns:
            found = []
            for metric in self.known:
                matches = re.fullmatch if metric in ASKED_FOR else re.search
                if any(matches(pattern, metric.name) for pattern in patterns):
                    found.append(metric)
            # Controls come with whatever is compared.
            controls = [one for one in self.known if one.control and one not in found and found]
            self.metrics = sorted([*found, *controls], key=attrgetter("control"))
        if not self.metrics:
            names = ", ".join(metric.name for metric in self.known)
            raise NothingSelected(
                f"no metric is called {' or '.join(patterns)}; there are {names}."
            )

    def choose_check(self, name: str) -> Metric:
        """Compare the results of a check in place of metrics; Refused where there is none."""
        found = [one for one in self.checks if one.name == name]
        if not found:
            known = ", ".join(one.name for one in self.checks) or "none in its file"
            raise NothingSelected(f"no check is called {name}; there is {known}.")
        self.metrics = [replace(found[0], check="", unit="score")]
        return found[0]

    def resolve(self, revision: str) -> Commit:
        """The commit or label of a name; "." is the working tree. Refused where there is none."""
        return self.axis.resolve(revision)

    def are_same(self, base: str, head: str) -> bool:
        """Whether nothing that is measured differs: all files are the same, but for pinned ones."""
        return self.axis.are_same(base, head, self._text.subject.pinned)

    @property
    def pathspecs(self) -> tuple[str, ...]:
        """What is measured of a commit's files, as git takes paths; none: all of them."""
        pinned = tuple(f":(exclude,literal){path}" for path in self._text.subject.pinned)
        return (".", *pinned) if pinned else ()

    def in_range(self, text: str) -> list[Commit]:
        """The commits of a range, or labels, in their order, as `Commits.in_range` has it."""
        return self.axis.in_range(text)

    @contextmanager
    def pairs(self) -> Iterator[RoundSource]:
        """What measures; leaving it ends its processes, and what was laid out goes."""
        if self.elsewhere is None:
            with self.ends() as lives:
                yield lives
            return
        source = self.elsewhere
        self.cells, self.others, self.remarks = source.cells, source.others, source.remarks
        with self.lying():
            try:
                yield source
            finally:
                source.stop()

    @contextmanager
    def ends(self) -> Iterator[Lives]:
        """What lays variants out on this machine, to be measured or looked at, as `pairs` does."""
        processes = Processes()
        with self.lying():
            try:
                lives = Lives(self.work, self._places, self._laying(processes), processes)
                self.cells, self.others = lives.cells, lives.others
                yield lives
            finally:
                processes.stop()

    @contextmanager
    def lying(self) -> Iterator[None]:
        """Let what is laid out lie until the outermost of these ends, and snapshots."""
        self._keepers += 1
        try:
            yield
        finally:
            self._keepers -= 1
            if not self._keepers:
                self._scratch.cleanup()

    def _laying(self, processes: Processes) -> Callable[[str], tuple[Laid, ...]]:
        table, folder = self._text.subject, self._folder()
        trees = Trees(self.axis.variant, table, self.pinned, self._where, folder, processes)
        self.remarks = trees.remarks
        return trees.lay_out

    def described(self) -> dict[str, dict[str, Any]]:
        """What asv stores of each benchmark, by its name; here a metric is one."""
        same = {"type": "track", "params": [], "param_names": [], "code": ""}
        found: dict[str, dict[str, Any]] = {}
        for one in (*self.known, *(check for check in self.checks if check.tolerance)):
            own = {"name": one.name, "unit": one.unit, "better": one.better}
            found[one.name] = {**same, **own, "version": self.version(one.name)}
        return found

    def described_as(self, metric: str) -> tuple[str, int]:
        """The benchmark of `described` that a metric is of, and the place of its parameters."""
        return metric, 0

    def engines(self, commits: Sequence[str]) -> dict[str, Path]:
        """The folders of kvtrail's engine that lives of commits run, by their full hashes.

        None where they run something else. Raises CommitUnusable where a commit has no engine.
        """
        return {}

    def traced_life(self) -> Life | None:
        """A life that leaves a trace; None: the subject has no `[trace]`."""
        trace, server = self._text.trace, self._text.server
        if trace is None:
            return None
        timeout = self._text.subject.timeout_s
        if server is not None:
            once = msgspec.structs.replace(server, pairs_per_start=1)
            return ServerLife(once, ClientTable(trace.run, warmup=0, windows=1), {}, timeout)
        return CommandLife(trace.run, {}, timeout)

    def _life(self) -> Life:
        server, client, table = self._text.server, self._text.client, self._text.subject
        if server is not None and client is not None:
            return ServerLife(server, client, self._left, table.timeout_s)
        how = table.timeout_s, table.preload, table.turns, table.preset
        return CommandLife(self._words or table.measure, self._left, *how)

    @property
    def line(self) -> str:
        """What is started for a life, as it is typed, without secrets."""
        if server := self._text.server:
            return without_secrets(server.start or server.url or "")
        return without_secrets(shlex.join(self._words) or self._text.subject.measure)

    def decoded(self, metric: str) -> EngineWorkload:
        """What the engine in one of `engines` runs for a metric, or what is like that."""
        return EngineWorkload("scheduler")

    def sentence(self) -> str:
        """What is measured and where, for the user to check."""
        names = ", ".join(metric.name for metric in self.metrics)
        what = "the wall time" if names == WALL else names
        unit = "" if self.elsewhere else "GPU "
        where = "" if self.devices == [HOST] else f" on {unit}{' and '.join(self.devices)}"
        starts = self._text.server.pairs_per_start if self._text.server else 1
        where += f", {starts} pairs from each start of the servers" if starts > 1 else ""
        which = "under each label" if self.labels else "in the files of each commit"
        which = "in the files of each tag" if self.labels and self.axis.have_files else which
        return f"measuring {what} of `{self.line}` {which}{where}"

    def to_json(self) -> dict[str, Any]:
        """What is measured, for the record."""
        return {
            "kind": "server" if self._text.server else "command",
            "name": self.name,
            "command": self.line,
            "repository": self.repository.name,
            **({"folder": self._where} if self._where else {}),
            "file": without_secrets(self._source),
            **({"labels": list(self.labels)} if self.labels else {}),
        }


def _meaning(table: msgspec.Struct) -> dict[str, Any]:
    """The keys of a table that decide what figures mean, those of `_NEWER` where they are given."""
    return {
        # Wherever the ruler's own Python lies.
        name: value.replace(sys.executable, "python") if name == "score" else value
        for name, value in msgspec.to_builtins(table).items()
        if name != "control" and (name not in _NEWER or _NEWER[name] != value)
    }
