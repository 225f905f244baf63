"""Where results go is tried before anything is measured, and what cannot be written is not lost."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from asv_bench import __main__ as command_line
from asv_bench.cli.commands import build_app
from asv_bench.errors import Refused
from asv_bench.output.destinations import require_writable, write_text
from asv_bench.output.record import Record, require_places

UNWRITABLE = ["file/run.json", "folder.json", "loop", "x" * 300, f"{'x' * 300}/run.json"]


def unwritable(folder: Path, name: str) -> Path:
    """A path at which no file can be: below a file, a folder, a loop of links, or too long."""
    (folder / "file").write_text("")
    (folder / "folder.json").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    return folder / name


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where anything at all is started or measured."""

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was measured first")

    for place in (
        "asv_bench.subjects.choose.OwnSuite",
        "asv_bench.cli.changes.stored_changes",
        "asv_bench.cli.profile.torch_traces",
        "asv_bench.cli.headline.run_process",
        "asv_bench.run.report.Measurement",
        "asv_bench.studies.ladder.command.RungProcesses",
    ):
        monkeypatch.setattr(place, forbidden)


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_path_that_cannot_be_written_is_refused_and_nothing_is_left(
    tmp_path: Path, name: str
) -> None:
    path = unwritable(tmp_path, name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Refused, match=r"cannot be written: .*Nothing was measured"):
        require_writable(None, tmp_path / "fine.json", path)
    assert sorted(tmp_path.rglob("*")) == before


COMMANDS = {
    "scheduler": ["scheduler", "--quick", "--json"],
    "streaming": ["streaming", "--quick", "--json"],
    "compare": ["compare", "HEAD", "HEAD", "--json"],
    "bisect": ["bisect", "HEAD~2", "HEAD", "--json"],
    "calibrate": ["calibrate", "--markdown"],
    "changes": ["changes", "--json"],
    "profile": ["profile", "--quick", "--json"],
    "headline": ["headline", "--quick", "--output"],
}


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_every_command_refuses_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    path = unwritable(tmp_path, UNWRITABLE[0])
    done = CliRunner().invoke(build_app(), [*arguments, str(path)])
    assert isinstance(done.exception, Refused), done.output
    assert str(done.exception).startswith(f"{path} cannot be written: ")
    # So it does where the record has its own place, and none can be there.
    monkeypatch.setattr("asv_bench.output.record.RUNS", tmp_path / "file" / "runs")
    command, *options = arguments[:-1]
    if command == "headline":
        options += ["--output", str(tmp_path / "own.json")]
    done = CliRunner().invoke(build_app(), [command, *options])
    assert isinstance(done.exception, Refused), done.output + repr(done.exception)
    assert "file/runs" in str(done.exception)


@pytest.mark.parametrize("command", ["bench", "history", "report"])
def test_folders_of_histories_are_tried_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    results = tmp_path / "reports" / "asv" / "own"
    results.mkdir(parents=True)
    (results / "machine.json").write_text("{}")
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").touch()
    (tmp_path / "reports" / "html").write_text("a file in place of the folder")
    monkeypatch.setattr("asv_bench.subjects.choose.REPOSITORY", tmp_path)
    monkeypatch.setattr("asv_bench.cli.bench.REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = ["HEAD~1..HEAD"] if command == "history" else []
    done = CliRunner().invoke(build_app(), [command, *arguments])
    assert isinstance(done.exception, Refused), done.output + repr(done.exception)
    assert re.search(r"reports/html/\S+ cannot be written", str(done.exception))


def test_what_cannot_be_written_is_a_sentence_and_the_command_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, full = Record("scheduler", {}), Path("/dev/full")
    require_places(full)
    monkeypatch.setattr(command_line, "app_for", lambda _: lambda: record.write(full))
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "/dev/full could not be written: no space left on device" in said.lower()
    assert full.is_char_device(), "the device is still one"


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


def test_a_full_disk_in_the_middle_is_a_sentence_and_other_errors_are_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        raise error

    monkeypatch.setattr(command_line, "app_for", lambda _: run)
    error = OSError(errno.ENOSPC, "No space left on device", ".asv/last-run.log")
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 1
    assert ".asv/last-run.log could not be written: No space left" in capsys.readouterr().err
    error = OSError(errno.EBADF, "Bad file descriptor")
    with pytest.raises(OSError, match="Bad file descriptor"):
        command_line.main()
