"""`--list`: the names that --benchmark takes, a line each, and nothing is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from declared_repository import DeclaredRepository
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.history.asv_selection import Entry
from asv_bench.subjects import own_suite
from asv_bench.subjects.own_suite import OwnSuite

NAMES = (
    "scheduler.Scheduler.track_step_time('gpt2-tiny')",
    "scheduler.Scheduler.track_step_time('gpt2')",
    "host.Startup.track_import",
)
TABLES = """
[subject]
name = "toy"
measure = "true"
[metrics.tokens]
path = "tokens"
"""


@pytest.mark.parametrize("command", ["compare", "bisect", "bench", "history"])
def test_names_are_printed_whole_one_a_line(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    entries = [Entry(name, name, "seconds") for name in NAMES]
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(OwnSuite, "all_entries", lambda suite: entries)
    monkeypatch.setattr(own_suite, "has_cuda_gpu", lambda: False)
    # Without the arguments that the command wants for measuring.
    done = CliRunner().invoke(build_app(), [command, "--list"])
    assert done.exit_code == 0, done.output
    # Not those that this machine would refuse.
    assert done.output.splitlines() == [NAMES[0], NAMES[2]]


def test_the_metrics_of_a_subject_are_printed(tmp_path: Path) -> None:
    file = DeclaredRepository.make(tmp_path / "toy", TABLES, "").root / "kvtrail.toml"
    done = CliRunner().invoke(build_app(), ["bisect", "--list", "--subject", str(file)])
    assert done.exit_code == 0, done.output
    assert done.output.split() == ["tokens", "wall_s", "peak_rss_bytes", "peak_gpu_bytes"]
