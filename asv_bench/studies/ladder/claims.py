"""What the five write-ups claim, and which rungs and workload show it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from asv_bench.errors import Refused
from asv_bench.studies.ladder.rungs import RUNGS, Rung

SECONDS_PER_TOKEN = "decode_seconds_per_token"
"""Decode time over generated token ids: the inverse of the write-ups' decode throughput."""

FIGURES = {
    SECONDS_PER_TOKEN: "decode throughput",
    "tpot_p50": "TPOT p50",
    "tpot_mean": "TPOT mean",
    "tpot_p99": "TPOT p99",
    "itl_p99": "ITL p99",
}
"""Figures of a run in seconds, by what a reader calls them."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A figure before and after, as a write-up gives it: tokens/s for throughput, else ms."""

    figure: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """after / before - 1."""
        return self.after / self.before - 1

    @property
    def unit(self) -> str:
        """The unit of both."""
        return "tokens/s" if self.figure == SECONDS_PER_TOKEN else "ms"


@dataclass(frozen=True, slots=True)
class Claim:
    """One write-up: from which rung to which, on what workload, and what it reported.

    The first reported figure is the one that the verdict is about: decode throughput.
    """

    seed: str
    what: str
    before: Rung
    after: Rung
    workload: str
    reported: tuple[Reported, ...]

    @property
    def name(self) -> str:
        """What the claim is called where commands and records name it."""
        return self.seed


CLAIMS = (
    Claim(
        "036",
        "block-table rows cached",
        RUNGS[0],
        RUNGS[1],
        "scheduler",
        (
            Reported(SECONDS_PER_TOKEN, 4191.55, 4295.69),
            Reported("tpot_mean", 15.33, 14.97),
        ),
    ),
    Claim(
        "038",
        "KV append batched",
        RUNGS[1],
        RUNGS[2],
        "scheduler",
        (
            Reported(SECONDS_PER_TOKEN, 4289.33, 9923.19),
            Reported("tpot_mean", 14.98, 6.50),
        ),
    ),
    Claim(
        "062",
        "append kernels for the whole batch",
        RUNGS[3],
        RUNGS[4],
        "streaming",
        (
            Reported(SECONDS_PER_TOKEN, 14571.07, 14792.31),
            Reported("tpot_p50", 8.35, 8.22),
        ),
    ),
    Claim(
        "064",
        "block info lengthened in place",
        RUNGS[4],
        RUNGS[5],
        "streaming-small",
        (
            Reported(SECONDS_PER_TOKEN, 2100.24, 2155.23),
            Reported("tpot_p99", 60.45, 58.87),
            Reported("itl_p99", 73.23, 69.31),
        ),
    ),
    Claim(
        "065",
        "metadata as arrays",
        RUNGS[5],
        RUNGS[6],
        "streaming-small",
        (
            Reported(SECONDS_PER_TOKEN, 2111.54, 2130.93),
            Reported("tpot_p99", 60.12, 59.58),
        ),
    ),
)
"""Every claim, in the order of the rungs."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A claim as this machine can try it: its two rungs."""

    claim: Claim
    base: Rung
    head: Rung

    @property
    def is_as_claimed(self) -> bool:
        """Whether the first rung is the write-up's own, rather than what stands in for it."""
        return self.base is self.claim.before


Trials: TypeAlias = Sequence[Trial]


def trials_here(claims: Sequence[Claim], rungs: Collection[Rung], device: str) -> list[Trial]:
    """The claims that can be tried with these rungs on this device.

    Where the rung before does not run, as those of kernels on a CPU, the nearest lower one that
    does takes its place if the claim is not about the missing rung itself: there its appends are
    the other rung's too, so that the two still differ in the claim alone.
    """
    trials: list[Trial] = []
    for claim in claims:
        if claim.after not in rungs or not claim.after.runs_on(device):
            continue
        below = [
            rung for rung in rungs if rung.number < claim.after.number and rung.runs_on(device)
        ]
        if below and (below[-1] is claim.before or not claim.before.runs_on(device)):
            trials.append(Trial(claim, below[-1], claim.after))
    return trials


def claims_named(text: str | None) -> tuple[Claim, ...]:
    """The claims that "036,064" names; all of them for None.

    Raises
    ------
    Refused
        If there is no such claim.
    """
    if text is None:
        return CLAIMS
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in wanted if name not in {claim.seed for claim in CLAIMS}]
    if unknown:
        raise Refused(
            f"--claims names {unknown[0]!r}; there are "
            f"{', '.join(claim.seed for claim in CLAIMS)}, or none."
        )
    return tuple(claim for claim in CLAIMS if claim.seed in wanted)
