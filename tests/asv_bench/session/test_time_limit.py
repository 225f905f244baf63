"""How long a command may take, and what ends it in time."""

from __future__ import annotations

import math
import signal
import time
from datetime import UTC, datetime

import pytest

from asv_bench.__main__ import main
from asv_bench.errors import TimeIsUp
from asv_bench.session.time_limit import TimeLimit, ending_in_time


def test_time_is_up_in_the_middle_of_whatever_runs_and_never_after_it() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeIsUp), ending_in_time(0.01):
        time.sleep(60)
    with ending_in_time(0.05):
        pass
    time.sleep(0.1)
    with ending_in_time(None):
        time.sleep(0.01)
    assert signal.getsignal(signal.SIGALRM) is before


def test_some_of_the_minutes_are_left_for_the_answer() -> None:
    assert TimeLimit.of(None, {}).left() is None
    limit = TimeLimit.of(10, {})
    assert limit.whose == "--minutes"
    assert 560 < (limit.left() or 0) < 600
    # Of a long time no more is left than the answer needs.
    assert (TimeLimit.of(600, {}).left() or 0) > 60 * 600 - 30


def test_a_command_counts_its_minutes_from_the_start_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[float] = []
    monkeypatch.setattr(
        "asv_bench.__main__.app_for", lambda _: lambda: begun.append(TimeLimit.of(10, {}).begun)
    )
    monkeypatch.setattr("asv_bench.__main__.measured_environment", dict)
    before = time.monotonic()
    main()
    assert begun[0] < before
    # Another one in this process would have less time by as much as it is old.
    assert TimeLimit.of(10, {}).begun > before


@pytest.mark.parametrize("of", ["gitlab", "slurm"])
def test_a_job_that_says_when_it_ends_is_a_limit(of: str) -> None:
    now = time.time()
    begun = datetime.fromtimestamp(now - 100, UTC).isoformat().replace("+00:00", "Z")
    job = {
        "gitlab": {"CI_JOB_STARTED_AT": begun, "CI_JOB_TIMEOUT": "3700"},
        "slurm": {"SLURM_JOB_END_TIME": str(int(now) + 3600)},
    }[of]
    limit = TimeLimit.of(None, job)
    assert limit.whose == "the limit of this job"
    assert math.isclose(limit.left() or 0, 3600 - 20, abs_tol=5)
    assert math.isclose(TimeLimit.of(1, job).left() or 0, 58, abs_tol=1)
    assert TimeLimit.of(None, dict.fromkeys(job, "soon")).left() is None
