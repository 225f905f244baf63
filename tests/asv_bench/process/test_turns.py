"""Two processes that take turns never work at the same time, and neither waits for a dead one."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
from toy_project import ROOT

from asv_bench.measure.turns import Turns, in_turns

SCRIPT = """
import sys, time
from asv_bench.measure.turns import own_turns

name, windows, ending = sys.argv[1], int(sys.argv[2]), sys.argv[3]
turns = own_turns()
turns.wait()
for window in range(windows):
    begun = time.monotonic()
    time.sleep(0.01)
    print(name, begun, time.monotonic(), flush=True)
    if window == 2 and ending == "dies":
        import os
        os.kill(os.getpid(), 9)
    turns.pass_on()
    turns.wait() if window < windows - 1 else None
"""


@pytest.mark.parametrize(
    ("windows", "endings", "expected"),
    [
        ((4, 4), ("well", "well"), "01010101"),
        ((2, 5), ("well", "well"), "0101111"),
        ((5, 2), ("well", "well"), "0101000"),
        ((5, 5), ("dies", "well"), "01010111"),
        ((5, 5), ("well", "dies"), "01010100"),
    ],
)
def test_one_at_a_time_works_and_one_that_is_left_works_alone(
    windows: tuple[int, int], endings: tuple[str, str], expected: str
) -> None:
    def live(number: int, variables: Mapping[str, str]) -> list[str]:
        words = (str(number), str(windows[number]), endings[number])
        said = subprocess.run(
            [sys.executable, "-c", SCRIPT, *words],
            env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
        ).stdout
        return said.splitlines()

    lines = [line for lived in in_turns(live) for line in lived]
    worked = sorted((line.split() for line in lines), key=lambda words: float(words[1]))
    assert "".join(words[0] for words in worked) == expected
    assert all(float(a[2]) <= float(b[1]) for a, b in itertools.pairwise(worked))


def test_alone_nobody_waits() -> None:
    turns = Turns({})
    assert not turns.are_shared
    turns.wait()
    turns.pass_on()
    turns.wait()
