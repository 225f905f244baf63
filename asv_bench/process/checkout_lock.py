"""One measuring session at a time in a checkout: two would disturb each other's figures.

A session in another checkout of this machine disturbs them too. It cannot be refused, as it may
measure on another GPU: whoever comes second is warned.

The kernel holds the lock for a process and drops it when that process ends, however it ends. What
the file says is for the sentence that the next session is refused with.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from asv_bench.errors import Refused
from asv_bench.output.record import STATE
from asv_bench.output.redaction import without_secrets
from asv_bench.output.stored_json import Text, UnreadableFile, read_stored
from asv_bench.process.doing import command_line

LOCK_VARIABLE = "KVTRAIL_LOCK"
"""Tells the processes that a session starts that they belong to it: "PID LOCK-FILE"."""

_WRITING_S = 1.0
"""The longest that a session takes from the lock until the file says whose it is."""


class Holder(msgspec.Struct, frozen=True):
    """A session: its process and command, on which host, and since when."""

    pid: int
    command: Text
    host: Text
    since: Text

    def sentence(self) -> str:
        """Who measures where, since when."""
        since = datetime.fromisoformat(self.since).astimezone()
        is_today = since.date() == datetime.now().astimezone().date()
        when = f"{since:%H:%M}" if is_today else f"{since:%Y-%m-%d %H:%M}"
        where = "on this machine" if self.host == platform.node() else f"on {self.host}"
        return f"`{self.command}` (process {self.pid}, since {when}) is measuring {where}"


@contextmanager
def checkout_lock(root: Path) -> Iterator[None]:
    """Hold the lock of the checkout at `root`; a session within this one holds it already.

    Raises Refused if another session holds it, or it cannot be taken here.
    """
    path = root / ".asv" / "lock"
    if _is_ours(path):
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
        before = os.environ.get(LOCK_VARIABLE)
        if before is None:  # else the session around this one told those in other checkouts
            here = STATE / f"measuring-{platform.node()}"
            with suppress(OSError):
                if not stack.enter_context(_taken(here)):
                    print(f"warning: {_refusal(here)}", file=sys.stderr)
        os.environ[LOCK_VARIABLE] = f"{os.getpid()} {path}"
        try:
            yield
        finally:
            del os.environ[LOCK_VARIABLE]
            if before is not None:
                os.environ[LOCK_VARIABLE] = before


def other_session(root: Path) -> str | None:
    """A sentence that names who else measures in the checkout at `root`; None where nobody does."""
    path = root / ".asv" / "lock"
    if not path.exists() or _is_ours(path):
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
        since = datetime.now(UTC).isoformat(timespec="seconds")
        holder = Holder(os.getpid(), without_secrets(command_line()), platform.node(), since)
        file.truncate(0)
        file.write(json.dumps(msgspec.structs.asdict(holder)) + "\n")
        file.flush()
        try:
            yield True
        finally:
            file.truncate(0)


def _is_ours(path: Path) -> bool:
    pid, _, held = os.environ.get(LOCK_VARIABLE, "").partition(" ")
    holder = _holder(path) if held == str(path) else None
    return holder is not None and str(holder.pid) == pid


def _holder(path: Path) -> Holder | None:
    with suppress(UnreadableFile):  # it is being written
        return read_stored(path, "a lock", Holder)
    return None


def _refusal(path: Path) -> str:
    until = time.monotonic() + _WRITING_S
    while (holder := _holder(path)) is None and time.monotonic() < until:
        time.sleep(0.01)
    who = "another session is measuring" if holder is None else holder.sentence()
    return f"{who}. Two at once spoil each other's figures: wait for it."
