"""One life of a subject: a command from its start to its end, or a server asked by a client."""

from __future__ import annotations

import errno
import http.client
import os
import re
import socket
import tempfile
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from asv_bench.measure.command_line import filled
from asv_bench.measure.figures import Figures, Left, NoFigure
from asv_bench.measure.launcher import EVENTS, descendants, stat_of
from asv_bench.measure.processes import Job, LifeFailed, Processes, Started, last_words
from asv_bench.measure.samples import Absence, Metric
from asv_bench.measure.trees import Laid
from asv_bench.measure.turns import TURNS_VARIABLE, Turns
from asv_bench.subjects.metrics import COLD, POINT, READY, RSS_GROWTH, WARM, CheckTable, MetricTable
from asv_bench.subjects.subject_file import ClientTable, ReadyTable, ServerTable, SubjectTable

_COMPILER_CACHES = (
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH"),
    *("VLLM_CACHE_ROOT", "FLASHINFER_WORKSPACE_BASE", "TILELANG_CACHE_DIR", "DG_JIT_CACHE_DIR"),
    *("JAX_COMPILATION_CACHE_DIR", "NUMBA_CACHE_DIR"),
)
"""Variables that say where compilers keep what they made."""
_POLL_SECONDS = 0.02
_DYING_SECONDS = 2.0
"""From a client's failure to the end of the server that it asked, if that is why it failed."""
_WHOSE = "whoever listens there, or let the server listen at $KVTRAIL_PORT."
_ANSWER_SECONDS = 5.0
_PAGE_BYTES = 4096
_ELSEWHERE = "exec sleep infinity"
"""Runs in the place of a server that is there already."""
_NOT_STARTED = Absence("its server was not started here: it has a url.", has_failed=False)
_OF_COMMANDS = Absence("it is counted of commands, and this is a server; take cpu_s.", False)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LISTENS = "0A"
# No proxy: it would answer in the place of a server of this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_FIXED_PORT = re.compile(r"--port[ =]([1-9][0-9]{0,4})(?![0-9])")


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a life runs, and what it is told; no cores: all that the user may use."""

    laid: Laid
    variables: Mapping[str, str]
    cores: tuple[int, ...]
    processes: Processes


class Life(ABC):
    """What a subject does for one sample."""

    has_windows = False
    """Whether it repeats itself what it times, so that nobody else need do so."""
    pairs = 1
    """That one life of its server is asked for."""

    @abstractmethod
    def live(self, setting: Setting, metrics: Collection[str]) -> Figures:
        """Run it once, for these metrics at least.

        Raises LifeFailed where it does not end well.
        """

    def groups(self, metrics: Collection[str]) -> list[tuple[str, ...]]:
        """The metrics by the life that they come from."""
        return [tuple(metrics)] if metrics else []

    def takes_turns(self, metrics: Collection[str]) -> bool:
        """Whether two lives of a group can work in turns, as `turns` has it."""
        return False


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured, apart from the variants."""

    life: Life
    table: SubjectTable
    metrics: tuple[Metric, ...]  # those to be compared
    folder: str = ""  # where in a variant's files its commands run; "": at their top
    lists_packages: bool = True
    """Whether variants may run with other packages, so that it is looked which."""


@dataclass(frozen=True)
class CommandLife(Life):
    """A command of the user's own that runs to its end; `metrics` are those that it leaves."""

    command: str | tuple[str, ...]
    metrics: Mapping[str, MetricTable | CheckTable]
    timeout_s: float
    preload: tuple[str, ...] = ()
    in_turns: bool = False
    preset: str = ""
    _completed: list[int] = field(default_factory=list, compare=False)

    def takes_turns(self, metrics: Collection[str]) -> bool:
        """See `Life`."""
        return self.in_turns

    def live(self, setting: Setting, metrics: Collection[str]) -> Figures:
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            result = Path(scratch) / "result.json"
            told = {**setting.variables, "KVTRAIL_RESULT": str(result)}
            command, folder = setting.laid.follow(self.command), setting.laid.tree
            events = EVENTS.keys() & set(metrics) - self.metrics.keys()
            job = Job(command, folder, told, setting.cores, self.preload, is_counted=bool(events))
            is_shared = "," in setting.variables.get("CUDA_VISIBLE_DEVICES", "")
            ended = setting.processes.run(job, self.timeout_s, looks=is_shared)
            left = Left(result, ended.said, self.preset)
            figures = left.figures(self.metrics)
            _require_served(left, "", self._completed)
        figures.values["wall_s"] = (ended.seconds,)
        figures.values["peak_rss_bytes"] = (float(ended.peak_rss_bytes),)
        figures.values |= ended.by_rank
        if ended.cpu_seconds > 0:
            figures.values["cpu_s"] = (ended.cpu_seconds,)
        for name in events & ended.counts.keys():
            if (count := ended.counts[name]) > 0:
                figures.values[name] = (float(count),)
            else:
                figures.absences[name] = Absence(_why_uncounted(-count), has_failed=False)
        return figures


def _why_uncounted(error: int) -> str:
    """Why the kernel did not count instructions or cycles, from its error."""
    if error in (errno.EACCES, errno.EPERM):
        return (
            "the kernel lets you count none here; `sysctl kernel.perf_event_paranoid=2` allows it, "
            "and a container must allow the system call perf_event_open."
        )
    return (
        "the kernel counts none here, as in a virtual machine that hides the CPU's counters; "
        "cpu_s is the nearest that it tells."
    )


def _require_served(left: Left, where: str, before: list[int]) -> None:
    """Raise LifeFailed where a client says that requests failed: its figures lack them.

    `before` are the numbers of requests that runs at the same point completed, where it does not
    say how many there were.
    """
    try:
        completed, failed = left.served()
    except NoFigure as error:
        raise LifeFailed(f"the client{where}: {error}") from None
    words = last_words(left.said)
    if failed:
        total = "" if completed is None else f" of {failed + completed}"
        raise LifeFailed(f"{failed}{total} requests failed{where}: {words}")
    if completed is None:
        return
    if failed is None:
        # What it asks for is the same each time.
        before.append(completed)
    most = max(before, default=0)
    if completed == 0 or (failed is None and completed < most):
        other = f", and {most} in another" if most else ""
        raise LifeFailed(f"{completed} requests were completed{where}{other}: {words}")


@dataclass(frozen=True)
class ServerLife(Life):
    """A server that is started, asked by a client so many times, and ended."""

    server: ServerTable
    client: ClientTable
    metrics: Mapping[str, MetricTable | CheckTable]
    timeout_s: float
    has_windows = True
    _completed: dict[str, list[int]] = field(default_factory=dict, compare=False)

    @property
    def pairs(self) -> int:  # type: ignore[override]
        return self.server.pairs_per_start

    def takes_turns(self, metrics: Collection[str]) -> bool:
        return self.pairs > 1

    def live(self, setting: Setting, metrics: Collection[str]) -> Figures:
        points = self.client.points or {"": ""}
        windows: dict[str, list[Figures]] = {point: [] for point in points}
        peaks: dict[str, list[tuple[int, int]]] = {point: [] for point in points}
        starts: dict[str, tuple[float, ...]] = {}
        turns = Turns(setting.variables)
        own = {name: text for name, text in setting.variables.items() if name != TURNS_VARIABLE}
        setting = replace(setting, variables=own)
        with ExitStack() as scope:
            scope.callback(turns.close)
            if not {COLD.name, WARM.name}.isdisjoint(metrics):
                caches = scope.enter_context(tempfile.TemporaryDirectory(prefix="kvtrail-"))
                own = {name: f"{caches}/{name.lower()}" for name in _COMPILER_CACHES}
                setting = replace(setting, variables={**setting.variables, **own})
                with self._serving(setting) as (server, told, ready_s):
                    starts[COLD.name] = (ready_s,)
                    server.ask_to_end()
            server, told, ready_s = scope.enter_context(self._serving(setting))
            starts |= {WARM.name: (ready_s,)} if starts else {}
            server.memory_peaks()
            # Servers of a pair start at the same time, and are asked once both are there.
            turns.wait()
            turns.pass_on()
            counted = self.client.windows
            for first in range(0, counted * self.pairs, counted):
                turns.wait()
                warmup = 0 if first else self.client.warmup
                for point in points:
                    for number in range(first - warmup, first + counted):
                        window = self._ask(number, point, server, setting, told)
                        seen = server.memory_peaks()
                        if number >= 0:
                            windows[point].append(window)
                            peaks[point].append((sum(map(len, windows.values())), sum(seen)))
                turns.pass_on()
            # Its end would disturb the other's last pair.
            turns.wait()
            if server.has_ended():
                raise LifeFailed(f"the server died after the last window: {server.failure()}")
            server.ask_to_end()
        figures = Figures.of_windows(windows)
        figures.absences |= dict.fromkeys(EVENTS, _OF_COMMANDS)
        if self.server.url is not None:
            figures.absences |= dict.fromkeys(("peak_rss_bytes", "cpu_s"), _NOT_STARTED)
            return figures
        figures.values |= {**server.by_rank, **starts, READY.name: (ready_s,)}
        figures.values["peak_rss_bytes"] = (float(server.peak_rss_bytes),)
        slopes = [
            (later - earlier) / (at - before)
            for of_point in peaks.values()
            for (before, earlier), (at, later) in combinations(of_point, 2)
        ]
        if slopes and server.peak_rss_bytes:
            # Figures are compared as ratios, and memory that does not grow has none.
            figures.values[RSS_GROWTH.name] = (max(median(slopes), float(_PAGE_BYTES)),)
        return figures

    @contextmanager
    def _serving(self, setting: Setting) -> Iterator[tuple[Started, dict[str, str], float]]:
        """A server that is ready, what it and its client are told, and after how many seconds."""
        # A port that nobody listens at; the server takes it a moment later.
        with socket.create_server(("127.0.0.1", 0)) as listening:
            told = {**setting.variables, "KVTRAIL_PORT": str(listening.getsockname()[1])}
        address = self._address(told)
        if self.server.url is not None:
            url = filled(self.server.url, told)
            told |= {"KVTRAIL_URL": url, "KVTRAIL_PORT": str(_Address.of(url).port)}
        job = Job(self.server.start or _ELSEWHERE, setting.laid.tree, told, setting.cores)
        # Such as a tunnel, at whose end nobody may listen yet.
        is_open = address.is_open()
        if self.server.start and is_open and (address.url is None or address.code() is not None):
            raise LifeFailed(
                f"{address} answers already, and no server was started yet; end {_WHOSE}"
            )
        with setting.processes.started(job) as server:
            ready_s = self._until_ready(server, address)
            is_ours = self.server.url is None and not is_open
            if is_ours and (other := address.stranger(server.process)):
                raise LifeFailed(f"{address} is process {other}'s, not the server's; end {_WHOSE}")
            yield server, told, ready_s

    def _ask(
        self, number: int, point: str, server: Started, setting: Setting, told: Mapping[str, str]
    ) -> Figures:
        """One run of the client at a point of load, the warm-up's numbered below 0."""
        what = f"window {number + 1}" if number >= 0 else "the warm-up"
        what += f" at {point}" if point else ""
        load = {POINT: self.client.points[point]} if point else {}
        run = setting.laid.follow(filled(self.client.run, load))
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            result = Path(scratch) / "result.json"
            asking = Job(run, setting.laid.tree, {**told, **load, "KVTRAIL_RESULT": str(result)})
            before = _cpu_seconds(server.process)
            try:
                ended = setting.processes.run(asking, self.timeout_s)
            except LifeFailed as failure:
                # Its connections break before all of it has ended.
                if server.has_ended(_DYING_SECONDS):
                    raise LifeFailed(f"the server died in {what}: {server.failure()}") from None
                raise LifeFailed(f"the client in {what}: {failure}", failure.code) from None
            cpu_seconds = _cpu_seconds(server.process) - before
            if server.has_ended():
                raise LifeFailed(f"the server died in {what}: {server.failure()}")
            left = Left(result, ended.said, self.client.preset)
            figures = left.figures(self.metrics)
            _require_served(left, f" in {what}", self._completed.setdefault(point, []))
        figures.values["wall_s"] = (ended.seconds,)
        if cpu_seconds > 0:
            figures.values["cpu_s"] = (cpu_seconds,)
        return figures

    def _until_ready(self, server: Started, address: _Address) -> float:
        """Seconds from the server's start until it is ready."""
        deadline = server.begun + self.server.ready_timeout_s
        while True:
            if isinstance(self.server.ready, ReadyTable):
                found = re.search(self.server.ready.regex, server.text(), re.MULTILINE)
                is_ready = found is not None
            else:
                code = address.code()
                # Of a server that is there already any answer will do, unless it has a `ready`.
                is_ready = code is not None and (code < 400 or self.server.ready is None)
            now = time.perf_counter()
            # Asked afterwards: another may have answered in its place.
            if server.has_ended():
                raise LifeFailed(f"the server: {server.failure()}", server.code)
            if is_ready:
                return now - server.begun
            if now > deadline:
                which = "the server" if self.server.url is None else address
                raise LifeFailed(
                    f"{which} was not ready within {self.server.ready_timeout_s:g} s: "
                    f"{last_words(server.text())}"
                )
            time.sleep(_POLL_SECONDS)

    def _address(self, told: Mapping[str, str]) -> _Address:
        if isinstance(self.server.ready, ReadyTable):
            fixed = _FIXED_PORT.search(self.server.start or "")
            return _Address("127.0.0.1", int(fixed[1] if fixed else told["KVTRAIL_PORT"]))
        names = ("KVTRAIL_LABEL",) if self.server.url else ("KVTRAIL_PORT",)
        text = self.server.ready or self.server.url or ""
        return _Address.of(filled(text, {name: told[name] for name in names}))


@dataclass(frozen=True, slots=True)
class _Address:
    """Where a server is to listen; `url`, if any, is asked whether it is ready."""

    host: str
    port: int
    url: str | None = None

    @classmethod
    def of(cls, url: str) -> _Address:
        """That of a server that is asked at an address."""
        parts = urlsplit(url)
        default = 443 if parts.scheme == "https" else 80
        return cls(parts.hostname or "", parts.port or default, url)

    def __str__(self) -> str:
        return self.url or f"{self.host}:{self.port}"

    def code(self) -> int | None:
        """The code that it answers with; None where there is no answer, or no HTTP."""
        try:
            with _OPENER.open(str(self), timeout=_ANSWER_SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except (OSError, ValueError, http.client.HTTPException):
            return None

    def is_open(self) -> bool:
        """Whether anybody takes connections there."""
        try:
            with socket.create_connection((self.host, self.port), timeout=_ANSWER_SECONDS):
                return True
        except (OSError, ValueError):
            return False

    def stranger(self, server: int) -> int | None:
        """The process that listens there in the place of a server, if one does.

        Nobody listened there when the server was started. Only a process that is older than the
        server counts: a younger one may be of another's making on behalf of the server, as a
        container's is. None where there is none, or it cannot be told.
        """
        holders = list(_listening(self.port)) if self.host in _LOOPBACK else []
        if not {server, *descendants(server)}.isdisjoint(holders):
            return None
        return next((one for one in holders if _begun(one) < _begun(server)), None)


def _cpu_seconds(starter: int) -> float:
    """What all that a process started has worked so far, as user and as system."""
    # Of what has ended the kernel tells ticks, and of what runs a clock.
    ticks, seconds = 0, 0.0
    for process in (starter, *descendants(starter)):
        with suppress(OSError):
            ticks += sum(map(int, stat_of(process)[13:15]))
            if process != starter:
                seconds += time.clock_gettime(~process << 3 | 2)
    return seconds + ticks / os.sysconf("SC_CLK_TCK")


def _listening(port: int) -> Iterator[int]:
    """The processes that listen at a port, but for those of other users."""
    links = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().split("\n")[1:]:
                fields = line.split()
                if fields and fields[3] == _LISTENS and int(fields[1][-4:], 16) == port:
                    links.add(f"socket:[{fields[9]}]")
    for name in filter(str.isdigit, os.listdir("/proc") if links else ()):
        folder = f"/proc/{name}/fd"
        with suppress(OSError):
            # A descriptor that was closed meanwhile ends the look at its process.
            if any(os.readlink(f"{folder}/{one}") in links for one in os.listdir(folder)):
                yield int(name)


def _begun(process: int) -> int:
    """When a process began, in ticks of the kernel."""
    with suppress(OSError):
        return int(stat_of(process)[19])
    return 0
