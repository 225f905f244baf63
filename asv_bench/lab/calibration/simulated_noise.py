"""A source of pairs made of noise, to see how often the procedure errs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asv_bench.process.samples import Absence, Pair, Reading
from asv_bench.stats.few_pairs import Floats

BASE, HEAD = "0" * 40, "1" * 40
_PROCESSES_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Noise:
    """How the figures of processes vary, in logarithms: 0.01 is 1 %.

    Attributes
    ----------
    process
        Standard deviation of what is new in each process.
    tail
        Degrees of freedom of Student's t where its distribution is that, scaled to the same
        standard deviation; None: normal.
    drift
        Standard deviation of the machine's own state, which all processes share.
    memory
        Correlation of that state from one process to the next: 0.95 forgets half in 14 processes.
    outliers, outlier_size
        The fraction of processes that are slower by an exponentially distributed extra, and its
        mean.
    modes, mode_size
        The fraction of processes that are slower by the same extra, and the extra: a second mode.
    is_skewed
        Whether what is new in a process is lognormal, with more processes far above than below.
    """

    process: float = 0.01
    tail: float | None = None
    drift: float = 0.01
    memory: float = 0.95
    outliers: float = 0.03
    outlier_size: float = 0.05
    modes: float = 0.0
    mode_size: float = 0.0
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


NOISES = {
    "ordinary": Noise(),
    "quiet": Noise(process=0.003, drift=0.003),
    "heavy": Noise(tail=3.0, drift=0.02, outliers=0.05),
}
"""`ordinary` is a machine on which other things run, `quiet` a GPU with nothing else to do."""


class SimulatedPairs:
    """Pairs of two commits that differ by known effects.

    Parameters
    ----------
    effects
        By benchmark: 0.02 is a head that is 2 % slower.
    noise
        Of every benchmark; processes run one after the other.
    seed
        Of the random numbers.
    """

    devices: Sequence[str] = ("simulated",)
    prepares_together = False

    def __init__(self, effects: Mapping[str, float], noise: Noise, seed: int) -> None:
        self._effects = dict(effects)
        streams = np.random.default_rng(seed).spawn(len(effects))
        self._figures = {
            name: noise.figures(random) for name, random in zip(effects, streams, strict=True)
        }

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        """See `PairSource`: nothing is lacking."""
        return {}

    def stop(self) -> None:
        """See `PairSource`: nothing runs."""

    def pair(
        self,
        base: str,
        head: str,
        *,
        head_first: bool,
        benchmarks: Collection[str] | None = None,
        device: str | None = None,
    ) -> Mapping[str, Pair]:
        """See `PairSource`."""
        pairs: dict[str, Pair] = {}
        for name in benchmarks or self._effects:
            first, second = next(self._figures[name]), next(self._figures[name])
            of_base, of_head = (second, first) if head_first else (first, second)
            of_head += math.log1p(self._effects[name])
            pairs[name] = Pair(
                _reading(base, name, of_base), _reading(head, name, of_head), head_first
            )
        return pairs


def _reading(commit: str, benchmark: str, logarithm: float) -> Reading:
    value = math.exp(logarithm)
    return Reading(commit, benchmark, value, (value,), "simulated", 0.0, 0.0)
