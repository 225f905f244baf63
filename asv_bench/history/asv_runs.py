"""Running asv: its configuration for one purpose, its progress, and where its results go.

asv works in a folder of this process alone. Results are filed once asv has ended, each session's
beside those of others.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.history.asv_results import Results, read_results
from asv_bench.history.asv_selection import names_with_parameters
from asv_bench.history.filing import SESSION, copy_whole, file_results
from asv_bench.history.published_results import write_published
from asv_bench.output.destinations import require_writable
from asv_bench.output.stored_json import read_stored
from asv_bench.packages import require_packages
from asv_bench.process.borrowed_paths import search_path
from asv_bench.process.contract import PROGRESS_VARIABLE
from asv_bench.process.threads import measured_environment

POLL_SECONDS = 0.2
_KEPTSESSIONS = 8


class AsvError(MeasurementFailed):
    """asv failed."""


def require_project(root: Path) -> None:
    """Refuse, before measuring, a checkout that cannot be written or an environment without asv."""
    require_packages("asv", "jinja2")
    kept = ("asv", "asv-worktree", "asv-sessions", "asv-changes", "pages", "html", "runs")
    folders = (".asv", *(f"reports/{name}" for name in kept))
    require_writable(*(root / folder / "file" for folder in folders))


@dataclass(frozen=True, slots=True)
class AsvProject:
    """A project directory and where asv finds commits and keeps results for one purpose.

    Attributes
    ----------
    root
        The directory of asv.conf.json.
    repository
        Where the measured commits are.
    branch
        The branch whose commits asv's own pages show.
    work
        Where asv may leave what is nobody's to keep; None: in `root`.
    """

    root: Path
    repository: Path
    results: Path
    branch: str = "main"
    work: Path | None = None

    @property
    def html(self) -> Path:
        """Where asv's own pages go."""
        return self.results.parent / "html"

    @property
    def session(self) -> Path:
        """The folder of this process alone."""
        return (self.work or self.root) / ".asv" / "sessions" / SESSION

    @property
    def log(self) -> Path:
        """What asv printed when it measured last in this process."""
        return self._log_of("run")

    @property
    def measured(self) -> Path:
        """Where asv leaves results while it measures."""
        return self.session / "results"

    def _write_config(self, results: Path) -> Path:
        """Write a copy of asv.conf.json, with absolute paths, for asv to work on `results`."""
        source = self.root / "asv.conf.json"
        if not source.is_file():
            raise AsvError(f"{source} is missing; run this from a checkout of the project.")
        config = read_stored(source, "asv's configuration", dict)
        config |= {
            "repo": str(self.repository),
            "env_dir": str(self.session / "env"),
            "benchmark_dir": str(self.root / config["benchmark_dir"]),
            "results_dir": str(results),
            "html_dir": str(self.html),
            "branches": [self.branch],
        }
        path = self.session / "asv.conf.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config, indent=4) + "\n")
        return path

    def measure(
        self,
        commits: Sequence[str],
        benchmarks: Sequence[str],
        rounds: int,
        advance: Callable[[str, int, int], None],
    ) -> Results:
        """Measure commits with `asv run`, their rounds interleaved, and keep every sample.

        What asv has measured is filed when it is interrupted too. A file of an earlier session is
        never written to: `read_results` takes of each figure the session with the most samples.

        Parameters
        ----------
        commits
            Full hashes.
        benchmarks
            Regular expressions; asv measures what one of them is found in.
        rounds
            Processes per figure and commit.
        advance
            Called as processes start, with the benchmark's name, how many have started and how
            many there will be.

        Returns
        -------
        Results
            What was measured now, and nothing else.

        Raises
        ------
        Refused
            If the environment cannot be made at the checkout's path.
        AsvError
            With asv's own words, if it could not measure at all.
        """
        selection = [argument for regex in benchmarks for argument in ("--bench", regex)]
        # The environment is a virtual one, which Python makes at no path that this refuses.
        search_path([str(self.root)])
        listed = self.session / "commits.txt"
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("".join(f"{commit}\n" for commit in commits))
        # Interleaved: a round of each commit after the other, back and forth, so that a machine
        # that grows slower meanwhile does not favour the first.
        command = [
            "run",
            "--interleave-rounds",
            "--record-samples",
            "--show-stderr",
            "--no-pull",
            f"--attribute=rounds={rounds}",
            *selection,
            f"HASHFILE:{listed}",
        ]
        with tempfile.NamedTemporaryFile("r", prefix="asv-progress-") as progress:
            started = 0
            total = 0

            def report() -> None:
                nonlocal started, total
                total = total or rounds * self._selected(benchmarks)
                for line in progress:
                    started += 1
                    advance(line.strip(), started, total)

            shutil.rmtree(self.measured, ignore_errors=True)
            try:
                code = self._run(command, self.measured, {PROGRESS_VARIABLE: progress.name}, report)
            finally:
                measured = self._file()
        if code not in (0, 2) and "No benchmarks selected" not in self.log.read_text():
            raise AsvError(f"asv could not measure: {_last_words(self.log)} (see {self.log})")
        return measured

    def publish(self) -> None:
        """Build asv's own pages of what `read_results` reads; an AsvError has asv's words."""
        shown = self.session / "published"
        write_published(read_results(self.results), self.results, shown)
        try:
            if self._run(["publish", "--no-pull"], shown, {}, lambda: None):
                log = self._log_of("publish")
                raise AsvError(f"asv could not publish: {_last_words(log)} (see {log})")
        finally:
            shutil.rmtree(shown, ignore_errors=True)

    def _file(self) -> Results:
        """Move what asv has measured to where results are kept, and return it."""
        measured = file_results(self.measured, self.results)
        shutil.rmtree(self.session / "env", ignore_errors=True)
        copy_whole(self.log, self.root / ".asv" / "last-run.log")
        return measured

    def _forget_old_sessions(self) -> None:
        """Leave the newest folders of sessions that have ended, for their logs."""
        ended = [path for path in self.session.parent.iterdir() if not _is_alive(path)]
        for folder in sorted(ended)[:-_KEPTSESSIONS]:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(
        self,
        arguments: Sequence[str],
        results: Path,
        variables: dict[str, str],
        poll: Callable[[], None],
    ) -> int:
        config = self._write_config(results)
        self._forget_old_sessions()
        command = [sys.executable, "-m", "asv", "--config", str(config), *arguments]
        with self._log_of(arguments[0]).open("w") as log:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=measured_environment() | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                while process.poll() is None:
                    time.sleep(POLL_SECONDS)
                    poll()
            except BaseException:
                process.terminate()
                process.wait()
                raise
        poll()
        return process.returncode

    def _selected(self, benchmarks: Sequence[str]) -> int:
        """Processes of one round, once this run of asv has written what benchmarks there are."""
        try:
            described: dict[str, Any] = json.loads((self.measured / "benchmarks.json").read_text())
        except (OSError, ValueError):  # not there yet, or half written
            return 0
        return sum(
            any(re.search(regex, name) for regex in benchmarks)
            for benchmark in described.values()
            if isinstance(benchmark, dict)
            for name in names_with_parameters(benchmark["name"], benchmark["params"])
        )

    def _log_of(self, command: str) -> Path:
        return self.session / f"asv-{command}.log"


def _last_words(log: Path) -> str:
    lines = [line.strip(" ·") for line in log.read_text().splitlines() if line.strip(" ·")]
    return " / ".join(lines[-3:]) or "it said nothing"


def _is_alive(session: Path) -> bool:
    return Path("/proc", session.name.rpartition("-")[2]).exists()
