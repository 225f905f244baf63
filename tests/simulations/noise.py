"""Noise of processes, of a known distribution or measured, and comparisons that meet it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from asv_bench.errors import Refused
from asv_bench.output.stored_json import count, positive, read_stored, text
from asv_bench.stats.paired import POOL_SIZE, Floats

from .many_comparisons import Drawn

BLOCK = 5
"""Pairs that stay together and in their order: the first looks, whose levels are the smallest and
which compare neighbours, see one block."""
COARSE = 1e-9
"""A step of the last digit that noise does not hide, as a fraction of the figure."""
_MIDDLE = 1.2215829
"""Of exp(z), z normal: the median of the mean of two."""
_PROCESSES_AT_ONCE = 512
_Began: TypeAlias = tuple[float, float, float]
"""When a pair began, and its logarithms in the order of time."""


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
    # How many processes in a row the machine is on average in one of two states, in which all are
    # slower by `mode_size` or not; None: it has one.
    state_lives: float | None = None
    # How many lives of a server a process stands for, asked after one start of it, and the standard
    # deviation of what a start adds to all of them.
    lives: int = 1
    start: float = 0.0

    def figures(self, random: np.random.Generator) -> Iterator[float]:
        """The logarithms of one process after the other, around 0, without end."""
        state = random.normal(0, self.drift)
        while True:
            own = self.own(random, (_PROCESSES_AT_ONCE,))
            changes = random.normal(0, self._renewal, _PROCESSES_AT_ONCE)
            for value, change in zip(own, changes, strict=True):
                state = self.memory * state + change
                yield float(value + state)

    def states(self, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """The machine's state at each process, [..., processes]."""
        states = random.normal(0, self._renewal, shape)
        states[..., 0] = random.normal(0, self.drift, shape[:-1])
        for place in range(1, shape[-1]):
            states[..., place] += self.memory * states[..., place - 1]
        if self.state_lives is not None:
            changes = random.random(shape) < 1 / self.state_lives
            changes[..., 0] = random.random(shape[:-1]) < 0.5
            states += self.mode_size * (np.cumsum(changes, axis=-1) % 2)
        return states

    def own(self, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """What is each process' own, the machine's state apart."""
        if self.lives > 1:
            of_lives = replace(self, lives=1, start=0.0).own(random, (*shape, self.lives))
            return np.median(of_lives, axis=-1) + random.normal(0, self.start, shape)
        if self.is_skewed:
            # exp(z) has a variance of e (e - 1); around what `hodges_lehmann` finds.
            scale = self.process / math.sqrt(math.e * (math.e - 1))
            values = scale * (random.lognormal(0, 1, shape) - _MIDDLE)
        elif self.tail is None:
            values = random.normal(0, self.process, shape)
        else:
            scale = self.process / math.sqrt(self.tail / (self.tail - 2))
            values = scale * random.standard_t(self.tail, shape)
        is_slow = random.random(shape) < self.outliers
        values += is_slow * random.exponential(self.outlier_size, shape)
        if self.modes:
            values += (random.random(shape) < self.modes) * self.mode_size
        return values

    @property
    def _renewal(self) -> float:
        return self.drift * math.sqrt(1 - self.memory**2)

    def __str__(self) -> str:
        tail = "" if self.tail is None else f", t with {self.tail:.0f} degrees of freedom"
        parts = [f"{self.process:.1%} a process{tail}{', lognormal' if self.is_skewed else ''}"]
        if self.drift:
            parts.append(f"drift of {self.drift:.1%} that remembers {self.memory:.0%}")
        if self.outliers:
            parts.append(f"{self.outliers:.0%} outliers of {self.outlier_size:.0%}")
        if self.lives > 1:
            parts.append(f"{self.lives} of them after each start, which adds {self.start:.1%}")
        if self.modes:
            parts.append(f"{self.modes:.0%} slower by {self.mode_size:.0%}")
        if self.state_lives is not None:
            parts.append(f"slower by {self.mode_size:.0%} for {self.state_lives:g} in a row")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Situation:
    """Made noise of both commits, and what was known of it before."""

    noise: Noise  # of the base's processes, and the machine's state, which is the head's too
    head: Noise | None = None  # of the head's processes; None: the same
    pool: Noise | None = None  # of the machine as the pool saw it; None: as it is
    sessions: int = 8  # that the pool comes from
    seen: float = 0.0  # the share of these in which the machine was as it is, where a pool is given
    digits: float = 1e-15  # the step of the figures' last digit, as a fraction of the base's figure
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
        base = self.noise.own(random, shape) + states[..., base_at]
        head = (self.head or self.noise).own(random, shape) + states[..., head_at] + shifts
        if self.digits > COARSE:
            # Where the figures are between two that can be printed is a matter of chance.
            offset = np.log1p(self.digits * random.random((*shape[:2], 1)))
            base, head = (
                np.log(np.round(np.exp(side + offset) / self.digits)) for side in (base, head)
            )
        return Drawn(base, head, self.pools(random, shape[:2]), self.sessions, self.digits)

    def pools(self, random: np.random.Generator, shape: tuple[int, int]) -> Floats:
        """Differences between neighbours of one commit, of each session as many."""
        lives = (*shape, self.sessions, 2 * POOL_SIZE // self.sessions)
        kinds = [self.noise] if self.pool is None else [self.pool, self.noise]
        drawn = [one.own(random, lives) + one.states(random, lives) for one in kinds]
        is_seen = random.random((*lives[:3], 1)) < self.seen
        earlier = np.where(is_seen, drawn[-1], drawn[0])
        return (earlier[..., 1::2] - earlier[..., ::2]).reshape(*shape, POOL_SIZE)

    def __str__(self) -> str:
        head = "" if self.head is None else f"; of the head: {self.head}"
        pool = "" if self.pool is None else f"; of the pool: {self.pool}"
        if self.seen:
            pool += f" in {1 - self.seen:.0%} of {self.sessions} sessions"
        elif self.pool and self.sessions == 1:
            pool += " in its one session"
        step = f"; a last digit of {self.digits:.1%}" if self.digits > COARSE else ""
        return f"{self.noise}{head}{pool}{step}"


def places(pairs: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the base's and the head's processes are among all, which alternate as ABBA."""
    first = 2 * np.arange(pairs)
    head_first = np.isin(np.arange(pairs) % 4, (1, 2))
    return first + head_first, first + ~head_first


@dataclass(frozen=True)
class ReplayedNoise:
    """Blocks of pairs that were measured one after the other on one device.

    A comparison sees some of them, which do not overlap, and the pool comes from others. Both
    commits' noise is the same, since it was one commit's.
    """

    # [BLOCK, blocks, 2 * BLOCK] logarithms of costs in the order of time, around the device's
    # median; by the pair with which the first block begins. NaN where there are fewer.
    blocks: Floats
    is_symmetric: bool = True

    @property
    def independent(self) -> int:
        """See `Situation`: either process of a pair could have been the head's."""
        return 2 * len(self.blocks[0])

    def draw(
        self, random: np.random.Generator, effects: Sequence[float], runs: int, pairs: int
    ) -> Drawn:
        """See `Situation`."""
        shape = runs, len(effects)
        seen = math.ceil(pairs / BLOCK)
        begin = random.integers(BLOCK, size=(*shape, 1))
        is_lacking = np.isnan(self.blocks[:, :, 0])[begin[..., 0]]
        order = np.argsort(np.where(is_lacking, np.inf, random.random(is_lacking.shape)), axis=-1)
        drawn = self.blocks[begin, order[..., : _blocks_for(pairs)]]
        # Time could as well have run the other way, and either commit could have been the head.
        is_turned = random.random((*drawn.shape[:-1], 1)) < 0.5
        drawn = np.where(is_turned, drawn[..., ::-1], drawn)
        processes = drawn[..., :seen, :].reshape(*shape, -1)
        base, head = (processes[..., one] for one in places(pairs))
        is_swapped = random.random((*shape, 1)) < 0.5
        # Between pairs, as where one ends with the commit that the next begins with.
        differences = drawn[..., seen:, 2::2] - drawn[..., seen:, 1:-1:2]
        return Drawn(
            base=np.where(is_swapped, head, base),
            head=np.where(is_swapped, base, head) + np.log1p(effects)[:, None],
            pools=differences.reshape(*shape, -1)[..., :POOL_SIZE],
        )

    def __str__(self) -> str:
        first = self.blocks[0]
        deviation = np.std(first[:, 1::2] - first[:, ::2])
        return f"{first.shape[0]} blocks of {BLOCK} pairs, deviation {deviation:.1%} a pair"


def replayed(path: Path, pairs: int) -> dict[str, ReplayedNoise]:
    """The noise of each benchmark of which a record has enough pairs of a commit with itself.

    Raises Refused if a record of `compare` or `calibrate` has enough of none for comparisons that
    may take so many pairs.
    """
    series = read_stored(path, "a record with pairs", _series)
    needed = _blocks_for(pairs)
    blocks = {name: _blocks(by_device.values()) for name, by_device in series.items()}
    noises = {name: ReplayedNoise(one) for name, one in blocks.items() if _fewest(one) >= needed}
    if not noises:
        raise Refused(
            f"{path} has fewer than {(needed + 1) * BLOCK} pairs of a commit with "
            f"itself for each benchmark; calibrate measures them."
        )
    if len(noises) == 1:
        return dict.fromkeys((path.stem,), *noises.values())
    return {f"{path.stem}, {name}": noise for name, noise in noises.items()}


def _series(content: dict[str, Any]) -> dict[str, dict[str, list[_Began]]]:
    """The pairs by benchmark and device."""
    found: dict[str, dict[str, list[_Began]]] = defaultdict(lambda: defaultdict(list))
    for pair in content["samples"]:
        base, head = pair["base"], pair["head"]
        if base["commit"] == head["commit"] and pair["discarded"] is None:
            first, second = (head, base) if pair["head_first"] else (base, head)
            one, other = (math.log(positive(reading["value"])) for reading in (first, second))
            began = count(first["started_at"])
            found[text(pair["benchmark"])][text(base["device"])].append((began, one, other))
    return found


def _blocks(devices: Iterable[list[_Began]]) -> Floats:
    """See `ReplayedNoise.blocks`."""
    by_begin: list[Floats] = []
    for begin in range(BLOCK):
        found = [np.empty((0, 2 * BLOCK))]
        for pairs in devices:
            values = np.array([pair[1:] for pair in sorted(pairs, key=itemgetter(0))])
            values = values[begin:] - np.median(values)
            whole = len(values) // BLOCK * BLOCK
            found.append(values[:whole].reshape(-1, 2 * BLOCK))
        by_begin.append(np.concatenate(found))
    blocks = np.full((BLOCK, max(map(len, by_begin)), 2 * BLOCK), np.nan)
    for begin, one in enumerate(by_begin):
        blocks[begin, : len(one)] = one
    return blocks


def _fewest(blocks: Floats) -> int:
    """How many blocks there are, whatever the pair with which the first begins."""
    return int((~np.isnan(blocks[:, :, 0])).sum(axis=1).min())


def _blocks_for(pairs: int) -> int:
    """Blocks that a comparison needs: for its pairs, and for a pool of what lies between pairs."""
    return math.ceil(pairs / BLOCK) + math.ceil(POOL_SIZE / (BLOCK - 1))


def _plain(process: float) -> Noise:
    return Noise(process=process, drift=0.0, outliers=0.0)


_TWO_MODES = Noise(process=0.005, drift=0.0, outliers=0.0, modes=0.3, mode_size=0.05)


def _in_states(lives: float) -> Noise:
    return Noise(process=0.001, drift=0.0, outliers=0.0, mode_size=0.05, state_lives=lives)


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
    "servers": Situation(Noise(process=0.04, drift=0.0, outliers=0.0, lives=3, start=0.015)),
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
    "pool of one session, blind to modes": Situation(_TWO_MODES, pool=_plain(0.005), sessions=1),
    **{
        f"states of {lives:g}, pool of {number} session{'s' * (number > 1)}": Situation(
            _in_states(lives), pool=_plain(0.001), sessions=number, seen=0.5 * (number > 1)
        )
        for lives in (1.25, 2.0)
        for number in (1, 8)
    },
    "skewed head 10 times as wide": Situation(
        _plain(0.003), head=Noise(process=0.03, is_skewed=True, drift=0.0, outliers=0.0)
    ),
    "last digit of 1 %": Situation(_plain(0.001), digits=0.01),
}
