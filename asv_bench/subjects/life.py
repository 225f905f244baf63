"""One life of a subject: a command from its start to its end, or a server asked by a client."""

from __future__ import annotations

import re
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from asv_bench.process.run_apart import last_words
from asv_bench.subjects.figures import Figures, read_figures
from asv_bench.subjects.processes import Job, LifeFailed, Processes, Started
from asv_bench.subjects.subject_file import ClientTable, MetricTable, ReadyTable, ServerTable
from asv_bench.subjects.trees import Laid

_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 5.0


class Life(Protocol):
    """What a subject does for one sample."""

    def live(
        self, laid: Laid, variables: Mapping[str, str], cores: tuple[int, ...], processes: Processes
    ) -> Figures:
        """Run it once, in the folder of a variant.

        Raises
        ------
        LifeFailed
            If it does not end well.
        """
        ...


@dataclass(frozen=True, slots=True)
class CommandLife:
    """A command that runs to its end; `metrics` are those that it leaves itself."""

    command: str | tuple[str, ...]
    metrics: Mapping[str, MetricTable]
    timeout_s: float

    def live(
        self, laid: Laid, variables: Mapping[str, str], cores: tuple[int, ...], processes: Processes
    ) -> Figures:
        """See `Life`."""
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            result = Path(scratch) / "result.json"
            told = {**variables, "KVTRAIL_RESULT": str(result)}
            job = Job(laid.follow(self.command), laid.tree, told, cores)
            ended = processes.run(job, self.timeout_s)
            figures = read_figures(self.metrics, result, ended.said)
        figures.values["wall_s"] = (ended.seconds,)
        figures.values["peak_rss_bytes"] = (float(ended.peak_rss_bytes),)
        return figures


@dataclass(frozen=True, slots=True)
class ServerLife:
    """A server that is started, asked by a client so many times, and ended."""

    server: ServerTable
    client: ClientTable
    metrics: Mapping[str, MetricTable]
    timeout_s: float

    def live(
        self, laid: Laid, variables: Mapping[str, str], cores: tuple[int, ...], processes: Processes
    ) -> Figures:
        """See `Life`."""
        port = str(_free_port())
        told = {**variables, "KVTRAIL_PORT": port}
        job = Job(self.server.start, laid.tree, told, cores)
        figures = Figures()
        with processes.started(job) as server:
            ready_s = self._until_ready(server, port)
            for number in range(-self.client.warmup, self.client.windows):
                asking = Job(laid.follow(self.client.run), laid.tree, told)
                window = self._ask(number, server, asking, processes)
                if number >= 0:
                    figures.absences |= window.absences
                    for name, values in window.values.items():
                        figures.values[name] = (*figures.values.get(name, ()), *values)
            server.note_memory()
            server.ask_to_end()
            server.kill()
            server.wait()
        figures.values["ready_s"] = (ready_s,)
        figures.values["peak_rss_bytes"] = (float(server.peak_rss_bytes),)
        return figures

    def _ask(self, number: int, server: Started, job: Job, processes: Processes) -> Figures:
        """One run of the client, the warm-up's numbered below 0."""
        what = f"window {number + 1}" if number >= 0 else "the warm-up"
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            result = Path(scratch) / "result.json"
            told = {**job.variables, "KVTRAIL_RESULT": str(result)}
            asking = Job(job.command, job.folder, told)
            try:
                ended = processes.run(asking, self.timeout_s)
            except LifeFailed as failure:
                if server.has_ended():
                    raise LifeFailed(f"the server died in {what}: {server.failure()}") from None
                raise LifeFailed(f"the client in {what}: {failure}", failure.code) from None
            if server.has_ended():
                raise LifeFailed(f"the server died in {what}: {server.failure()}")
            figures = read_figures(self.metrics, result, ended.said)
        figures.values["wall_s"] = (ended.seconds,)
        return figures

    def _until_ready(self, server: Started, port: str) -> float:
        """Seconds from the server's start until it is ready."""
        deadline = server.begun + self.server.ready_timeout_s
        while not self._is_ready(server, port):
            if server.has_ended():
                raise LifeFailed(f"the server: {server.failure()}", server.code)
            if time.perf_counter() > deadline:
                raise LifeFailed(
                    f"the server was not ready within {self.server.ready_timeout_s:g} s: "
                    f"{last_words(server.text())}"
                )
            time.sleep(_POLL_SECONDS)
        return time.perf_counter() - server.begun

    def _is_ready(self, server: Started, port: str) -> bool:
        ready = self.server.ready
        if isinstance(ready, ReadyTable):
            return re.search(ready.regex, server.text(), re.MULTILINE) is not None
        address = ready.replace("${KVTRAIL_PORT}", port).replace("$KVTRAIL_PORT", port)
        try:
            with urllib.request.urlopen(address, timeout=_ANSWER_SECONDS):
                return True
        except (urllib.error.URLError, OSError, ValueError):
            return False


def _free_port() -> int:
    """A port that nobody listens at; the server takes it a moment later."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
