"""Whether a server is ready: the address that tells it, and whose answer it is."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from asv_bench.measure.launcher import stat_of

_ANSWER_SECONDS = 5.0
_PORT = re.compile(r"\$(?:\{KVTRAIL_PORT\}|KVTRAIL_PORT\b)")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LISTENS = "0A"
# No proxy: it would answer in the place of a server of this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def address_at(ready: str, port: int) -> str:
    """The address that `ready` stands for, with the port of a life in it."""
    return _PORT.sub(str(port), ready)


def check_address(ready: str) -> None:
    """Raise ValueError unless `ready` is an address that can be asked."""
    address = address_at(ready, 1)
    if re.search(r"\$\{?\w", address):
        raise ValueError(f"ready is {ready!r}; nothing but $KVTRAIL_PORT is replaced in it")
    if not re.fullmatch(r"(?i:https?)://[!-~]+", address):
        raise ValueError(f"ready is {ready!r}; give http:// or https://, and no blanks behind")
    try:
        parts = urlsplit(address)
        is_address = parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError(f"ready is {ready!r}; it needs a host, and a port from 1 to 65535")


def code_of(address: str) -> int | None:
    """The code that an address answers with; None where there is no answer, or no HTTP."""
    try:
        with _OPENER.open(address, timeout=_ANSWER_SECONDS) as answer:
            code: int = answer.status
            return code
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, ValueError, http.client.HTTPException):
        return None


def listens(host: str, port: int) -> bool:
    """Whether anybody takes connections there."""
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def stranger(host: str, port: int, server: int, own: Collection[int]) -> int | None:
    """The process that listens at a port of this machine in the place of a server, if one does.

    Nobody listened there when the server was started; `own` are its process and all that it
    started. Only a process that is older than the server counts: a younger one may be of another's
    making on behalf of the server, as a container's is. None where there is none, or it cannot be
    told.
    """
    if host not in _LOOPBACK:
        return None
    holders = list(_listening(port))
    if any(process in own for process in holders):
        return None
    return next((one for one in holders if _begun(one) < _begun(server)), None)


def _listening(port: int) -> Iterator[int]:
    """The processes that listen at a port, but for those of other users."""
    links = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().split("\n")[1:]:
                fields = line.split()
                if fields and fields[3] == _LISTENS and int(fields[1][-4:], 16) == port:
                    links.add(f"socket:[{fields[9]}]")
    for name in filter(str.isdigit, os.listdir("/proc") if links else ()):
        folder = f"/proc/{name}/fd"
        with contextlib.suppress(OSError):
            # A descriptor that was closed meanwhile ends the look at its process.
            if any(os.readlink(f"{folder}/{one}") in links for one in os.listdir(folder)):
                yield int(name)


def _begun(process: int) -> int:
    """When a process began, in ticks of the kernel."""
    with contextlib.suppress(OSError):
        return int(stat_of(process)[19])
    return 0
