"""`memcheck`: what counts as clean, and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from asv_bench.commands import memcheck
from asv_bench.commands.memcheck import CHECKS, Check, Outcome, read_outcome, run_check
from asv_bench.errors import Refused

SANITIZED = Check("sanitized", ("tests",), is_sanitized=True)
CLEAN = "3 passed\n========= ERROR SUMMARY: 0 errors\n"


def _report(directory: Path, **counts: int) -> Path:
    attributes = " ".join(f'{key}="{value}"' for key, value in counts.items())
    path = directory / "report.xml"
    path.write_text(f"<testsuites><testsuite {attributes}></testsuite></testsuites>")
    return path


def test_counts_are_read_from_the_report(tmp_path):
    report = _report(tmp_path, tests=10, failures=2, errors=1, skipped=3)
    outcome = read_outcome(CHECKS[0], report, "", 4.0)
    assert outcome == Outcome(CHECKS[0].name, 4, 3, 3, None, 4.0)
    assert not outcome.is_clean


def test_a_run_without_errors_is_clean(tmp_path):
    report = _report(tmp_path, tests=3)
    assert read_outcome(SANITIZED, report, CLEAN, 1.0).is_clean


@pytest.mark.parametrize(
    ("counts", "output"),
    [
        ({"tests": 3}, CLEAN.replace("0 errors", "2 errors")),
        ({"tests": 3}, "killed before its summary"),
        ({"tests": 0}, CLEAN),
        ({"tests": 3, "skipped": 3}, CLEAN),
        ({"tests": 3, "failures": 1}, CLEAN),
    ],
    ids=["memory errors", "no summary", "no test", "all skipped", "a failure"],
)
def test_anything_else_is_not(tmp_path, counts, output):
    report = _report(tmp_path, **counts)
    assert not read_outcome(SANITIZED, report, output, 1.0).is_clean


def test_a_run_that_left_no_report_is_not_clean(tmp_path):
    assert not read_outcome(CHECKS[0], tmp_path / "missing.xml", CLEAN, 1.0).is_clean


def test_a_check_runs_pytest_in_the_repository():
    outcome = run_check(Check("one test", ("tests/asv_bench/test_floor.py",)))
    # The tests themselves demand a GPU here: without one nothing may pass unseen.
    assert outcome.passed == 0 or outcome.is_clean


def test_every_path_that_is_checked_exists():
    paths = [Path(a) for check in CHECKS for a in check.arguments if a.startswith("tests")]
    assert paths
    assert all((memcheck.REPOSITORY / path).exists() for path in paths)


def test_a_machine_that_cannot_is_refused(monkeypatch):
    monkeypatch.setattr(memcheck, "has_cuda_gpu", lambda: False)
    with pytest.raises(Refused, match="needs a GPU"):
        memcheck.memcheck()
    monkeypatch.setattr(memcheck, "has_cuda_gpu", lambda: True)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Refused, match="no compute-sanitizer"):
        memcheck.memcheck()
