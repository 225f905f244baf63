"""One session at a time in a checkout: who is refused, who is not, and when the lock is free."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asv_bench.cli import run as headline
from asv_bench.cli.commands import build_app
from asv_bench.errors import Refused
from asv_bench.output.record import REPOSITORY
from asv_bench.process.checkout_lock import LOCK_VARIABLE, checkout_lock
from asv_bench.studies.ladder import command as ladder

HOLDING = """
import subprocess, sys
from pathlib import Path
from asv_bench.process.checkout_lock import checkout_lock
with checkout_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
    within = "from asv_bench.process.checkout_lock import *\\n"
    within += "with checkout_lock(Path(sys.argv[1])): print('within', flush=True)"
    sys.exit(subprocess.run([sys.executable, "-c", within, sys.argv[1]]).returncode)
"""


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another process that holds the lock until it reads a line, on a machine with nobody else."""
    monkeypatch.setattr("asv_bench.process.checkout_lock.STATE", tmp_path / "state" / "kvtrail")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    inherited = {key: value for key, value in os.environ.items() if key != LOCK_VARIABLE}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path), "--api-key", "hunter-twelve"],
        cwd=REPOSITORY,
        env=inherited | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_session_is_told_who_holds_it_and_one_elsewhere_is_warned(
    holder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Refused) as refused, checkout_lock(tmp_path):
        pass
    # As it was typed, but for what is secret.
    who = rf"`kvtrail .* --api-key \*\*\*` \(process {holder.pid}, since .*\)"
    assert re.match(rf"{who} is measuring on .*\. Two at once", str(refused.value))
    with checkout_lock(tmp_path / "another checkout"):
        assert f"(process {holder.pid}, since " in capsys.readouterr().err


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_goes_with_its_holder(holder, tmp_path: Path, how: signal.Signals) -> None:
    holder.send_signal(how)
    holder.wait()
    with checkout_lock(tmp_path):
        assert f"(process {os.getpid()}, " in (tmp_path / ".asv" / "lock").read_text()
    assert LOCK_VARIABLE not in os.environ


def test_what_a_session_starts_belongs_to_it(holder, tmp_path: Path) -> None:
    said, _ = holder.communicate("go on\n")
    assert (said, holder.returncode) == ("within\n", 0)
    with checkout_lock(tmp_path), checkout_lock(tmp_path):
        pass


def test_a_checkout_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / ".asv").write_text("a file where the folder should be")
    with pytest.raises(Refused, match=r"/.asv/lock cannot be written \("), checkout_lock(tmp_path):
        pass


@pytest.mark.parametrize("command", ["run headline", "lab ladder --rungs 0-1"])
def test_commands_that_must_be_alone_are_refused_in_a_held_checkout(
    holder, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (headline, ladder):
        monkeypatch.setattr(place, "WORKPLACE", tmp_path)
    output = tmp_path / ("figures.json" if "headline" in command else "ladder")
    words = [*command.split(), "--quick", "--output", str(output)]
    done = CliRunner().invoke(build_app(), words)
    assert "wait for it" in str(done.exception)
    assert CliRunner().invoke(build_app(), [*words, "--help"]).exit_code == 0
