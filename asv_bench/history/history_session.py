"""Sessions of `history` and `bench`: lives are measured in rounds, and filed as asv would."""

from __future__ import annotations

import itertools
import math
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asv_bench.compare.checks import first_difference
from asv_bench.errors import MeasurementFailed, NothingMeasured, Refused
from asv_bench.git.repository import short
from asv_bench.history.asv_results import BENCHMARKS, MACHINE, Results, read_benchmarks
from asv_bench.history.histories import CLIENTS, Histories, filed_under
from asv_bench.history.life_rounds import Counting, Due
from asv_bench.measure.log import KeptRound
from asv_bench.measure.samples import Reading
from asv_bench.output.console import clock, print_sentences
from asv_bench.output.record import write_json, write_text
from asv_bench.output.stored_json import read_stored
from asv_bench.process.environment import ENVIRONMENT_TYPE
from asv_bench.process.machine import MachineFacts
from asv_bench.session.exit_codes import ExitCode
from asv_bench.stats.segments import device_factors
from asv_bench.subjects.declared import DeclaredSubject

LONG_SECONDS = 3600.0
"""Work that is expected to take longer is begun only where the user has agreed."""


@dataclass(slots=True)
class LifeResults:
    """What lives of a subject have measured so far on one kind of machine."""

    subject: DeclaredSubject
    histories: Histories
    machine: MachineFacts
    results: Path  # asv's results directory
    # When commits were made, in milliseconds since 1970; of labels, their places.
    dates: Mapping[str, int] = field(default_factory=dict)
    readings: dict[str, dict[str, list[Reading]]] = field(default_factory=dict)
    """By commit, or label, and by metric."""
    results_of: dict[str, dict[str, list[Reading]]] = field(default_factory=dict)
    """Of checks for equal results, by check and by commit."""
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    """By commit: why a life did not give metrics that it should have given."""

    def take(self, commit: str, lived: KeptRound) -> None:
        checks = {one.name: one for one in self.subject.checks}
        for metric, reading in lived.readings[0].items():
            check = checks.get(metric)
            if check is not None and check.check == "equal":
                self.results_of.setdefault(metric, {}).setdefault(commit, []).append(reading)
                continue
            if check is not None and (number := check.result(reading.value)) > 0:
                reading = replace(reading, value=number)
            elif check is not None:  # of which asv has no series
                continue
            self.readings.setdefault(commit, {}).setdefault(metric, []).append(reading)
        self.failed.setdefault(commit, {}).update(lived.failed)

    def factors(self) -> dict[str, dict[str, float]]:
        """By metric that several devices measured, `device_factors` of it."""
        found: dict[str, dict[str, dict[str, list[float]]]] = {}
        for commit, of_commit in self.readings.items():
            for metric, readings in of_commit.items():
                for reading in readings:
                    of_device = found.setdefault(metric, {}).setdefault(reading.device, {})
                    of_device.setdefault(commit, []).append(reading.value)
        return {
            metric: device_factors(by_device)
            for metric, by_device in found.items()
            # Devices have shares of all figures of a metric, and a count of 0 has none.
            if len(by_device) > 1
            and all(min(values) > 0 for of in by_device.values() for values in of.values())
        }

    def remarks(self) -> list[str]:
        """Where the result of a check is another than before, and devices that nothing ties."""
        found = []
        for check, of_commit in self.results_of.items():
            before = None
            for commit in (one for one in self.dates if one in of_commit):
                seen = list(dict.fromkeys(reading.results for reading in of_commit[commit]))
                if before is not None and before not in seen:
                    what = first_difference(before, seen[0])
                    found.append(f"{check}: another result from {short(commit)} on, {what}")
                if len(seen) > 1:
                    what = first_difference(*seen[:2])
                    found.append(f"{check}: unstable result at {short(commit)}, {what}")
                before = seen[0]
        for metric, factors in self.factors().items():
            devices = {one.device for of in self.readings.values() for one in of.get(metric, ())}
            if apart := devices - factors.keys():
                found.append(
                    f"{metric}: {len(apart)} of {len(devices)} devices have measured no commit "
                    f"that others have, so what differs between devices looks like a difference "
                    f"between commits; more --rounds tell them apart."
                )
        return found

    def file(self) -> Results:
        """Write everything in asv's format beside what is stored, and return it.

        A metric counts as failed at a commit only where no life gave it. What several devices
        measured is divided by their factors.
        """
        self._configure()
        known = self.results / BENCHMARKS
        described = read_stored(known, "asv's benchmarks.json", dict) if known.exists() else {}
        described |= self.subject.described()
        factors = self.factors()
        with tempfile.TemporaryDirectory() as scratch:
            session = Path(scratch)
            write_json(session / BENCHMARKS, {**described, "version": 2})
            write_json(session / self.machine.name / MACHINE, {**self._facts(), "version": 1})
            for commit in dict.fromkeys([*self.readings, *self.failed]):
                # One that failed was asked as the others were.
                for client in self._clients([commit]) or [*self._clients(self.readings), ""][:1]:
                    self._save(commit, client, session, factors)
            for cell in self.subject.cells.values():
                if cell.client:
                    path = self.histories.folder / CLIENTS / f"{cell.client.hash}.json"
                    write_json(path, cell.client.to_json())
            measured = self.histories.read(session)
            for path in session.rglob("*.json"):
                self._keep(path, self.results / path.relative_to(session))
        return measured

    def _clients(self, commits: Iterable[str]) -> list[str]:
        """The hashes of what asked the servers of commits; "": nothing did."""
        measured = (of for one in commits for of in self.readings.get(one, {}).values())
        return list(dict.fromkeys(one.client for of_metric in measured for one in of_metric))

    def _keep(self, path: Path, target: Path) -> None:
        """Keep a file of the session, results beside those of earlier sessions.

        A stored list of benchmarks that says the same stays as it is: asv's also has numbers of
        lines of the source, and the list is tracked by git.
        """
        if path.name == BENCHMARKS and read_benchmarks(path, []) == read_benchmarks(target, []):
            return
        if path.name not in (BENCHMARKS, MACHINE):
            numbered = (target.with_stem(f"{target.stem}-{count}") for count in itertools.count(2))
            target = next(one for one in itertools.chain([target], numbered) if not one.exists())
        write_text(target, path.read_text("utf-8"))

    def _configure(self) -> None:
        """Let asv's own commands find the results, unless the user has said where they are."""
        path = self.histories.configured / "asv.conf.json"
        if not path.exists():
            repository = os.path.relpath(self.histories.repository, path.parent)
            project = {"project": self.subject.name, "repo": repository}
            folders = {"benchmark_dir": "asv", "results_dir": "asv", "html_dir": "html"}
            write_json(path, {"version": 1, **project, **folders, "environment_type": "existing"})

    def _facts(self) -> dict[str, str]:
        """What asv stores of a machine: only what changes speed, as each entry keys a series.

        Of the operating system only the kind is kept: with its patch level, each update would start
        a new series. kvtrail's own benchmarks run with the packages that are here.
        """
        machine = self.machine
        facts = {
            "machine": machine.name,
            "os": platform.system(),
            "arch": platform.machine(),
            "cpu": machine.cpu,
            "num_cpu": str(machine.cores),
            "ram": f"{machine.memory_gib or 0:.0f} GiB",
            "gpu": machine.gpu or "none",
            "driver": machine.driver or "none",
            **({"image": machine.image} if machine.image else {}),
        }
        if not self.subject.lists_packages:
            facts |= {"torch": machine.torch or "none", "triton": machine.triton or "none"}
        return facts

    def _save(
        self, commit: str, client: str, session: Path, factors: Mapping[str, Mapping[str, float]]
    ) -> None:
        # An extra's, and slow to load.
        from asv.results import Results as AsvResults
        from asv.runner import BenchmarkResult

        filed = filed_under(commit) if self.histories.labels else commit
        described, facts = self.subject.described(), self._facts()
        python, environment = None, ENVIRONMENT_TYPE
        if not self.subject.lists_packages:
            # It runs in the ruler's own Python, which is a part of what figures are of.
            python = f"{sys.version_info.major}.{sys.version_info.minor}"
            facts["python"], environment = python, f"{ENVIRONMENT_TYPE}-py{python}"
        if client:
            facts["client"], environment = client, f"{environment}-{client}"
        results = AsvResults(facts, {}, filed, self.dates[commit], python, environment, {})
        measured = {
            metric: of_client
            for metric, found in self.readings.get(commit, {}).items()
            if (of_client := [one for one in found if one.client == client])
        }
        rows: dict[str, dict[int, str]] = {}
        for metric in dict.fromkeys([*measured, *sorted(self.failed.get(commit, ()))]):
            name, number = self.subject.described_as(metric)
            rows.setdefault(name, {})[number] = metric
        for name, metrics in rows.items():
            combinations = math.prod(map(len, described[name]["params"]))
            # asv has NaN for combinations that were not asked for.
            values: list[float | None] = [math.nan] * combinations
            samples: list[list[float] | None] = [None] * combinations
            for number, metric in metrics.items():
                factor_of = factors.get(metric, {})
                of_metric = [
                    one.value / factor_of.get(one.device, 1.0) for one in measured.get(metric, [])
                ]
                values[number] = statistics.median(of_metric) if of_metric else None
                samples[number] = of_metric or None
            begun = [one.started_at for it in metrics.values() for one in measured.get(it, [])]
            started = datetime.fromtimestamp(max(begun), UTC) if begun else None
            numbers = [1 if one else None for one in samples]
            failure = 0 if any(samples) else 1
            outcome = BenchmarkResult(values, samples, numbers, failure, stderr="", profile=None)
            results.add_result(described[name], outcome, started, record_samples=True)
        results.save(str(session))


class MeasuringHistory(Counting):
    """Commits or labels in rounds, which are filed.

    What takes long wants a yes. An interrupted session is not filed: its lives are kept, and the
    same command goes on with them. What is measured when the time is up is filed.
    """

    unit = "lives"
    is_for_one_kind = False

    def __init__(
        self,
        command: str,
        subject: DeclaredSubject,
        histories: Histories,
        commits: Sequence[str],
        rounds: int,
        said: str,  # what is measured
        *,
        yes: bool,
        results: Path | None = None,  # asv's results directory; None: that of `histories`
    ) -> None:
        self._histories, self._said, self._yes = histories, said, yes
        self._results = results or histories.results
        settings = {
            "commits": list(commits),
            "benchmarks": [metric.name for metric in subject.metrics],
            "rounds": rounds,
        }
        if histories.is_own:
            settings["results"] = self._results.relative_to(histories.repository).as_posix()
        subject.is_compared = False
        super().__init__(command, settings, subject, commits, rounds)

    def names(self) -> Sequence[str]:
        return self._commits

    def begin(self) -> list[str]:
        dates = {commit: self._date(commit) for commit in self._commits}
        self._of_kind = {
            kind: LifeResults(self._subject, self._histories, machine, self._results, dates)
            for kind, machine in self._machines().items()
        }
        return [self._said]

    def meaning(self) -> dict[str, Any]:
        """See `Session`; each kind of machine of a fleet has parts of its own."""
        versions = {one.name: self._subject.version(one.name) for one in self._subject.metrics}
        kinds = {} if self._fleet is None else {"machine": None, "threads": None}
        return {**super().meaning(), **kinds, "versions": versions}

    def take(self, due: Due, lived: KeptRound) -> None:
        self._of_kind[due.kind].take(due.commit, lived)

    def _date(self, commit: str) -> int:
        if self._histories.labels:
            return self._histories.labels.index(commit)
        repository = self._subject.axis.variant(commit).repository
        return 1000 * int(repository.line("show", "-s", "--format=%ct", "--end-of-options", commit))

    def agree(self, seconds: float) -> None:
        self._console.print(f"expected to take about {clock(seconds)} at most")
        if seconds > LONG_SECONDS and not self._yes and self._how.limit.left() is None:
            raise Refused(
                f"this may take {clock(seconds)} hours. Add --yes to begin, or measure less: a "
                f"shorter range, fewer --rounds, or some benchmarks with --benchmark."
            )

    def _measured(self) -> ExitCode:
        """See `Session`; what was measured is filed."""
        super()._measured()
        if self._is_interrupted:
            raise self._interruption("measured and kept, and none is filed yet")
        if self._stopped and not self._log.count:
            raise NothingMeasured("time was up before the first life had ended.")
        unusable = self._unusable
        if len(unusable) == len(self._commits):
            [first, *_] = unusable.values()
            is_lacking = all(error.is_lacking for error in unusable.values())
            failure = NothingMeasured if is_lacking else MeasurementFailed
            raise failure(f"nothing was measured: {first}")
        names = [metric.name for metric in self._subject.metrics]
        for one, (commit, error) in itertools.product(self._of_kind.values(), unusable.items()):
            if not error.is_lacking:
                one.failed.setdefault(commit, {}).update(dict.fromkeys(names, error.reason))
        filed = [figure for one in self._of_kind.values() for figure in one.file().figures]
        self.figures = [figure for figure in filed if not figure.failed]
        # Why benchmarks that no life of some commit gave are missing there, by their names.
        self._failed = {
            name: reason
            for one in self._of_kind.values()
            for commit, reasons in one.failed.items()
            for name, reason in reasons.items()
            if name not in one.readings.get(commit, {})
        }
        return ExitCode.FAILED if self._failed else ExitCode.GOOD

    def print_answer(self) -> None:
        """See `Session`: which commits gave no figure; figures are printed below."""
        given = {figure.commit for figure in self.figures}
        reasons = {commit: error.reason for commit, error in self._unusable.items()}
        otherwise = "time was up" if self._stopped else "it lacks what is measured"
        said = self._late(", which are filed")
        said += [
            f"{short(commit)} gave no figure: {reasons.get(commit, otherwise)}"
            for commit in self._commits
            if commit not in given
        ]
        said += [sentence for one in self._of_kind.values() for sentence in one.remarks()]
        print_sentences(self._console, said)
        if not given:
            raise MeasurementFailed(
                f"nothing was measured: all of {', '.join(self._failed)} failed."
            )
        self._record.notes += said
        self._record.samples = list(map(asdict, self.figures))

    def results(self) -> dict[str, Any]:
        return {
            "device_factors": {kind: one.factors() for kind, one in self._of_kind.items()},
            "failed": self._failed,
            "checks": [
                {
                    "check": check,
                    "commit": commit,
                    "results": [one.brief().results for one in found],
                }
                for kind in self._of_kind.values()
                for check, of_commit in kind.results_of.items()
                for commit, found in of_commit.items()
            ],
        }

    def end(self, code: ExitCode) -> None:
        """See `Session`; raises MeasurementFailed where a benchmark failed."""
        super().end(ExitCode.GOOD)
        if failed := self._failed:
            reasons = "; ".join(f"{name} ({why})" for name, why in failed.items())
            raise MeasurementFailed(
                f"{len(failed)} benchmarks failed and gave no figure: {reasons}"
            )
