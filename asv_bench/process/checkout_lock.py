"""One measuring session at a time in a checkout: two would disturb each other's figures.

A session in another checkout of this machine disturbs them too. It cannot be refused, as it may
measure on another GPU: whoever comes second is warned.

The kernel holds the lock for a process and drops it when that process ends, however it ends. What
the file says is the sentence that the next session is refused with.
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
    before = os.environ.get(LOCK_VARIABLE)
    if before == str(path):
        yield
        return
    with ExitStack() as stack:
        try:
            is_free = stack.enter_context(_taken(path))
        except OSError as error:
            raise Refused(
                f"{path} cannot be written ({error.strerror}), and measuring needs it; use a "
                f"checkout that this user may write to."
            ) from error
        if not is_free:
            raise Refused(_refusal(path))
        if before is None:  # else the session around this one told those in other checkouts
            here = STATE / f"measuring-{platform.node()}"
            with suppress(OSError):
                if not stack.enter_context(_taken(here)):
                    print(f"warning: {_refusal(here)}", file=sys.stderr)
        os.environ[LOCK_VARIABLE] = str(path)
        try:
            yield
        finally:
            del os.environ[LOCK_VARIABLE]
            if before is not None:
                os.environ[LOCK_VARIABLE] = before


def other_session(root: Path) -> str | None:
    """A sentence that names who else measures in the checkout at `root`; None where nobody does."""
    path = root / ".asv" / "lock"
    if os.environ.get(LOCK_VARIABLE) == str(path):
        return None
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _refusal(path)
    except OSError:
        return None
    return None


@contextmanager
def _taken(path: Path) -> Iterator[bool]:
    """Hold a lock, whose file says meanwhile whose it is; False where another session holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        command = without_secrets(command_line())
        file.truncate(0)
        file.write(
            f"`{command}` (process {os.getpid()}, since {datetime.now():%Y-%m-%d %H:%M}) is "
            f"measuring on {platform.node()}"
        )
        file.flush()
        try:
            yield True
        finally:
            file.truncate(0)


def _refusal(path: Path) -> str:
    # The file is empty for the moment after the lock was taken.
    who = path.read_text(errors="replace") or "another session is measuring"
    if who.endswith(here := f" on {platform.node()}"):
        who = f"{who.removesuffix(here)} on this machine"
    return f"{who}. Two at once spoil each other's figures: wait for it."
