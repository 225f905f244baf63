"""Processes forked from one that has imported what they share, so that each begins at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from asv_bench.process.borrowed_paths import borrowed_paths, search_path
from asv_bench.process.contract import MEASURED_PACKAGES
from asv_bench.process.run_apart import last_words

SHARED_MODULES = (
    "numpy.random",
    "numpy.typing",
    "torch",
    "triton.experimental.gluon",
    "triton.runtime.cache:triton_key",
    "asv_runner.discovery",
    "asv_runner.benchmarks",
)
"""What the process of a benchmark imports first; the measured packages never. Behind a colon is
a function that is called once, as it remembers its answer: Triton hashes its own files in it."""

_SCRIPT = Path(__file__).with_name("forkserver.py")
_SECONDS_TO_END = 10.0


class ForkserverGone(Exception):
    """The process that forks ended unasked; the message is what it said last."""


@dataclass(frozen=True, slots=True)
class ForkedProcess:
    """A process that was asked for; leaving it as a context ends it and all that it started."""

    _connection: socket.socket
    _server: Forkserver

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._connection as connection:
            try:
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(_SECONDS_TO_END)
                while connection.recv(64):
                    continue
            except OSError:  # it has ended, or a driver keeps it from ending
                return

    def wait(self, seconds: float) -> int:
        """Wait for its end; its exit code, negative where a signal ended it.

        Raises
        ------
        TimeoutError
            If it did not end so soon.
        ForkserverGone
            If nobody is left to tell.
        """
        self._connection.settimeout(seconds)
        if said := self._connection.recv(64):
            return int(said)
        raise ForkserverGone(self._server.last_words())


class Forkserver:
    """Forks processes from one of their own, which imports what they share before the first.

    The forking process is one for all, so that what chance gave it (addresses, the seed of hashes)
    is the same for all. It ends when this object goes, and its processes with it.

    Parameters
    ----------
    variables
        Its environment, but for the search path, which holds no commit.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self._lock = threading.Lock()
        self._control = ours
        with theirs:
            self._process = subprocess.Popen(
                # -P: the script's own folder holds parts of the ruler.
                [sys.executable, "-P", str(_SCRIPT), str(theirs.fileno())],
                env={**variables, "PYTHONPATH": search_path(borrowed_paths())},
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.close = weakref.finalize(self, _close, self._process, ours, self._said)
        """End it and all its processes; a second call does nothing."""

    def fork(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        *,
        folder: Path,
        output: Path,
        cores: Sequence[int] = (),
        shared: Sequence[str] = (),
    ) -> ForkedProcess:
        """Begin a process.

        Parameters
        ----------
        arguments
            A script of Python and its arguments.
        variables
            The whole environment. What it adds to the search path comes first there.
        folder, output
            Where it works, and the file that gets what it says.
        cores
            CPU cores that it may use; empty: all.
        shared
            What the forking process is to have done, as in `SHARED_MODULES`, if it has not yet.
        """
        ours, theirs = socket.socketpair()
        life = {
            "arguments": list(arguments),
            "variables": dict(variables),
            "folder": str(folder),
            "output": str(output),
            "cores": list(cores),
            "shared": list(shared),
            "unshared": MEASURED_PACKAGES,
        }
        with theirs, self._lock:
            try:
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
                ours.sendall(json.dumps(life).encode() + b"\n")
            except OSError:
                ours.close()
                raise ForkserverGone(self.last_words()) from None
        return ForkedProcess(ours, self)

    @property
    def has_ended(self) -> bool:
        """Whether it forks no more."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """What the forking process said last, of its own."""
        if self._said.closed:
            return "it was ended"
        size = os.fstat(self._said.fileno()).st_size
        return last_words(os.pread(self._said.fileno(), size, 0).decode(errors="replace"))


def _close(process: subprocess.Popen[bytes], control: socket.socket, said: IO[bytes]) -> None:
    control.close()
    try:
        process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        # Its processes die with it.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    said.close()
