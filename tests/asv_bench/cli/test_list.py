"""`--list`: the names that --benchmark takes, a line each, and nothing is measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository
from toy_project import ToyProject, make_project
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.compare.catalog import Entry, select
from asv_bench.subjects import own_suite
from asv_bench.subjects.own_suite import OwnSuite

ENTRIES = [
    Entry(name, name, "seconds")
    for name in (
        "scheduler.Scheduler.track_step_time('gpt2-tiny')",
        "scheduler.Scheduler.track_step_time('gpt2')",
        "host.Startup.track_import",
    )
]


@pytest.mark.parametrize("command", ["compare", "bisect", "bench", "history"])
def test_names_are_printed_whole_one_a_line(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(OwnSuite, "all_entries", lambda suite: ENTRIES)
    monkeypatch.setattr(own_suite, "has_cuda_gpu", lambda: False)
    # Without the arguments that the command wants for measuring.
    done = CliRunner().invoke(build_app(), [command, "--list"])
    assert done.exit_code == 0, done.output
    # Not those that this machine would refuse.
    assert done.output.splitlines() == [ENTRIES[0].name, ENTRIES[2].name]
    for name in done.output.splitlines():
        assert select(ENTRIES, [f"^{re.escape(name)}$"], has_gpu=False)


def test_they_are_the_benchmarks_of_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> None:
    toy: ToyProject = make_project(tmp_path_factory.mktemp("toy") / "project", commits=1)
    names = [entry.name for entry in OwnSuite(toy.root).all_entries()]
    assert "toy.Toy.track_step(8)" in names


@pytest.mark.parametrize("arguments", [("--list", "--subject", "{}"), ("a", "b", "--list"), ()])
def test_the_metrics_of_a_subject_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    tables = """
        [subject]
        name = "toy"
        measure = "true"

        [metrics.tokens]
        path = "tokens"
        """
    root = DeclaredRepository.make(tmp_path / "toy", tables, "").root
    monkeypatch.chdir(tmp_path if "{}" in arguments else root)
    words = [word.format(root / "kvtrail.toml") for word in arguments or ("--list",)]
    done = CliRunner().invoke(build_app(), ["bisect", *words])
    assert done.exit_code == 0, done.output
    assert done.output.split() == ["tokens", "wall_s", "peak_rss_bytes", "peak_gpu_bytes"]
