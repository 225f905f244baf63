"""Which requests the tokens of a launch are for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from engine.scheduling.rows import RowIndex, Rows


@dataclass(frozen=True, slots=True, eq=False)
class Recipients:
    """The requests that hold the rows of a launch as it is launched, N of them.

    Attributes
    ----------
    rows
        intp [N], each at most once.
    serials
        int64 [N], the rows' serials at the launch.
    request_ids
        int64 [N], read-only: all launches for the same rows share it.
    id_list
        The same as Python integers.
    changes
        The rows' count of changes at the launch.
    """

    rows: RowIndex
    serials: npt.NDArray[np.int64]
    request_ids: npt.NDArray[np.int64]
    id_list: list[int]
    changes: int

    def __post_init__(self) -> None:
        self.request_ids.flags.writeable = False

    @classmethod
    def of(cls, rows: RowIndex, held: Rows) -> Recipients:
        """Who holds `rows` now."""
        request_ids = held.request_ids[rows]
        return cls(rows, held.serial[rows], request_ids, request_ids.tolist(), held.changes)

    def are(self, rows: RowIndex, held: Rows) -> bool:
        """Whether these were found for this very array, and no row has changed since."""
        return self.rows is rows and self.changes == held.changes

    def still_hold(self, held: Rows) -> npt.NDArray[np.bool_] | None:
        """Which of them hold their rows still, bool [N]; None for all."""
        if self.changes == held.changes:
            return None
        is_held: npt.NDArray[np.bool_] = held.serial[self.rows] == self.serials
        return None if is_held.all() else is_held

    def only(self, wanted: npt.NDArray[np.bool_]) -> Recipients:
        """Those that are `wanted`, bool [N]."""
        request_ids = self.request_ids[wanted]
        return replace(
            self,
            rows=self.rows[wanted],
            serials=self.serials[wanted],
            request_ids=request_ids,
            id_list=request_ids.tolist(),
        )
