"""What the given minutes can show is said before anything is measured, in every verb."""

from __future__ import annotations

import re

import numpy as np
import pytest
from declared_repository import STEP

from asv_bench.compare.noise_pools import NoisePools, Pool

pytestmark = pytest.mark.usefixtures("lives_in_process")
NAMING = " That is between the ends: naming what made it takes several times as many."


@pytest.mark.parametrize(
    ("words", "measures", "remark"),
    [
        # Of rounds of three lives two thirds as many fit.
        (("compare", "HEAD~2", "HEAD"), "compare measures at most 28 pairs", ""),
        (("fixed", "HEAD~"), "fixed measures at most 18 rounds", ""),
        (("bisect", "HEAD~2", "HEAD"), "bisect measures at most 28 pairs", NAMING),
        # Half of the minutes are left for the traces.
        (
            ("explain", "HEAD~2", "HEAD", "--compare", "--traces", "0"),
            "compare measures at most 13 pairs",
            "",
        ),
    ],
    ids=["compare", "fixed", "bisect", "explain"],
)
def test_before_the_start(
    kvtrail,
    declared,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    measures: str,
    remark: str,
) -> None:
    pool = Pool(np.random.default_rng(1).normal(0, 0.01, 40), sessions=1, pair_s=10.0)
    monkeypatch.setattr(NoisePools, "of", lambda _, names: dict.fromkeys(names, pool))
    toy = declared(STEP, *(f"step = {value}" for value in (10, 12, 11)))
    said = kvtrail(toy, *words, "--minutes", "5").text
    reach = rf"step: In \S+ min {measures} and finds a change of \d\.\d % 9 times of 10\.{remark}"
    assert len(re.findall(reach, said)) == said.count("measures at most") == 1
    assert re.search(f"measuring step of .*{reach}.*record: ", said)
