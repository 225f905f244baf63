"""One measuring session at a time in a checkout: two would disturb each other's figures.

A session in another checkout of this machine disturbs them too. It cannot be refused, as it may
measure on another GPU: whoever comes second is warned. The kernel drops a lock when its process
ends, however it ends; the file says what the next session is told.
"""

from __future__ import annotations

import fcntl
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from asv_bench.errors import Refused
from asv_bench.output.record import STATE, command_line
from asv_bench.output.redaction import without_secrets

LOCK_VARIABLE = "KVTRAIL_LOCK"
"""Tells the processes that a session starts which lock they hold with it."""


@contextmanager
def checkout_lock(root: Path) -> Iterator[None]:
    """Hold the lock of the checkout at `root`; a session within this one holds it already.

    Raises Refused if another session holds it, or it cannot be taken here.
    """
    path = root / ".asv" / "lock"
    if os.environ.get(LOCK_VARIABLE) == str(path):
        yield
        return
    with ExitStack() as stack:
        try:
            other = stack.enter_context(_taken(path))
        except OSError as error:
            raise Refused(
                f"{path} cannot be written ({error.strerror}), and measuring needs it; use a "
                f"checkout that this user may write to."
            ) from error
        if other:
            raise Refused(other)
        with suppress(OSError):
            if elsewhere := stack.enter_context(_taken(STATE / f"measuring-{platform.node()}")):
                print(f"warning: {elsewhere}", file=sys.stderr)
        os.environ[LOCK_VARIABLE] = str(path)
        stack.callback(os.environ.pop, LOCK_VARIABLE, None)
        yield


@contextmanager
def _taken(path: Path) -> Iterator[str]:
    """Hold a lock, whose file says whose it is; gives a sentence of the session that has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The file is empty for the moment after the lock was taken.
            who = path.read_text(errors="replace") or "another session is measuring"
            yield f"{who}. Two at once spoil each other's figures: wait for it."
            return
        file.truncate(0)
        file.write(
            f"`{without_secrets(command_line())}` (process {os.getpid()}, since "
            f"{datetime.now():%Y-%m-%d %H:%M}) is measuring on {platform.node()}"
        )
        file.flush()
        try:
            yield ""
        finally:
            file.truncate(0)
