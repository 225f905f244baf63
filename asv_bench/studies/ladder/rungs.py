"""The rungs, in order: what each does, and where it runs.

Commands read this before anything is measured, so nothing of the engine is imported here: see
`rung_build` for the engines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asv_bench.errors import Refused


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder.

    Attributes
    ----------
    number, name
        Its place, from 0, and what it is called.
    what
        What it does differently from the one before.
    seed
        The write-up that it comes from; "" where there is none.
    options
        Of today's engine; empty for a host path of before it.
    needs
        "any" device, one with "triton" kernels, or "cuda".
    """

    number: int
    name: str
    what: str
    seed: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    needs: str = "any"

    @property
    def label(self) -> str:
        """Number and name, as tables and parameters have it."""
        return f"{self.number}-{self.name}"

    def runs_on(self, device: str) -> bool:
        """Whether the rung is what its name says on "cpu" or a CUDA device.

        Kernels run through Triton's interpreter count as kernels: for their results, not for times.
        """
        if device != "cpu":
            return True
        return self.needs == "any" or (self.needs == "triton" and interpreting())


def interpreting() -> bool:
    """Whether Triton's interpreter runs the kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


_EAGER = {"decode": "eager", "fuse": False, "steps_in_flight": 0}
_GRAPH = {"decode": "graph", "fuse": False, "steps_in_flight": 0}
_FUSED = {"decode": "graph", "fuse": True, "steps_in_flight": 0}
_OVERLAP = {"decode": "graph", "fuse": True, "steps_in_flight": None}

RUNGS = (
    Rung(
        0,
        "rebuild",
        "block-table rows rebuilt from lists each step and layer, an append for each token and "
        "layer, metadata in dicts of tuples",
        "before 036",
    ),
    Rung(
        1,
        "row-cache",
        "rows kept until their last block changes, stacked into a pinned buffer, one copy a step",
        "036",
    ),
    Rung(
        2,
        "batched-append",
        "one append a layer: an indexed write for all rows with room and one holder",
        "038",
    ),
    Rung(
        3,
        "triton-append",
        "the write is a Triton kernel that is told row, block and position",
        "before 061",
        needs="triton",
    ),
    Rung(
        4,
        "identity-append",
        "narrower kernels for the whole batch: one common position, or one a row",
        "061, 062",
        needs="triton",
    ),
    Rung(
        5,
        "mutable-info",
        "a block's info is lengthened in place, and the second loop over the batch goes",
        "064",
    ),
    Rung(
        6,
        "array-metadata",
        "metadata in lists indexed by global id",
        "065",
    ),
    Rung(
        7,
        "shared-table",
        "today's engine, eager: one table for all layers, rows on the device, index buffers reused",
        options=_EAGER,
    ),
    Rung(8, "graph", "one CUDA graph replayed a step", options=_GRAPH, needs="cuda"),
    Rung(9, "fused", "fused kernels", options=_FUSED, needs="cuda"),
    Rung(10, "overlap", "several steps in flight", options=_OVERLAP, needs="cuda"),
)
"""Every rung, in order."""


def rung_named(label: str) -> Rung:
    """The rung of that label.

    Raises
    ------
    Refused
        If there is none.
    """
    for rung in RUNGS:
        if rung.label == label:
            return rung
    raise Refused(f"there is no rung {label!r}; there are {', '.join(r.label for r in RUNGS)}.")


def rungs_between(text: str) -> tuple[Rung, ...]:
    """The rungs that "0-7", "2" or "0,3-5" names, in order.

    Raises
    ------
    Refused
        If the text is nothing of the kind, or names a rung that there is not.
    """
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise Refused(f"--rungs is {text!r}; it must be such as 0-7 or 0,3-5.")
        chosen.update(range(int(first), int(last or first) + 1))
    missing = chosen - {rung.number for rung in RUNGS}
    if missing or not chosen:
        raise Refused(
            f"--rungs is {text!r}; there are rungs 0 to {RUNGS[-1].number}, the first number first."
        )
    return tuple(rung for rung in RUNGS if rung.number in chosen)
