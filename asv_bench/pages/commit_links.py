"""Where a commit can be looked at in a browser."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from asv_bench.git.repository import GitError, Repository
from asv_bench.output.stored_json import UnreadableFile, read_stored

_REMOTE = re.compile(
    r"(?:https?://|ssh://)?(?:[^@/]+@)?(?P<host>[\w.-]+)(?::\d+(?=/))?[:/](?P<path>[\w./~-]+?)(?:\.git)?/?"
)
_PAGES = {"github": "/commit/", "gitlab": "/-/commit/"}
"""By a part of the host's name: what stands before the hash."""


def commit_url(configured: Path, repository: Path) -> str:
    """The address of a commit's page without its hash; "" where none is known.

    It is `show_commit_url` of the asv.conf.json in the folder `configured`, or in the repository,
    else made from the remote called origin, where that is of GitHub or GitLab.
    """
    for folder in (configured, repository):
        # asv itself says what is wrong with its file.
        with contextlib.suppress(UnreadableFile):
            told = read_stored(folder / "asv.conf.json", "asv's configuration", _told)
            if re.match(r"https?://", told):
                return told
    try:
        return page_of_remote(Repository(repository).line("remote", "get-url", "origin"))
    except GitError:
        return ""


def page_of_remote(remote: str) -> str:
    """The address of commits at a remote, without their hash; "" where the host is another."""
    found = _REMOTE.fullmatch(remote.strip())
    if found is None:
        return ""
    host, path = found["host"], found["path"].strip("/")
    before = next((page for name, page in _PAGES.items() if name in host), None)
    return "" if before is None else f"https://{host}/{path}{before}"


def _told(content: dict[str, Any]) -> str:
    return str(content.get("show_commit_url", ""))
