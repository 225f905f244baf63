"""Figures of single lives of a subject, filed as asv files those of its benchmarks."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asv_bench.git.repository import Repository
from asv_bench.history.asv_machine import describe_hardware
from asv_bench.history.asv_results import Results
from asv_bench.history.filing import file_results
from asv_bench.history.histories import Histories, filed_under
from asv_bench.output.record import write_json
from asv_bench.output.stored_json import read_stored
from asv_bench.process.machine import MachineFacts
from asv_bench.process.samples import Reading
from asv_bench.stats.offsets import device_factors
from asv_bench.subjects.declared import DeclaredSubject

ENVIRONMENT = "host"
_BENCHMARKS, _MACHINE = 2, 1
"""Versions of asv's files."""


@dataclass(slots=True)
class LifeResults:
    """What lives of a subject have measured so far.

    Attributes
    ----------
    readings
        By commit, or label, and by metric.
    failed
        By commit: metrics that a life should have given and did not.
    """

    subject: DeclaredSubject
    histories: Histories
    machine: MachineFacts
    readings: dict[str, dict[str, list[Reading]]] = field(default_factory=dict)
    failed: dict[str, set[str]] = field(default_factory=dict)

    def add(self, commit: str, readings: Mapping[str, Reading]) -> None:
        """Keep what one life measured."""
        for metric, reading in readings.items():
            self.readings.setdefault(commit, {}).setdefault(metric, []).append(reading)

    def fail(self, commit: str, metrics: Sequence[str]) -> None:
        """Note that a life gave none of these."""
        self.failed.setdefault(commit, set()).update(metrics)

    def factors(self) -> dict[str, dict[str, float]]:
        """By metric that several devices measured, `device_factors` of it."""
        return {
            metric: device_factors(by_device)
            for metric, by_device in self._by_device().items()
            if len(by_device) > 1
        }

    def remarks(self) -> list[str]:
        """What is done, or cannot be, about differences between devices."""
        devices = {metric: len(of_metric) for metric, of_metric in self._by_device().items()}
        return [
            sentence
            for metric, factors in self.factors().items()
            for sentence in _sentences(metric, devices[metric], factors)
        ]

    def _by_device(self) -> dict[str, dict[str, dict[str, list[float]]]]:
        """Figures by metric, by device and by commit."""
        found: dict[str, dict[str, dict[str, list[float]]]] = {}
        for commit, of_commit in self.readings.items():
            for metric, readings in of_commit.items():
                for reading in readings:
                    of_device = found.setdefault(metric, {}).setdefault(reading.device, {})
                    of_device.setdefault(commit, []).append(reading.value)
        return found

    def file(self) -> Results:
        """Write everything in asv's format beside what is stored, and return it.

        A metric counts as failed at a commit only where no life gave it. What several devices
        measured is divided by their factors.
        """
        self.histories.folder.mkdir(parents=True, exist_ok=True)
        self._configure()
        with tempfile.TemporaryDirectory(dir=self.histories.folder) as scratch:
            session = Path(scratch) / "asv"
            benchmarks = self._benchmarks()
            write_json(session / "benchmarks.json", {**benchmarks, "version": _BENCHMARKS})
            facts = describe_hardware(self.machine)
            description = {**facts, "version": _MACHINE}
            write_json(session / self.machine.name / "machine.json", description)
            commits = list(dict.fromkeys([*self.readings, *self.failed]))
            dates = self._dates(commits)
            factors = self.factors()
            for commit in commits:
                self._save(commit, dates[commit], benchmarks, facts, session, factors)
            filed = file_results(session, self.histories.results)
        return self.histories.named(filed)

    def _configure(self) -> None:
        """Let asv's own commands find the results, unless the user has said where they are."""
        path = self.histories.configured / "asv.conf.json"
        if not path.exists():
            content = {
                "version": 1,
                "project": self.subject.name,
                "repo": os.path.relpath(self.histories.repository, path.parent),
                "benchmark_dir": "asv",
                "results_dir": "asv",
                "html_dir": "html",
                "environment_type": "existing",
            }
            write_json(path, content)

    def _benchmarks(self) -> dict[str, dict[str, Any]]:
        """The metrics that are known today, and others that were measured once."""
        path = self.histories.results / "benchmarks.json"
        stored = read_stored(path, "asv's benchmarks.json", dict) if path.exists() else {}
        return stored | {
            metric.name: {
                "name": metric.name,
                "type": "track",
                "unit": metric.unit,
                "better": metric.better,
                "params": [],
                "param_names": [],
                "code": "",
                "version": self.subject.version(metric.name),
            }
            for metric in self.subject.known
        }

    def _dates(self, commits: Sequence[str]) -> dict[str, int]:
        """When commits were made, in milliseconds since 1970; of labels, their places."""
        if self.histories.labels:
            return {label: self.histories.labels.index(label) for label in commits}
        listed = Repository(self.histories.repository).ask(
            "show", "-s", "--format=%H %ct", "--end-of-options", *commits
        )
        rows = (line.split() for line in listed.decode().splitlines())
        return {commit: 1000 * int(seconds) for commit, seconds in rows}

    def _save(
        self,
        commit: str,
        date: int,
        benchmarks: Mapping[str, dict[str, Any]],
        facts: dict[str, str],
        session: Path,
        factors: Mapping[str, Mapping[str, float]],
    ) -> None:
        # An extra's, and slow to load.
        from asv.results import Results as AsvResults
        from asv.runner import BenchmarkResult

        filed = filed_under(commit) if self.histories.labels else commit
        results = AsvResults(facts, {}, filed, date, None, ENVIRONMENT, {})
        measured = self.readings.get(commit, {})
        for metric in dict.fromkeys([*measured, *sorted(self.failed.get(commit, ()))]):
            readings = measured.get(metric, [])
            factor_of = factors.get(metric, {})
            values = [one.value / factor_of.get(one.device, 1.0) for one in readings]
            started = max((reading.started_at for reading in readings), default=None)
            life_s = statistics.fmean(reading.process_s for reading in readings) if readings else 0
            results.add_result(
                benchmarks[metric],
                BenchmarkResult(
                    result=[statistics.median(values) if values else None],
                    samples=[values or None],
                    number=[1 if values else None],
                    errcode=0 if values else 1,
                    stderr="",
                    profile=None,
                ),
                started_at=started and datetime.fromtimestamp(started, UTC),
                # One life measures all metrics.
                duration=life_s / max(1, len(measured)),
                record_samples=True,
            )
        results.save(str(session))


def _sentences(metric: str, devices: int, factors: Mapping[str, float]) -> list[str]:
    found = []
    if factors:
        low, high = (pick(factors, key=factors.__getitem__) for pick in (min, max))
        found.append(
            f"{metric}: {len(factors)} devices read between {100 * (factors[low] - 1):+.2f} % "
            f"({low}) and {100 * (factors[high] - 1):+.2f} % ({high}) of their mean, and each "
            f"figure is divided by its device's share of it."
        )
    if len(factors) < devices:
        found.append(
            f"{metric}: {devices - len(factors)} of {devices} devices have measured no commit "
            f"that others have, so what differs between devices looks like a difference between "
            f"commits; more --rounds tell them apart."
        )
    return found
