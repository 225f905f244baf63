"""Records: what they hold, and that nobody ever reads half of one."""

from __future__ import annotations

import json
import math
import re
import stat
import sys
from pathlib import Path

import pytest

from asv_bench.git.trees import WorkingTree
from asv_bench.output.record import REPOSITORY, RUNS, Record, without_folders, write_json


def test_a_record_holds_where_its_figures_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["asv_bench", "scheduler", "--seed", "3"])
    record = Record("scheduler", {"seed": 3}, tree=WorkingTree("abc", ("x.py",)))
    record.samples.append({"wall_s": 1.5, "odd": float("nan"), "all": (math.inf, "nan", 2)})
    record.results["step_ms"] = 2.0
    record.notes.append("A note.")
    path = record.write(tmp_path / "deep" / "run.json")
    content = json.loads(path.read_text())
    assert (content["command"], content["argv"]) == ("scheduler", ["scheduler", "--seed", "3"])
    assert (content["commit"], content["dirty"], content["changed"]) == ("abc", True, ["x.py"])
    assert content["machine"]["python"] == sys.version.split()[0]
    assert set(content["gpu_state"]) == {"before", "after"}
    assert content["settings"] == {"seed": 3}
    assert content["samples"] == [{"wall_s": 1.5, "odd": None, "all": [None, "nan", 2]}]
    assert content["results"] == {"step_ms": 2.0}
    assert content["notes"] == ["A note."]
    assert content["started"].endswith("+00:00")
    assert record.default_path().parent == RUNS
    assert re.fullmatch(r"scheduler-\d+T\d+-abc-\d+\.json", record.default_path().name)


def test_a_record_names_no_folders_of_the_machine() -> None:
    for argument, kept in (
        ("--json=reports/runs/a.json", "--json=reports/runs/a.json"),
        (f"{REPOSITORY}/reports/a.json", "reports/a.json"),
        ("--json=/home/somebody/a.json", "--json=a.json"),
        ("Scheduler.*'gpt2'", "Scheduler.*'gpt2'"),
    ):
        assert without_folders(argument) == kept


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"old": True})

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_json(path, {"new": True})
    assert json.loads(path.read_text()) == {"old": True}
    assert list(tmp_path.iterdir()) == [path]
    # As readable as other files.
    plain = tmp_path / "plain"
    plain.write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
