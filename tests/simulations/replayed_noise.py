"""Noise that was measured: pairs of a commit with itself, which records hold, drawn again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from asv_bench.errors import Refused
from asv_bench.lab.reach import Drawn
from asv_bench.output.stored_json import count, positive, read_stored, text
from asv_bench.stats.few_pairs import POOL_SIZE
from asv_bench.stats.paired import Floats

from .noise import places

BLOCK = 5
"""Pairs that stay together and in their order: the first looks, whose levels are the smallest and
which compare neighbours, see one block."""

_Began: TypeAlias = tuple[float, float, float]
"""When a pair began, and its logarithms in the order of time."""


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
