"""The processes of ranks 1 and on, as rank 0 sees them: starts, tells, asks, and ends them.

Rank 0 is the engine's own process, and the only one that knows a request. The others are told what
to launch: the rows' changes, packed prompts, how many rows take a step. No token comes back from
them, as all ranks come to the same. They end with rank 0, whatever ends that.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Event
from typing import Any

import torch

from engine.config import EngineConfig
from engine.errors import KvtrailError, RankError
from engine.models.share import Share
from engine.parallel.group import Group, Meeting, make_group
from engine.parallel.memory import RankMemory

_RUN = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from engine.parallel.follower import follow; follow(int(sys.argv[1]))"
)
"""With this process's search path, so that it is this engine's code, wherever it was started."""

_MOMENT_S, _BLINK_S = 5.0, 0.1
"""What a rank that has failed may take to say why, and another that it has left to say so."""

_LEAVE_S = 1.0
"""What a rank may take to leave; one that computes or waits for another is killed then."""

_LOOK_S, _RELEASE_S = 0.05, 0.0005
"""Between two looks at whether ranks are there, and two words to kernels that wait for one."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a rank has to do, and the process that it ends with."""

    config: EngineConfig
    meeting: Meeting
    max_model_len: int
    uses_graphs: bool
    parent: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rank ends: an error that users read as it is, or else words.

    `is_told` where the rank has said so itself, as it does where another has left it, too.
    """

    words: str
    error: KvtrailError | None = None
    is_told: bool = True


@dataclass(frozen=True, slots=True)
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    connection: Connection


class Ranks:
    """Ranks 1 and on, from their start on.

    Parameters
    ----------
    config
        The engine's.
    devices
        Of all ranks.
    max_model_len, uses_graphs
        What the engine makes of its config.

    Attributes
    ----------
    share, group
        Rank 0's part of the model, and the group in which it meets the others.
    """

    def __init__(
        self,
        config: EngineConfig,
        devices: Sequence[torch.device],
        *,
        max_model_len: int,
        uses_graphs: bool,
    ) -> None:
        # Only its owner may write there.
        folder = Path(tempfile.mkdtemp(prefix="kvtrail-ranks-"))
        size = len(devices)
        self._ranks: list[_Rank] = []
        self._has_lost, self._has_ended = threading.Event(), threading.Event()
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(
            self, _end, self._owner, self._ranks, folder, self._has_ended
        )
        self.drop_graphs: Callable[[], None] = _has_none
        """How rank 0 drops what it has captured."""
        self.share = Share(0, size)
        self.group = make_group(Meeting(folder, 0, size, tuple(devices)))
        for number in range(1, size):
            rank = _start(number, size)
            self._ranks.append(rank)
            meeting = Meeting(folder, number, size, tuple(devices))
            task = Task(config, meeting, max_model_len, uses_graphs, os.getpid())
            with self.attending():
                rank.connection.send(task)
        if devices[0].type == "cuda":
            watched = self._ranks, self.group, self._has_lost, self._has_ended
            threading.Thread(target=_watch, args=watched, daemon=True).start()

    def rooms(self) -> list[int]:
        """The blocks that each has room for, once it has loaded its part of the model."""
        with self.attending():
            return self._answers()

    def build(self, **sizes: int) -> None:
        """Let each build its worker, of these sizes, beside rank 0; `await_built` follows."""
        self.tell("build", sizes)

    def await_built(self) -> None:
        """Wait until each has built its worker."""
        self._answers()

    def memory(self) -> list[RankMemory]:
        """What each of them holds."""
        with self.attending():
            self.tell("memory")
            return self._answers()

    def trace(self, folder: Path | None) -> None:
        """Let each begin a trace, or leave the one that it began in a folder."""
        with self.attending():
            self.tell("trace", folder)
            self._answers()

    def tell(self, what: str, *arguments: object) -> None:
        """Let each do what it does under that name, in the order in which it is told."""
        for rank in self._ranks:
            rank.connection.send((what, arguments))

    def end(self) -> None:
        """End them all; a second call does nothing, nor does one in a fork, which has no ranks."""
        if os.getpid() != self._owner:
            return
        self.group.settle()
        drop_graphs, self.drop_graphs = self.drop_graphs, _has_none
        drop_graphs()
        self.group.close()
        self._finalizer()

    @contextmanager
    def attending(self) -> Iterator[None]:
        """Surround what may fail where another rank has. A failure ends all ranks.

        Raises
        ------
        RankError
            In place of the error, where a rank has ended or failed, or where rank 0 alone has too
            little memory, so that the others wait for it.
        """
        try:
            yield
        except torch.OutOfMemoryError as error:
            self.end()
            raise RankError(
                "Rank 0 has too little memory for a step, and the others cannot go on without it: "
                "lower num_kv_blocks, max_batch_size or prefill_max_tokens."
            ) from error
        except BaseException as error:
            is_told = isinstance(error, KvtrailError) or not isinstance(error, Exception)
            lost = None if is_told else self._lost()
            self.end()
            if lost is None:
                raise
            raise lost from error

    def check(self) -> None:
        """Raise `RankError` if a rank has ended; what came from the device is worthless then."""
        if self._has_lost.is_set() and (lost := self._lost()) is not None:
            raise lost

    def _answers(self) -> list[Any]:
        """What each says next, in their order; the first failure is raised."""
        answers: dict[int, Any] = {}
        while len(answers) < len(self._ranks):
            pending = [rank for rank in self._ranks if rank.number not in answers]
            # A large model takes its time; a rank that ends is heard.
            ready = wait([rank.connection for rank in pending])
            for rank in pending:
                if rank.connection in ready:
                    said = _next_of(rank)
                    if isinstance(said, Failure):
                        raise _error(rank, said)
                    answers[rank.number] = said
        return [answers[rank.number] for rank in self._ranks]

    def _lost(self) -> KvtrailError | None:
        """Why a rank has ended or failed; None where all go on."""
        wait([rank.connection for rank in self._ranks], _MOMENT_S)
        # One that another has left may say so before the other is seen to have ended.
        time.sleep(_BLINK_S)
        ready = [rank for rank in self._ranks if rank.connection.poll()]
        said = [(rank, _next_of(rank)) for rank in ready]
        failures = [(rank, one) for rank, one in said if isinstance(one, Failure)]
        failures.sort(key=lambda one: one[1].is_told)
        return _error(*failures[0]) if failures else None


def _has_none() -> None:
    """Nothing was captured, or it is dropped."""


def _start(number: int, size: int) -> _Rank:
    ours, theirs = socket.socketpair()
    place = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(size)}
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN, str(theirs.fileno()), *sys.path],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Standard output is the caller's, who may print a record there.
            stdout=subprocess.DEVNULL,
            env={**os.environ, **place},
        )
        return _Rank(number, process, Connection(ours.detach()))


def _next_of(rank: _Rank) -> Any:
    """What a rank says next; a `Failure` where it has ended."""
    try:
        return rank.connection.recv()
    except (EOFError, OSError):
        with suppress(subprocess.TimeoutExpired):
            rank.process.wait(_MOMENT_S)
        code = rank.process.returncode
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended with code {code}"
        return Failure(f"(process {rank.process.pid}) {how}", is_told=False)


def _error(rank: _Rank, failure: Failure) -> KvtrailError:
    if failure.error is not None:
        return failure.error
    how = f"failed ({failure.words})" if failure.is_told else failure.words
    return RankError(
        f"Rank {rank.number} {how}, and the other ranks cannot go on without it: build a new "
        "Engine."
    )


def _watch(ranks: list[_Rank], group: Group, lost: Event, ended: Event) -> None:
    """Wait until a rank ends before the engine does. Kernels that wait for it would do so for ever,
    and whoever waits for them: release them."""
    while not ended.wait(_LOOK_S):
        if any(rank.process.poll() is not None for rank in ranks):
            lost.set()
            while not ended.wait(_RELEASE_S):
                group.release()


def _end(owner: int, ranks: list[_Rank], folder: Path, ended: Event) -> None:
    """End the processes, which leave when nobody speaks to them any more."""
    ended.set()
    # A fork of the owner has no ranks.
    if os.getpid() != owner:
        return
    for rank in ranks:
        rank.connection.close()
    for rank in ranks:
        try:
            rank.process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            rank.process.kill()
            rank.process.wait()
    shutil.rmtree(folder, ignore_errors=True)
