"""What comparisons meet on a machine: the noise of both commits, and what was known before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from asv_bench.lab.calibration.many_comparisons import Drawn
from asv_bench.lab.calibration.simulated_noise import NOISES, Noise
from asv_bench.stats.few_pairs import POOL_SIZE


class NoiseSource(Protocol):
    """Gives pairs whose true effect is known."""

    @property
    def is_symmetric(self) -> bool:
        """Whether both commits have the same noise, so that slower and faster are alike."""
        ...

    @property
    def independent(self) -> int | None:
        """How many comparisons there can be that have nothing in common; None: any number."""
        ...

    def draw(
        self, random: np.random.Generator, effects: Sequence[float], runs: int, pairs: int
    ) -> Drawn:
        """Pairs of `runs` comparisons, and pools, of a benchmark for each effect (a fraction)."""
        ...


@dataclass(frozen=True, slots=True)
class Situation:
    """Made noise.

    Attributes
    ----------
    noise
        Of the base's processes, and the machine's state.
    head
        Of the head's processes; None: the same. The machine's state is the base's.
    pool
        Of the machine as the pool saw it; None: as it is.
    """

    noise: Noise
    head: Noise | None = None
    pool: Noise | None = None

    @property
    def is_symmetric(self) -> bool:
        """See `NoiseSource`."""
        return self.head is None

    @property
    def independent(self) -> int | None:
        """See `NoiseSource`."""
        return None

    def draw(
        self, random: np.random.Generator, effects: Sequence[float], runs: int, pairs: int
    ) -> Drawn:
        """See `NoiseSource`."""
        shape = runs, len(effects), pairs
        states = self.noise.states(random, (*shape[:2], 2 * pairs))
        base_at, head_at = places(pairs)
        shifts = np.log1p(effects)[:, None]
        earlier = (self.pool or self.noise).series(random, (*shape[:2], 2 * POOL_SIZE))
        return Drawn(
            base=self.noise.own(random, shape) + states[..., base_at],
            head=(self.head or self.noise).own(random, shape) + states[..., head_at] + shifts,
            pools=earlier[..., 1::2] - earlier[..., ::2],
        )

    def __str__(self) -> str:
        head = "" if self.head is None else f"; of the head: {self.head}"
        return f"{self.noise}{head}" + ("" if self.pool is None else f"; of the pool: {self.pool}")


def places(pairs: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the base's and the head's processes are among all, which alternate as ABBA."""
    first = 2 * np.arange(pairs)
    head_first = np.isin(np.arange(pairs) % 4, (1, 2))
    return first + head_first, first + ~head_first


def _plain(process: float) -> Noise:
    return Noise(process=process, drift=0.0, outliers=0.0)


_TWO_MODES = Noise(process=0.005, drift=0.0, outliers=0.0, modes=0.3, mode_size=0.05)
SITUATIONS: dict[str, NoiseSource] = {
    **{name: Situation(noise) for name, noise in NOISES.items()},
    "normal 0.3 %": Situation(_plain(0.003)),
    "normal 1 %": Situation(_plain(0.01)),
    "normal 2 %": Situation(_plain(0.02)),
    "normal 4 %": Situation(_plain(0.04)),
    "t with 3": Situation(Noise(tail=3.0, drift=0.0, outliers=0.0)),
    "lognormal": Situation(Noise(is_skewed=True, drift=0.0, outliers=0.0)),
    "drifting": Situation(Noise(process=0.005, drift=0.02, outliers=0.0)),
    "autocorrelated": Situation(Noise(process=0.0, drift=0.01, memory=0.5, outliers=0.0)),
    "outliers": Situation(Noise(process=0.005, drift=0.0, outliers=0.1, outlier_size=0.05)),
    "two modes": Situation(_TWO_MODES),
    "a mode of the head": Situation(
        _plain(0.01), head=Noise(drift=0.0, outliers=0.0, modes=0.2, mode_size=0.1)
    ),
    "head 3 times noisier": Situation(_plain(0.005), head=_plain(0.015)),
    "head 5 times noisier": Situation(_plain(0.004), head=_plain(0.02)),
    "head 10 times noisier": Situation(_plain(0.003), head=_plain(0.03)),
    "pool 2 times too tight": Situation(_plain(0.01), pool=_plain(0.005)),
    "pool 4 times too tight": Situation(_plain(0.01), pool=_plain(0.0025)),
    "pool blind to modes": Situation(_TWO_MODES, pool=_plain(0.005)),
}
"""`ordinary` is a machine on which other things run, `quiet` a GPU with nothing else to do."""
