"""Commands of the ruler on repositories that tests make."""

from __future__ import annotations

import json
import random
import tempfile
import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from declared_repository import DeclaredRepository
from toy_repository import ToyRepository
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.measure import software
from asv_bench.measure.figures import Figures, Left
from asv_bench.measure.life import CommandLife, Setting
from asv_bench.measure.processes import LifeFailed
from asv_bench.subjects.metrics import MetricTable


class Said(NamedTuple):
    """What came of a command: its exit code, what it printed, and its record."""

    code: int
    text: str
    record: dict[str, Any]

    @property
    def answers(self) -> dict[str, dict[str, Any]]:
        """The comparisons of the record, by metric."""
        return {one["benchmark"]: one for one in self.record["results"]["comparisons"]}

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdicts of the record, by metric."""
        return {name: answer["verdict"] for name, answer in self.answers.items()}


Command = Callable[..., Said]


@pytest.fixture
def lives_in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Live in this very process: bench.py is run for what it assigns, figures are made noisy."""
    noise = random.Random(1)

    def live(self, setting: Setting, metrics: Collection[str]) -> Figures:
        laid = setting.laid
        names: dict[str, Any] = {"tree": laid.tree, "label": laid.label}
        try:
            exec((laid.tree / "bench.py").read_text(encoding="utf-8"), names)
        except (Exception, SystemExit) as error:
            raise LifeFailed(repr(error), getattr(error, "code", 1)) from None
        metrics = [name for name, table in self.metrics.items() if isinstance(table, MetricTable)]
        checks = {name: table for name, table in self.metrics.items() if name not in metrics}
        result = tmp_path / f"result-{threading.get_ident()}.json"
        result.write_text(json.dumps({one: names[one] for one in ("out", "score") if one in names}))
        figures = Left(result, "").figures(checks)
        for name in metrics:
            figures.values[name] = (names[name] * (1 + noise.uniform(-0.001, 0.001)),)
        return figures

    monkeypatch.setattr(CommandLife, "live", live)


@pytest.fixture
def declared(tmp_path: Path) -> Callable[..., DeclaredRepository]:
    """A repository with these tables and a commit for each text of bench.py."""
    return partial(DeclaredRepository.make, tmp_path / "toy")


@pytest.fixture
def asks_for_packages() -> None:
    """For a test of `kvtrail` whose Pythons are asked for theirs; the others save the time."""


@pytest.fixture
def kvtrail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Command:
    """Run a command in a repository; a refusal is raised, and nothing of the repository moves."""
    if "asks_for_packages" not in request.fixturenames:
        monkeypatch.setattr(software, "_answer", lambda *_: ([], {}))
    work, scratch = tmp_path / "work", tmp_path / "scratch"
    for place in ("session.session", "history.histories"):
        monkeypatch.setattr(f"asv_bench.{place}.WORKPLACE", work)
    for place in ("explain.explanation", "output.record"):
        monkeypatch.setattr(f"asv_bench.{place}.RUNS", tmp_path / "runs")
    monkeypatch.setattr("asv_bench.measure.log.FOLDER", work / "lives")
    monkeypatch.setattr("asv_bench.compare.noise_pools.FOLDER", work / "noise")
    monkeypatch.setattr("asv_bench.measure.trees.CACHE", tmp_path / "cache")
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def run(toy: ToyRepository, *arguments: str, folder: Path | None = None) -> Said:
        path = tmp_path / "record.json"
        path.unlink(missing_ok=True)
        monkeypatch.chdir(folder or toy.root)
        before = toy.state()
        options = arguments.index("--") if "--" in arguments else len(arguments)
        words = [*arguments[:options], "--json", str(path), *arguments[options:]]
        done = CliRunner().invoke(build_app(), words)
        if isinstance(done.exception, Exception):
            raise done.exception
        assert toy.state() == before
        assert list(scratch.iterdir()) == []
        record = json.loads(path.read_text()) if path.exists() else {}
        return Said(done.exit_code, " ".join(done.output.split()), record)

    return run
