"""Figures of single lives of a subject, filed as asv files those of its benchmarks."""

from __future__ import annotations

import itertools
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

from asv_bench.history.asv_results import BENCHMARKS, MACHINE, Results, read_benchmarks
from asv_bench.history.histories import Histories, filed_under
from asv_bench.history.life_rounds import Lived
from asv_bench.measure.samples import Reading
from asv_bench.output.destinations import write_text
from asv_bench.output.record import write_json
from asv_bench.output.stored_json import read_stored
from asv_bench.process.environment import ENVIRONMENT_TYPE
from asv_bench.process.machine import MachineFacts
from asv_bench.stats.segments import device_factors
from asv_bench.subjects.declared import DeclaredSubject


@dataclass(slots=True)
class LifeResults:
    """What lives of a subject have measured so far on one kind of machine."""

    subject: DeclaredSubject
    histories: Histories
    machine: MachineFacts
    results: Path  # asv's results directory
    readings: dict[str, dict[str, list[Reading]]] = field(default_factory=dict)
    """By commit, or label, and by metric."""
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    """By commit: why a life did not give metrics that it should have given."""

    def take(self, commit: str, lived: Lived) -> None:
        """Keep what one life measured, and why it gave no more."""
        for metric, reading in lived.readings.items():
            self.readings.setdefault(commit, {}).setdefault(metric, []).append(reading)
        self.failed.setdefault(commit, {}).update(lived.failed)

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
        """Of which metrics differences between devices cannot be told from those of commits."""
        found = []
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
        facts, factors = self._facts(), self.factors()
        with tempfile.TemporaryDirectory() as scratch:
            session = Path(scratch)
            write_json(session / BENCHMARKS, {**described, "version": 2})
            write_json(session / self.machine.name / MACHINE, {**facts, "version": 1})
            for commit in dict.fromkeys([*self.readings, *self.failed]):
                self._save(commit, described, facts, session, factors)
            measured = self.histories.read(session)
            for path in session.rglob("*.json"):
                self._keep(path, self.results / path.relative_to(session))
        return measured

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
        }
        if self.subject.is_own:
            facts |= {"torch": machine.torch or "none", "triton": machine.triton or "none"}
        return facts

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
        python, environment = None, ENVIRONMENT_TYPE
        if self.subject.is_own:
            # It runs in the ruler's own Python, which is a part of what figures are of.
            python = f"{sys.version_info.major}.{sys.version_info.minor}"
            facts, environment = {**facts, "python": python}, f"{ENVIRONMENT_TYPE}-py{python}"
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
            for number, metric in metrics.items():
                factor_of = factors.get(metric, {})
                of_metric = [
                    one.value / factor_of.get(one.device, 1.0) for one in measured.get(metric, [])
                ]
                values[number] = statistics.median(of_metric) if of_metric else None
                samples[number] = of_metric or None
            begun = [one.started_at for it in metrics.values() for one in measured.get(it, [])]
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
                started_at=datetime.fromtimestamp(max(begun), UTC) if begun else None,
                record_samples=True,
            )
        results.save(str(session))
