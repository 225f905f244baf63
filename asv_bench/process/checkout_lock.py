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
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from asv_bench.errors import Refused
from asv_bench.output.record import STATE
from asv_bench.output.redaction import without_secrets
from asv_bench.output.stored_json import UnreadableFile, read_stored, text
from asv_bench.process.doing import command_line

LOCK_VARIABLE = "KVTRAIL_LOCK"
"""Tells the processes that a session starts that they belong to it: "PID LOCK-FILE"."""

_WRITING_S = 1.0
"""The longest that a session takes from the lock until the file says whose it is."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A session: its process and command, on which host, and since when."""

    pid: int
    command: str
    host: str
    since: str

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
    with _locked(path), _announced():
        before = os.environ.get(LOCK_VARIABLE)
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
def _locked(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise Refused(
            f"{path} cannot be written ({error.strerror}), and measuring needs it; use a checkout "
            f"that this user may write to."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(_refusal(path)) from None
        with _signed(file):
            yield


@contextmanager
def _announced() -> Iterator[None]:
    """Tell sessions in other checkouts of this one, and warn of theirs."""
    path = STATE / f"measuring-{platform.node()}"
    with ExitStack() as stack:
        if LOCK_VARIABLE not in os.environ:  # the session around this one did
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(path.open("a+"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"warning: {_refusal(path)}", file=sys.stderr)
                else:
                    stack.enter_context(_signed(file))
        yield


@contextmanager
def _signed(file: TextIO) -> Iterator[None]:
    """Say in a lock's file whose it is, as long as it is held."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    holder = Holder(os.getpid(), without_secrets(command_line()), platform.node(), since)
    file.truncate(0)
    file.write(json.dumps(asdict(holder)) + "\n")
    file.flush()
    try:
        yield
    finally:
        file.truncate(0)


def _is_ours(path: Path) -> bool:
    pid, _, held = os.environ.get(LOCK_VARIABLE, "").partition(" ")
    holder = _holder(path) if held == str(path) else None
    return holder is not None and str(holder.pid) == pid


def _holder(path: Path) -> Holder | None:
    try:
        return read_stored(path, "a lock", _parse)
    except UnreadableFile:  # it is being written
        return None


def _parse(content: dict[str, Any]) -> Holder:
    return Holder(
        int(content["pid"]), *(text(content[name]) for name in ("command", "host", "since"))
    )


def _refusal(path: Path) -> str:
    until = time.monotonic() + _WRITING_S
    while (holder := _holder(path)) is None and time.monotonic() < until:
        time.sleep(0.01)
    who = "another session is measuring" if holder is None else holder.sentence()
    return f"{who}. Two at once spoil each other's figures: wait for it."
