"""Starting a host's bare process, and asking it; this is all that runs inside the cluster's engine.

It is carried to hosts as it stands here, and so imports nothing of kvtrail. The process is given
the ruler itself, so that all hosts measure with the one that was started, and need its requirements
only. What the engine adds to the environment is taken out again: lives see what a user of that
machine sees. The process is no child of the engine's, which kills its children: it sees that its
pipe is closed, and ends what it runs first.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import IO

_HEAD, _HEAD_BYTES = ">QQ", 16
_PROGRAM = """\
import io, os, struct, sys, tarfile, tempfile
if os.fork():
    os._exit(0)
with tempfile.TemporaryDirectory(prefix="kvtrail-", ignore_cleanup_errors=True) as folder:
    _, length = struct.unpack(">QQ", sys.stdin.buffer.read(16))
    ruler = io.BytesIO(sys.stdin.buffer.read(length))
    tarfile.open(fileobj=ruler).extractall(folder, filter="data")
    sys.path.insert(0, folder)
    from asv_bench.fleet.host import main
    main()
"""
_OF_RAY = ("RAY_", "SPT_NOENV")
_LAST_CHARACTERS = 2000


class HostProcess:
    """The process of one host.

    Parameters
    ----------
    ruler
        A tar file with the package `asv_bench`.
    order, begin
        What `host.main` reads, pickled.
    variables
        Those of the user that the engine overwrites, to be set again; None: not set at all.

    Raises
    ------
    RuntimeError
        If it ends without an answer; also from `ask`.
    """

    def __init__(
        self, ruler: bytes, order: bytes, begin: bytes, variables: Mapping[str, str | None]
    ) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process runs
        starter = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            env=bare_environment(os.environ, variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
        )
        assert starter.stdin is not None
        assert starter.stdout is not None
        self._to, self._from = starter.stdin, starter.stdout
        starter.wait()
        self._lock = threading.Lock()
        self._is_over = False
        self._asked = 0
        self._waiting: dict[int, Future[bytes]] = {}
        try:
            for content in (ruler, order, begin):
                write_frame(self._to, 0, content)
        except BrokenPipeError:
            raise self._broken() from None
        facts = read_frame(self._from)
        if facts is None:
            raise self._broken()
        self._facts = facts[1]
        self._reader = threading.Thread(target=self._take_answers, daemon=True)
        self._reader.start()

    def facts(self) -> bytes:
        """What it says of itself, pickled."""
        return self._facts

    def ask(self, request: bytes) -> bytes:
        """The answer to a request, both as `host` has them; may be called from several threads."""
        future: Future[bytes] = Future()
        with self._lock:
            if self._is_over:
                raise self._broken()
            self._asked += 1
            self._waiting[self._asked] = future
            write_frame(self._to, self._asked, request)
        return future.result()

    def end(self) -> None:
        """Let it end, and all that it runs."""
        self._to.close()
        self._reader.join()

    def _take_answers(self) -> None:
        while (frame := read_frame(self._from)) is not None:
            number, answer = frame
            with self._lock:
                future = self._waiting.pop(number)
            future.set_result(answer)
        with self._lock:
            self._is_over = True
            for future in self._waiting.values():
                future.set_exception(self._broken())
            self._waiting.clear()

    def _broken(self) -> RuntimeError:
        self._said.seek(0)
        words = self._said.read().decode(errors="replace")[-_LAST_CHARACTERS:].strip()
        return RuntimeError(f"its process has ended: {words or 'it said nothing'}")


def bare_environment(
    variables: Mapping[str, str], users: Mapping[str, str | None]
) -> dict[str, str]:
    """The variables without those that Ray sets for its own processes, and with the user's."""
    kept = {
        name: value
        for name, value in variables.items()
        if not name.startswith(_OF_RAY) and not value.startswith("ray.util.") and name not in users
    }
    return kept | {name: value for name, value in users.items() if value is not None}


def write_frame(stream: IO[bytes], number: int, content: bytes) -> None:
    """Write a piece of bytes at once, behind its number and its length."""
    stream.write(struct.pack(_HEAD, number, len(content)))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[int, bytes] | None:
    """The next number and piece; None where the stream ends, or breaks off within one."""
    head = stream.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        return None
    number, length = struct.unpack(_HEAD, head)
    content = stream.read(length)
    return (number, content) if len(content) == length else None
