"""Records: what they hold, where they go, and that nobody ever reads half of one.

Where results go is looked at before anything is measured, and written as it stands.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asv_bench import __main__ as command_line
from asv_bench.cli.commands import build_app
from asv_bench.errors import Refused
from asv_bench.git.trees import WorkingTree
from asv_bench.output.record import (
    REPOSITORY,
    RUNS,
    Record,
    require_writable,
    without_folders,
    write_json,
    write_text,
)


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


UNWRITABLE = ["file/run.json", "folder.json", "loop", "x" * 300, f"{'x' * 300}/run.json"]


def unwritable(folder: Path, name: str) -> Path:
    """A path at which no file can be: below a file, a folder, a loop of links, or too long."""
    (folder / "file").write_text("")
    (folder / "folder.json").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    return folder / name


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_path_that_cannot_be_written_is_refused_and_nothing_is_left(
    tmp_path: Path, name: str
) -> None:
    path = unwritable(tmp_path, name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Refused, match=r"cannot be written: .*Nothing was measured"):
        require_writable(None, tmp_path / "fine.json", path)
    assert sorted(tmp_path.rglob("*")) == before


MEASURING = (
    "asv_bench.subjects.choose.OwnSuite",
    "asv_bench.history.standing.stored_changes",
    "asv_bench.cli.profile.torch_trace",
    "asv_bench.cli.run.run_process",
    "asv_bench.run.measure.Measurement",
)


@pytest.mark.parametrize(
    "line",
    [
        *("scheduler --quick --json", "compare HEAD HEAD --json", "bisect HEAD~2 HEAD --json"),
        *("calibrate --markdown", "changes --json", "profile --quick --json"),
        "headline --quick --output",
    ],
)
def test_every_command_refuses_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    # What is loaded first while it is replaced would keep what replaces it.
    CliRunner().invoke(build_app(), [line.split()[0], "--help"])
    for place in MEASURING:
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("something was measured first"))
    path = unwritable(tmp_path, UNWRITABLE[0])
    done = CliRunner().invoke(build_app(), [*line.split(), str(path)])
    assert isinstance(done.exception, Refused), done.output
    assert str(done.exception).startswith(f"{path} cannot be written: ")
    # So it does where the record has its own place, and none can be there.
    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "file" / "runs")
    command = line.split()[:-1]
    if command[0] == "headline":
        command += ["--output", str(tmp_path / "own.json")]
    done = CliRunner().invoke(build_app(), command)
    assert isinstance(done.exception, Refused), done.output + repr(done.exception)
    assert "file/runs" in str(done.exception)


def test_a_pipe_and_a_link_are_written_to_as_they_stand(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    (tmp_path / "real").mkdir()
    link, real = tmp_path / "run.json", tmp_path / "real" / "run.json"
    link.symlink_to(real)
    for path in (Path(f"/proc/self/fd/{write_end}"), link):
        require_writable(path)
        write_text(path, "figures")
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        assert pipe.read() == "figures"
    assert link.is_symlink()
    assert real.read_text() == "figures"


def test_a_full_disk_is_a_sentence_and_other_errors_are_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(number: int) -> None:
        raise OSError(number, os.strerror(number), "a.log")

    full = Path("/dev/full")
    for run in (lambda: Record("scheduler", {}).write(full), lambda: fail(errno.ENOSPC)):
        monkeypatch.setattr(command_line, "app_for", lambda _, run=run: run)
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        assert ended.value.code == 1
        assert re.search("(/dev/full|a.log).*: No space", capsys.readouterr().err)
