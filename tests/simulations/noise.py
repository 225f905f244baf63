"""Noise of processes whose distribution is known, and comparisons that meet it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asv_bench.lab.reach import Drawn
from asv_bench.stats.few_pairs import POOL_SIZE
from asv_bench.stats.paired import Floats

_PROCESSES_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Noise:
    """How the figures of processes vary, in logarithms: 0.01 is 1 %."""

    process: float = 0.01  # standard deviation of what is new in each process
    # Degrees of freedom of Student's t, scaled to that deviation; None: normal.
    tail: float | None = None
    # Standard deviation of the machine's own state, which all processes share, and its correlation
    # from one process to the next: 0.95 forgets half in 14 processes.
    drift: float = 0.01
    memory: float = 0.95
    # The fraction of processes that are slower by an exponentially distributed extra, and its mean.
    outliers: float = 0.03
    outlier_size: float = 0.05
    # The fraction of processes that are all slower by the same extra: a second mode.
    modes: float = 0.0
    mode_size: float = 0.0
    # Whether what is new in a process is lognormal, with more far above than below.
    is_skewed: bool = False

    def figures(self, random: np.random.Generator) -> Iterator[float]:
        """The logarithms of one process after the other, around 0, without end."""
        state = random.normal(0, self.drift)
        while True:
            own = self.own(random, (_PROCESSES_AT_ONCE,))
            changes = random.normal(0, self._renewal, _PROCESSES_AT_ONCE)
            for value, change in zip(own, changes, strict=True):
                state = self.memory * state + change
                yield float(value + state)

    def series(self, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """The same for many series at once, [..., processes]."""
        return self.own(random, shape) + self.states(random, shape)

    def states(self, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """The machine's state at each process, [..., processes]."""
        states = random.normal(0, self._renewal, shape)
        states[..., 0] = random.normal(0, self.drift, shape[:-1])
        for place in range(1, shape[-1]):
            states[..., place] += self.memory * states[..., place - 1]
        return states

    def own(self, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """What is each process' own, the machine's state apart."""
        values = self._scattered(random, shape)
        is_slow = random.random(shape) < self.outliers
        values += is_slow * random.exponential(self.outlier_size, shape)
        if self.modes:
            values += (random.random(shape) < self.modes) * self.mode_size
        return values

    @property
    def _renewal(self) -> float:
        return self.drift * math.sqrt(1 - self.memory**2)

    def _scattered(self, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        if self.is_skewed:
            # exp(z) has a mean of sqrt(e) and a variance of e (e - 1).
            scale = self.process / math.sqrt(math.e * (math.e - 1))
            return scale * (random.lognormal(0, 1, shape) - math.sqrt(math.e))
        if self.tail is None:
            return random.normal(0, self.process, shape)
        scale = self.process / math.sqrt(self.tail / (self.tail - 2))
        return scale * random.standard_t(self.tail, shape)

    def __str__(self) -> str:
        tail = "" if self.tail is None else f", t with {self.tail:.0f} degrees of freedom"
        parts = [f"{self.process:.1%} a process{tail}{', lognormal' if self.is_skewed else ''}"]
        if self.drift:
            parts.append(f"drift of {self.drift:.1%} that remembers {self.memory:.0%}")
        if self.outliers:
            parts.append(f"{self.outliers:.0%} outliers of {self.outlier_size:.0%}")
        if self.modes:
            parts.append(f"{self.modes:.0%} slower by {self.mode_size:.0%}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Situation:
    """Made noise of both commits, and what was known of it before."""

    noise: Noise  # of the base's processes, and the machine's state, which is the head's too
    head: Noise | None = None  # of the head's processes; None: the same
    pool: Noise | None = None  # of the machine as the pool saw it; None: as it is
    # How many comparisons there can be that have nothing in common; None: any number.
    independent: int | None = None

    @property
    def is_symmetric(self) -> bool:
        """Whether both commits have the same noise, so that slower and faster are alike."""
        return self.head is None

    def draw(
        self, random: np.random.Generator, effects: Sequence[float], runs: int, pairs: int
    ) -> Drawn:
        """Pairs of `runs` comparisons, and pools, of a benchmark for each effect (a fraction)."""
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
NOISES = {
    "ordinary": Noise(),
    "quiet": Noise(process=0.003, drift=0.003),
    "heavy": Noise(tail=3.0, drift=0.02, outliers=0.05),
}
"""`ordinary` is a machine on which other things run, `quiet` a GPU with nothing else to do."""
SITUATIONS = {
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
