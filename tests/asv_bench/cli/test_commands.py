"""The command line as a whole: verbs, exit codes, version, and how much it says."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from asv_bench import __version__
from asv_bench.cli.commands import COMMANDS, LAB_COMMANDS, build_app
from asv_bench.cli.exit_codes import ExitCode
from asv_bench.output.console import Verbosity, set_verbosity
from asv_bench.output.progress import Progress

ROOT = Path(__file__).resolve().parents[3]


def said(*arguments: str) -> str:
    done = CliRunner().invoke(build_app(), arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.output).split())


def test_the_help_lists_users_verbs_and_exit_codes_and_the_labs_apart() -> None:
    text, lab = said("--help"), said("lab", "--help")
    assert all(f" {command.name} " in text for command in COMMANDS)
    assert not [command.name for command in LAB_COMMANDS if f" {command.name} " in text]
    assert all(f" {command.name} " in lab for command in LAB_COMMANDS)
    assert all(f" {code.value} " in text[text.index("Exit codes:") :] for code in ExitCode)
    assert text.index("Compare commits") < text.index("Develop kvtrail")


@pytest.mark.parametrize("name", [command.name for command in (*COMMANDS, *LAB_COMMANDS)])
def test_the_help_of_a_verb_has_no_section_of_its_docstring(name: str) -> None:
    assert "Raises" not in said(name, "--help")


@pytest.mark.parametrize("name", [command.name for command in LAB_COMMANDS])
def test_a_verb_of_the_lab_is_known_without_lab_too(name: str) -> None:
    assert said("lab", name, "--help").partition(name)[2] == said(name, "--help").partition(name)[2]


def test_the_version_is_that_of_the_project() -> None:
    commit = r"( \(commit [0-9a-f]{9}(, with changes)?\))?"
    assert re.fullmatch(rf"kvtrail {re.escape(__version__)}{commit}", said("--version"))


def test_completion_is_offered() -> None:
    assert "--install-completion" in said("--help")


def test_a_quiet_command_shows_no_progress() -> None:
    shown: dict[Verbosity, str] = {}
    for wanted in (Verbosity.QUIET, Verbosity.NORMAL):
        set_verbosity(wanted)
        file = io.StringIO()
        with Progress(Console(file=file), "measuring", 3, is_apart=False) as progress:
            progress.advance()
        shown[wanted] = file.getvalue()
    assert shown == {Verbosity.QUIET: "", Verbosity.NORMAL: "measuring: 3 processes\n"}
    done = CliRunner().invoke(build_app(), ["-q", "-v", "report"])
    assert done.exit_code == ExitCode.REFUSED


def test_an_interruption_ends_with_its_own_code() -> None:
    code = (
        "import sys, time\n"
        "import asv_bench.cli.report as report, asv_bench.__main__ as main\n"
        "report.require_project = lambda *_: (print('begun', flush=True), time.sleep(60))\n"
        "sys.argv = ['kvtrail', 'report']\n"
        "main.main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == ExitCode.INTERRUPTED
