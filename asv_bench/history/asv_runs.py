"""Running asv: its configuration for one purpose, and its progress."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.output.destinations import require_writable
from asv_bench.process.borrowed_paths import search_path
from asv_bench.process.contract import PROGRESS_VARIABLE
from asv_bench.process.threads import measured_environment

POLL_SECONDS = 0.2


class AsvError(MeasurementFailed):
    """asv could not do what was asked of it."""


def require_project(root: Path) -> None:
    """See before measuring that asv can work in a checkout, and its results be kept there.

    Raises
    ------
    Refused
        If something in it cannot be written.
    """
    kept = ("asv", "asv-worktree", "asv-sessions", "pages", "html")
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
    results
        Where results go.
    branch
        The branch whose commits asv's own pages show.
    """

    root: Path
    repository: Path
    results: Path
    branch: str = "main"

    @property
    def html(self) -> Path:
        """Where asv's own pages go."""
        return self.root / "reports" / "html"

    @property
    def log(self) -> Path:
        """What asv printed in its last run."""
        return self.root / ".asv" / "last-run.log"

    def write_config(self) -> Path:
        """Write a copy of asv.conf.json for this purpose, with absolute paths; return its path."""
        source = self.root / "asv.conf.json"
        if not source.is_file():
            raise AsvError(f"{source} is missing; run this from a checkout of the project.")
        config: dict[str, Any] = json.loads(source.read_text())
        for key in ("env_dir", "benchmark_dir"):
            config[key] = str(self.root / config[key])
        config |= {
            "repo": str(self.repository),
            "results_dir": str(self.results),
            "html_dir": str(self.html),
            "branches": [self.branch],
        }
        path = self.root / ".asv" / f"{self.results.name}.conf.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config, indent=4) + "\n")
        return path

    def measure(
        self,
        commits: Sequence[str],
        benchmarks: Sequence[str],
        rounds: int,
        advance: Callable[[str, int, int], None],
    ) -> bool:
        """Measure commits with `asv run`, their rounds interleaved, and keep every sample.

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
        bool
            Whether every benchmark succeeded or was skipped.

        Raises
        ------
        Refused
            If the environment cannot be made at the checkout's path.
        AsvError
            If asv could not measure at all; its own words are in the message.
        """
        selection = [argument for regex in benchmarks for argument in ("--bench", regex)]
        # The environment is a virtual one, which Python makes at no path that this refuses.
        search_path([str(self.root)])
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
            f"HASHFILE:{self._list(commits)}",
        ]
        with tempfile.NamedTemporaryFile("r", prefix="asv-progress-") as progress:
            started = 0
            total = 0

            def report() -> None:
                nonlocal started, total
                total = total or rounds * self._selected(benchmarks, since=begun)
                for line in progress:
                    started += 1
                    advance(line.strip(), started, total)

            begun = time.time()
            code = self._run(command, {PROGRESS_VARIABLE: progress.name}, report)
        if code not in (0, 2) and "No benchmarks selected" not in self.log.read_text():
            raise AsvError(f"asv could not measure: {self._last_words()} (see {self.log})")
        return code == 0

    def publish(self) -> None:
        """Build asv's own pages.

        Raises
        ------
        AsvError
            With asv's words, if it fails.
        """
        if self._run(["publish", "--no-pull"], {}, lambda: None):
            raise AsvError(f"asv could not publish: {self._last_words()} (see {self.log})")

    def discover(self) -> None:
        """Write `benchmarks.json`, which describes the benchmarks, to the results.

        Raises
        ------
        Refused
            If the environment cannot be made at the checkout's path.
        AsvError
            With asv's words, if it fails.
        """
        search_path([str(self.root)])
        if self._run(["run", "--bench", "just-discover", "--no-pull", "HEAD"], {}, lambda: None):
            raise AsvError(f"asv found no benchmarks: {self._last_words()} (see {self.log})")

    def _list(self, commits: Sequence[str]) -> Path:
        path = self.root / ".asv" / "commits.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{commit}\n" for commit in commits))
        return path

    def _run(
        self, arguments: Sequence[str], variables: dict[str, str], poll: Callable[[], None]
    ) -> int:
        config = self.write_config()
        command = [sys.executable, "-m", "asv", "--config", str(config), *arguments]
        with self.log.open("w") as log:
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

    def _selected(self, benchmarks: Sequence[str], since: float) -> int:
        """Processes of one round, once this run of asv has written what benchmarks there are."""
        path = self.results / "benchmarks.json"
        if not path.is_file() or path.stat().st_mtime < since:
            return 0
        try:
            described: dict[str, Any] = json.loads(path.read_text())
        except ValueError:  # half written
            return 0
        return sum(
            any(re.search(regex, name) for regex in benchmarks)
            for benchmark in described.values()
            if isinstance(benchmark, dict)
            for name in _names_with_parameters(benchmark)
        )

    def _last_words(self) -> str:
        lines = [line.strip(" ·") for line in self.log.read_text().splitlines() if line.strip(" ·")]
        return " / ".join(lines[-3:]) or "it said nothing"


def _names_with_parameters(benchmark: dict[str, Any]) -> list[str]:
    if not benchmark["params"]:
        return [benchmark["name"]]
    combinations = itertools.product(*benchmark["params"])
    return [f"{benchmark['name']}({', '.join(values)})" for values in combinations]
