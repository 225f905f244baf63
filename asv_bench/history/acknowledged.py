"""Changes that somebody has looked at and lives with, from a file that people write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from asv_bench.errors import Refused
from asv_bench.git.repository import kind_of
from asv_bench.history.change_points import Change

FILE_NAME = "acknowledged.toml"


class Acknowledgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table `[[acknowledged]]`.

    `commit` is the beginning of the hash of a change's commit, or a label; `benchmark` a text in
    the name of the benchmark, by default any; `why` is shown.
    """

    commit: Annotated[str, msgspec.Meta(min_length=1)]
    why: Annotated[str, msgspec.Meta(min_length=1)]
    benchmark: str = ""

    def covers(self, change: Change) -> bool:
        """Whether a change is meant."""
        name = change.commit.hash
        is_label = kind_of(name) == "label"
        is_its_commit = name == self.commit if is_label else name.startswith(self.commit)
        return is_its_commit and self.benchmark in change.series.benchmark


class AcknowledgedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file may hold."""

    acknowledged: list[Acknowledgement] = []


def read_acknowledged(folder: Path) -> list[Acknowledgement]:
    """What is acknowledged in a folder of histories; Refused if the file there is another."""
    path = folder / FILE_NAME
    if not path.exists():
        return []
    try:
        return msgspec.toml.decode(path.read_bytes(), type=AcknowledgedFile).acknowledged
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise Refused(f"{path} cannot be read: {str(error).removesuffix('.')}.") from None


def reason_for(change: Change, acknowledged: Sequence[Acknowledgement]) -> str:
    """Why a change is acknowledged; empty where it is not."""
    return next((one.why for one in acknowledged if one.covers(change)), "")
