"""Many comparisons at once: they are those that commits would get, whatever the noise."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from simulated_pairs import BASE, HEAD, pair_of, pairs_with_itself, seconds

from asv_bench.compare.comparison import CommitComparison
from asv_bench.compare.judging import within_commit
from asv_bench.compare.noise_pools import Pool, own_differences, share_slower
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.errors import Refused
from asv_bench.measure.rounds import two_cells
from asv_bench.measure.samples import Pair
from tests.simulations.commits import RoundsOfPairs
from tests.simulations.many_comparisons import Drawn, compare_many
from tests.simulations.noise import COARSE, SITUATIONS, ReplayedNoise, replayed

CAP = ComparisonPlan().cap


class DrawnPairs(RoundsOfPairs):
    """Gives the pairs of one simulated comparison to the code that compares real commits."""

    devices = ("simulated",)

    def __init__(self, drawn: Drawn, run: int) -> None:
        self._drawn, self._run, self._number = drawn, run, 0

    def prepare(self, commit: str, device: str | None = None) -> dict:
        return {}

    def stop(self) -> None:
        pass

    def pair(self, base, head, *, head_first, benchmarks, device) -> dict[str, Pair]:
        pairs = {}
        for name in benchmarks:
            of_base, of_head = (
                math.exp(side[self._run, int(name), self._number])
                for side in (self._drawn.base, self._drawn.head)
            )
            if self._drawn.digits > COARSE:
                of_base, of_head = round(of_base), round(of_head)
            pairs[name] = pair_of(of_base, of_head, benchmark=name, head_first=head_first)
        self._number += 1
        return pairs


@pytest.mark.parametrize("benchmarks", [pytest.param(1, marks=pytest.mark.thorough), 3])
@pytest.mark.parametrize("noise", [*SITUATIONS, "replayed"])
def test_many_comparisons_at_once_are_those_that_commits_get(
    noise: str, benchmarks: int, tmp_path: Path
) -> None:
    """Verdict, pairs, effect and interval of every benchmark, run by run."""
    source = SITUATIONS.get(noise) or stored_noise(tmp_path)
    plan = ComparisonPlan()
    for place, effect in enumerate((0.0, 0.01, 0.05)):
        effects = [effect] + [0.0] * (benchmarks - 1)
        drawn = source.draw(np.random.default_rng(place), effects, 4, plan.cap)
        answers = compare_many(drawn, plan)
        for run in range(4):
            names = [str(number) for number in range(benchmarks)]
            pools = {name: Pool(drawn.pools[run, int(name)], drawn.sessions) for name in names}
            compared = CommitComparison(two_cells(BASE, HEAD), seconds(*names), plan, pools).run(
                DrawnPairs(drawn, run)
            )
            for number, answer in enumerate(compared):
                found = run, number
                assert answers.verdict[found] == answer.verdict
                assert answers.pairs[found] == answer.pairs_used
                assert answers.effect[found] == pytest.approx(answer.effect, abs=1e-12)
                interval = answers.low[found], answers.high[found]
                assert interval == pytest.approx(answer.interval, abs=1e-12)


def stored_noise(folder: Path, pairs: int = 48) -> ReplayedNoise:
    record = folder / "calibrated.json"
    record.write_text(json.dumps({"samples": pairs_with_itself(pairs)}))
    (noise,) = replayed(record, CAP).values()
    return noise


@pytest.mark.parametrize("effect", [0.008, 0.01])
def test_what_calibrate_expects_of_minutes_is_what_comparisons_come_to(effect: float) -> None:
    plan = ComparisonPlan()
    drawn = SITUATIONS["quiet"].draw(np.random.default_rng(0), [effect], 300, plan.cap)
    share = share_slower(drawn.base[:, 0], drawn.head[:, 0], drawn.pools[:, 0], plan)
    assert share == (compare_many(drawn, plan).verdict == "slower").mean()
    assert 0.02 < share < 0.98


@pytest.mark.parametrize("pairs", [4, 5, 7])
def test_differences_within_a_commit_are_those_that_pairs_show(pairs: int) -> None:
    base, head = np.random.default_rng(pairs).normal(0, 0.01, (2, pairs))
    head_first = np.isin(np.arange(pairs) % 4, (1, 2))
    measured = [
        pair_of(*np.exp(logs), head_first=is_first)
        for *logs, is_first in zip(base, head, head_first, strict=True)
    ]
    assert own_differences(base, head, head_first) == pytest.approx(within_commit(measured))


def test_stored_pairs_are_those_of_a_commit_with_itself_and_enough(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="fewer than 85 pairs of a commit with itself"):
        stored_noise(tmp_path, pairs=39)
    assert stored_noise(tmp_path, pairs=44).independent == 32
    record = tmp_path / "both.json"
    both = pairs_with_itself(48) + pairs_with_itself(48, benchmark="c")
    record.write_text(json.dumps({"samples": both}))
    assert list(replayed(record, CAP)) == ["both, b", "both, c"]
