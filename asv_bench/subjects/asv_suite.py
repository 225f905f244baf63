"""Any asv suite as the subject, by its `asv.conf.json`.

A commit is installed into an environment of its own, as asv would, once; its lives run the suite's
benchmarks of today through asv's runner. So each benchmark is a metric, of which lower is better.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from asv_bench.errors import MeasurementFailed, NothingSelected
from asv_bench.git.repository import WORKING_TREE
from asv_bench.history.asv_selection import Entry, entries_of, is_found, require_patterns
from asv_bench.measure import trees
from asv_bench.measure.figures import Figures
from asv_bench.measure.life import Life, Setting
from asv_bench.measure.processes import Job, LifeFailed, Processes
from asv_bench.measure.samples import Absence
from asv_bench.output.console import Progress, make_console, print_sentences
from asv_bench.subjects.asv_conf import AsvConf, refusing
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.metrics import MetricTable
from asv_bench.subjects.pinned import digest_of
from asv_bench.subjects.subject_file import SUBJECT, SubjectTable, SubjectText
from asv_bench.words import first_of

_SCRIPT = Path(__file__).with_name("asv_life.py")
_RUNNER = ("asv_runner", "pympler")
"""What asv puts into each environment; without pympler there are no `mem_` benchmarks."""
_LISTING_SECONDS = 600.0
_LONGEST_SECONDS = 1e6
_WORK = "KVTRAIL_WORK"
_NAMES_MODULE = re.compile(r"\^?\w+\\?\.(?![*+?{])")


class AsvSuite(DeclaredSubject):
    """The benchmarks of an `asv.conf.json`, in the commits of its repository.

    Raises Refused where asv is missing, or the file is none of asv's or of another repository.
    """

    is_portable = False

    def __init__(self, path: Path) -> None:
        self._conf = conf = AsvConf(path)
        self._versions: dict[str, str] = {}
        told = {"ASV": "true", "ASV_PROJECT": conf.conf.project, **conf.variables}
        own = {"PYTHONDONTWRITEBYTECODE": "1", SUBJECT: str(path.resolve().parent), **told}
        said = {
            "name": re.sub(r"[^\w.-]", "-", conf.conf.project).strip(".")[:60] or "suite",
            "setup": conf.setup,
            "measure": "true",
            # Every command has asv's own limit.
            "setup_timeout_s": conf.conf.install_timeout * (2 + len(conf.commands)),
            "env": own,
        }
        with refusing(str(path)):
            # Converted, which checks what a table that is made does not.
            table = msgspec.convert(said, SubjectTable)
        super().__init__(conf.root, SubjectText(table), source=path.read_text(encoding="utf-8"))

    def choose(self, patterns: Sequence[str], devices: str | None) -> None:
        """Choose benchmarks: patterns are looked for in names with parameters.

        Raises NothingSelected where no benchmark is called so, and MeasurementFailed where no
        commit that is measured can be installed or imports the benchmarks.
        """
        require_patterns("--benchmark", patterns)
        wanted = patterns or (".",)
        self._kept = kept = self._kept_suite()
        listing = self._listing(kept, wanted)
        described = {one["name"]: one for one in listing["benchmarks"]}
        known = entries_of(listing["benchmarks"])
        entries = [entry for entry in known if is_found(entry.name, wanted)]
        unknown = [
            f"its module {name or '__init__'} cannot be imported: {error}."
            for name, error in listing["unknown"].items()
        ]
        if not entries and unknown:
            raise MeasurementFailed(f"the suite cannot be imported: {' '.join(unknown)}")
        if not entries:
            shown = ", ".join(entry.name for entry in known[:6])
            raise NothingSelected(
                f"no benchmark is called {' or '.join(patterns)}; there are {len(known)}, such as "
                f"{shown}."
            )
        print_sentences(make_console(stderr=True), unknown, "yellow")
        told = {entry: described[entry.identifier.partition("-")[0]] for entry in entries}
        self._wanted = [self._order(*one) for one in told.items()]
        self._versions = {entry.name: one["version"] for entry, one in told.items()}
        caches = {one["setup_cache_key"]: one["setup_cache_timeout_s"] for one in self._wanted}
        limits = [*caches.values(), *(one["timeout_s"] for one in self._wanted)]
        table = msgspec.structs.replace(
            self._text.subject,
            measure=f'{_line(kept)} run {shlex.quote(str(self._copy(kept)))} "${_WORK}"',
            timeout_s=_LISTING_SECONDS + sum(limits),
        )
        metrics = {entry.name: MetricTable(path=entry.name, unit=entry.unit) for entry in entries}
        self._declare(SubjectText(table, metrics=metrics))
        super().choose((), devices)

    def _order(self, entry: Entry, one: Mapping[str, Any]) -> dict[str, Any]:
        """What a life is told of a benchmark, of which asv says so much."""
        timeout = _seconds(one.get("timeout"), self._conf.conf.default_benchmark_timeout)
        return {
            "name": entry.name,
            "identifier": entry.identifier,
            "type": one["type"],
            "timeout_s": timeout,
            "setup_cache_key": one.get("setup_cache_key"),
            "setup_cache_timeout_s": _seconds(one.get("setup_cache_timeout"), timeout),
        }

    def version(self, metric: str) -> str:
        return self._versions.get(metric) or super().version(metric)

    @property
    def fixed(self) -> str:
        return digest_of(self._conf.suite)

    def sentence(self) -> str:
        names = first_of([metric.name for metric in self.metrics], 4)
        how = f"each commit installed for Python {self._conf.python} by pip"
        return f"measuring {names} of the asv suite of {self.name}, {how}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": "asv", "name": self.name, "file": self._source}

    def _life(self) -> Life:
        # asv's own default is another, but a start of Python for every benchmark of every life
        # makes a suite hopeless.
        is_imported_once = self._conf.conf.launch_method != "spawn"
        return SuiteLife(super()._life(), self._wanted, is_imported_once, self._kept)

    def _copy(self, kept: Path) -> Path:
        return kept / "suite" / self._conf.suite.name

    def _kept_suite(self) -> Path:
        """A copy of the benchmarks and of asv's runner, which no edit changes meanwhile."""
        parts = [Path(str(spec.origin)).parent for spec in filter(None, map(find_spec, _RUNNER))]
        content = " ".join(digest_of(path) for path in (self._conf.suite, _SCRIPT, *parts))
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        kept = trees.CACHE / f"{self.name}-suite-{digest}"
        if not kept.is_dir():
            trees.CACHE.mkdir(parents=True, exist_ok=True)
            making = Path(tempfile.mkdtemp(dir=trees.CACHE))
            unread = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(self._conf.suite, self._copy(making), ignore=unread)
            shutil.copy2(_SCRIPT, making)
            for part in parts:
                shutil.copytree(part, making / part.name, ignore=unread)
            with contextlib.suppress(OSError):
                # Another command may have made the same meanwhile.
                making.rename(kept)
            shutil.rmtree(making, ignore_errors=True)
        os.utime(kept)
        return kept

    def _listing(self, kept: Path, patterns: Sequence[str]) -> Any:
        """asv's descriptions of the benchmarks by a commit that is measured anyway, the newest.

        They are kept with its setup.
        """
        name = next((one for one in self.near[::-1] if one != WORKING_TREE), "HEAD")
        commit, suite = self.resolve(name), self._copy(kept)
        modules = _modules(suite, patterns)
        key = hashlib.sha256(json.dumps([kept.name, modules]).encode()).hexdigest()[:16]
        what = f"listing the benchmarks with {commit.short}"
        with Progress(make_console(stderr=True), f"{what}, installed first if need be") as bar:
            processes = Processes()
            laid = self._laying(processes)(commit.hash)[0]
            bar.show(what=what)
            listing = laid.out / f"benchmarks-{key}.json"
            if not listing.is_file():
                unfinished = listing.with_suffix(f".{os.getpid()}")
                words = ("list", str(suite), str(unfinished), *modules)
                # Lives write no bytecode, and would compile the suite each time.
                compiling = f"{_PYTHON} -m compileall -q {shlex.quote(str(kept))} >/dev/null 2>&1"
                line = f"{compiling}; {_line(kept)} {shlex.join(words)}"
                job = Job(line, laid.tree, laid.environment(self._text.subject))
                try:
                    processes.run(job, _LISTING_SECONDS)
                except LifeFailed as error:
                    raise MeasurementFailed(f"the suite cannot be listed: {error}") from None
                unfinished.rename(listing)
        return json.loads(listing.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class SuiteLife(Life):
    """The chosen benchmarks of a suite, which a command runs one by one."""

    command: Life
    wanted: Sequence[Mapping[str, Any]]
    """What the command is told of each benchmark; too much for its line."""
    is_imported_once: bool  # whether benchmarks are forks of a process that has imported them
    kept: Path  # the folder of the suite, in use as long as this lives
    absent: dict[Path, dict[str, Absence]] = field(default_factory=dict)
    """By the folder of a variant, what gave no figure in its first life. It is not run again: a
    benchmark that does not end would take its whole limit each time."""

    def live(self, setting: Setting, metrics: Collection[str]) -> Figures:
        os.utime(self.kept)
        absent = self.absent.get(setting.laid.tree, {})
        wanted = [one for one in self.wanted if one["name"] in metrics if one["name"] not in absent]
        told = {"benchmarks": wanted, "is_imported_once": self.is_imported_once}
        with tempfile.TemporaryDirectory(prefix="kvtrail-", ignore_cleanup_errors=True) as work:
            (Path(work) / "wanted.json").write_text(json.dumps(told))
            told_where = {**setting.variables, _WORK: work}
            figures = self.command.live(replace(setting, variables=told_where), metrics)
            reasons = json.loads((Path(work) / "reasons.json").read_text())
        figures.absences |= {name: Absence(*reason) for name, reason in reasons.items()} | absent
        self.absent.setdefault(setting.laid.tree, figures.absences)
        return figures


_PYTHON = '"$KVTRAIL_OUT/env/bin/python"'


def _line(kept: Path) -> str:
    """How a script beside asv's runner is started in a commit's environment."""
    return f"PYTHONPATH={shlex.quote(str(kept))} {_PYTHON} {shlex.quote(str(kept / _SCRIPT.name))}"


def _seconds(said: Any, otherwise: float) -> float:
    """A limit that a benchmark names, where it is one."""
    is_number = isinstance(said, int | float) and not isinstance(said, bool)
    return min(max(0.001, said if is_number else otherwise), _LONGEST_SECONDS)


def _modules(suite: Path, patterns: Sequence[str]) -> list[str]:
    """The only modules that patterns can mean, each of which begins with one; none: any may be."""
    paths = [path.relative_to(suite).with_suffix("") for path in sorted(suite.rglob("*.py"))]
    names = [".".join(part for part in path.parts if part != "__init__") for path in paths]
    found: set[str] = set()
    for pattern in patterns:
        begin = _NAMES_MODULE.match(pattern)
        meant = {name for name in names if begin and re.search(begin[0], f"{name}.")}
        if not meant or "|" in pattern:
            return []
        found |= meant
    return sorted(found)
