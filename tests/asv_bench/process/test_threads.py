"""Threads: whatever measures has one, unless the user set a number, which the record holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from toy_project import run_ruler

from asv_bench.errors import Refused
from asv_bench.measure.processes import run_apart
from asv_bench.output.record import REPOSITORY, Record


@pytest.mark.parametrize(("given", "recorded"), [(None, 1), ("", 1), ("3", 3), ("4,2", 4)])
def test_a_process_that_measures_has_the_number(
    monkeypatch: pytest.MonkeyPatch, given: str | None, recorded: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    told = "json.dumps([os.environ['OMP_NUM_THREADS'], os.environ['X']])"
    code = f"import json, os; open(os.environ['KVTRAIL_RESULT'], 'w').write({told})"
    assert run_apart([sys.executable, "-c", code], "it", {"X": "y"}) == [given or "1", "y"]
    # Of a list torch takes the first.
    assert Record("scheduler", {}).to_json()["threads"] == recorded


def test_a_command_that_measures_in_its_own_process_has_one_thread_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On more than one core torch would take them all."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    path = tmp_path / "run.json"
    done = run_ruler(
        *(REPOSITORY, "scheduler", "--quick", "--num-requests=1", "--max-new-tokens=2"),
        *("--warmup-runs=0", "--repeat-runs=1", "--json", str(path)),
    )
    assert done.returncode == 0, done.stderr
    # What torch says of itself once it runs.
    assert json.loads(path.read_text())["threads"] == 1
    assert ", 1 thread, online" in done.stdout


@pytest.mark.parametrize("given", ["0", "-1", "two", "1.5"])
def test_a_number_of_threads_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    with pytest.raises(Refused, match=f"OMP_NUM_THREADS is '{given}'; it must be a number"):
        Record("scheduler", {})
