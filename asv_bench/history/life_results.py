"""Figures of single lives of a subject, filed as asv files those of its benchmarks."""

from __future__ import annotations

import math
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asv_bench.history.asv_results import Results
from asv_bench.history.filing import file_results
from asv_bench.history.histories import Histories, filed_under
from asv_bench.history.life_rounds import Due, Lived
from asv_bench.measure.samples import Reading
from asv_bench.output.record import write_json
from asv_bench.output.stored_json import read_stored
from asv_bench.process.machine import MachineFacts
from asv_bench.stats.segments import device_factors
from asv_bench.subjects.declared import DeclaredSubject

ENVIRONMENT = "host"
_BENCHMARKS, _MACHINE = 2, 1
"""Versions of asv's files."""


@dataclass(slots=True)
class LifeResults:
    """What lives of a subject have measured so far."""

    subject: DeclaredSubject
    histories: Histories
    machine: MachineFacts
    results: Path  # asv's results directory
    readings: dict[str, dict[str, list[Reading]]] = field(default_factory=dict)
    """By commit, or label, and by metric."""
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    """By commit: why a life did not give metrics that it should have given."""

    def take(self, due: Due, lived: Lived) -> None:
        """Keep what one life measured, and why it gave no more."""
        for metric, reading in lived.readings.items():
            self.readings.setdefault(due.commit, {}).setdefault(metric, []).append(reading)
        self.failed.setdefault(due.commit, {}).update(lived.failed)

    def give_up(self, commit: str, reason: str) -> None:
        """Note that lives of a commit give no metric, and why."""
        metrics = [metric.name for metric in self.subject.metrics]
        self.failed.setdefault(commit, {}).update(dict.fromkeys(metrics, reason))

    def reasons(self) -> dict[str, str]:
        """Why metrics that no life of some commit gave are missing there."""
        return {
            metric: reason
            for commit, reasons in self.failed.items()
            for metric, reason in reasons.items()
            if metric not in self.readings.get(commit, {})
        }

    def factors(self) -> dict[str, dict[str, float]]:
        """By metric that several devices measured, `device_factors` of it."""
        found = {}
        for metric, by_device in self._by_device().items():
            values = [one for of in by_device.values() for some in of.values() for one in some]
            # Devices have shares of all figures of a metric, and a count of 0 has none.
            if len(by_device) > 1 and min(values) > 0:
                found[metric] = device_factors(by_device)
        return found

    def remarks(self) -> list[str]:
        """What is done, or cannot be, about differences between devices."""
        found = []
        by_device = self._by_device()
        for metric, factors in self.factors().items():
            devices = len(by_device[metric])
            if factors:
                low, *_, high = sorted(factors, key=factors.__getitem__)
                found.append(
                    f"{metric}: {len(factors)} devices read between "
                    f"{100 * (factors[low] - 1):+.2f} % ({low}) and "
                    f"{100 * (factors[high] - 1):+.2f} % ({high}) of their mean, and each figure "
                    f"is divided by its device's share of it."
                )
            if len(factors) < devices:
                found.append(
                    f"{metric}: {devices - len(factors)} of {devices} devices have measured no "
                    f"commit that others have, so what differs between devices looks like a "
                    f"difference between commits; more --rounds tell them apart."
                )
        return found

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
            described = {**self._known(), **self.subject.described()}
            write_json(session / "benchmarks.json", {**described, "version": _BENCHMARKS})
            describe = describe_machine if self.subject.is_own else describe_hardware
            facts = describe(self.machine)
            description = {**facts, "version": _MACHINE}
            write_json(session / self.machine.name / "machine.json", description)
            factors = self.factors()
            for commit in dict.fromkeys([*self.readings, *self.failed]):
                self._save(commit, described, facts, session, factors)
            filed = file_results(session, self.results)
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

    def _known(self) -> dict[str, dict[str, Any]]:
        """Benchmarks that were measured once."""
        path = self.results / "benchmarks.json"
        return read_stored(path, "asv's benchmarks.json", dict) if path.exists() else {}

    def _date(self, commit: str) -> int:
        """When a commit was made, in milliseconds since 1970; of a label, its place."""
        if self.histories.labels:
            return self.histories.labels.index(commit)
        repository = self.subject.repository_of(commit)
        return 1000 * int(repository.line("show", "-s", "--format=%ct", "--end-of-options", commit))

    def _save(
        self,
        commit: str,
        described: Mapping[str, dict[str, Any]],
        facts: Mapping[str, str],
        session: Path,
        factors: Mapping[str, Mapping[str, float]],
    ) -> None:
        # An extra's, and slow to load.
        from asv.results import Results as AsvResults
        from asv.runner import BenchmarkResult

        filed = filed_under(commit) if self.histories.labels else commit
        python, environment = None, ENVIRONMENT
        if self.subject.is_own:
            # It runs in the ruler's own Python, which is a part of what figures are of.
            python = f"{sys.version_info.major}.{sys.version_info.minor}"
            facts, environment = {**facts, "python": python}, f"{ENVIRONMENT}-py{python}"
        results = AsvResults(facts, {}, filed, self._date(commit), python, environment, {})
        measured = self.readings.get(commit, {})
        rows: dict[str, dict[int, str]] = {}
        for metric in dict.fromkeys([*measured, *sorted(self.failed.get(commit, ()))]):
            name, number = self.subject.described_as(metric)
            rows.setdefault(name, {})[number] = metric
        for name, metrics in rows.items():
            combinations = math.prod(map(len, described[name]["params"]))
            # asv has NaN for combinations that were not asked for.
            values: list[float | None] = [math.nan] * combinations
            samples: list[list[float] | None] = [None] * combinations
            readings = [one for metric in metrics.values() for one in measured.get(metric, [])]
            for number, metric in metrics.items():
                factor_of = factors.get(metric, {})
                of_metric = [
                    one.value / factor_of.get(one.device, 1.0) for one in measured.get(metric, [])
                ]
                values[number] = statistics.median(of_metric) if of_metric else None
                samples[number] = of_metric or None
            started = max((reading.started_at for reading in readings), default=None)
            life_s = statistics.fmean(one.process_s for one in readings) if readings else 0
            results.add_result(
                described[name],
                BenchmarkResult(
                    result=values,
                    samples=samples,
                    number=[1 if one else None for one in samples],
                    errcode=0 if any(samples) else 1,
                    stderr="",
                    profile=None,
                ),
                started_at=started and datetime.fromtimestamp(started, UTC),
                # One life measures all metrics.
                duration=life_s / max(1, len(measured)),
                record_samples=True,
            )
        results.save(str(session))


def describe_hardware(facts: MachineFacts) -> dict[str, str]:
    """What asv stores of a machine: only what changes speed, as each entry keys a series.

    Of the operating system only the kind is kept: with its patch level, each update would start a
    new series.
    """
    return {
        "machine": facts.name,
        "os": platform.system(),
        "arch": platform.machine(),
        "cpu": facts.cpu,
        "num_cpu": str(facts.cores),
        "ram": f"{facts.memory_gib or 0:.0f} GiB",
        "gpu": facts.gpu or "none",
        "driver": facts.driver or "none",
    }


def describe_machine(facts: MachineFacts) -> dict[str, str]:
    """What asv stores of the hardware, and the packages that kvtrail's own benchmarks run with."""
    packages = {"torch": facts.torch or "none", "triton": facts.triton or "none"}
    return {**describe_hardware(facts), **packages}
