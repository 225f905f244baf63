"""The command line as a whole: verbs, exit codes, version, names, and how much it says."""

from __future__ import annotations

import io
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from declared_repository import DeclaredRepository
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from asv_bench import __main__ as entry
from asv_bench import __version__
from asv_bench.cli.commands import COMMANDS, LAB, build_app
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import Refused
from asv_bench.history.asv_selection import Entry
from asv_bench.output.console import Progress, Verbosity, set_verbosity, verbosity
from asv_bench.run.settings import EngineWorkload
from asv_bench.session.exit_codes import ExitCode, exit_code, parse_gate
from asv_bench.session.options import Outputs
from asv_bench.subjects import own_suite
from asv_bench.subjects.own_suite import OwnSuite

ROOT = Path(__file__).resolve().parents[3]


def said(*arguments: str) -> str:
    done = CliRunner().invoke(build_app(), arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.output).split())


def test_the_help_lists_users_verbs_and_exit_codes_and_the_labs_apart() -> None:
    text, lab = said("--help"), said("lab", "--help")
    for command in COMMANDS:
        is_of_lab = command.panel == LAB
        assert (f" {command.name} " in text) != is_of_lab
        assert (f" {command.name} " in lab) == is_of_lab
    assert all(f" {code.value} " in text[text.index("Exit codes:") :] for code in ExitCode)
    assert text.index("Compare commits") < text.index("Develop kvtrail")
    assert said("--version") == f"kvtrail {__version__}"
    assert "--install-completion" in text
    assert said("lab", "calibrate", "--help").partition("calibrate")[2] in said(
        "calibrate", "--help"
    )


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [("bench --list", True), ("run headline", True), ("lab ladder --rungs 0", True),
     ("bench --help", False), ("lab ladder --render --help", False), ("run --list", False)],
)  # fmt: skip
def test_what_only_a_checkout_can_is_refused_elsewhere(
    line: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asv_bench.cli.commands.IS_CHECKOUT", False)
    done = CliRunner().invoke(build_app(), line.split())
    assert ("works in a checkout of kvtrail, by `python" in str(done.exception)) == is_refused


@pytest.mark.parametrize("line", ["report -q", "compare A B -q", "run wide -q"])
def test_a_quiet_command_shows_no_progress(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Verbosity] = []
    monkeypatch.setattr(Outputs, "__post_init__", lambda _: heard.append(verbosity()))
    for place in ("session.options.Choice", "cli.compare.plan_of", "cli.run.settle"):
        monkeypatch.setattr(f"asv_bench.{place}", lambda *_, **__: heard.append(verbosity()))
    CliRunner().invoke(build_app(), line.split())
    assert heard[0] is Verbosity.QUIET
    for wanted, shown in ((Verbosity.QUIET, ""), (Verbosity.NORMAL, "measuring: 3 processes\n")):
        set_verbosity(wanted)
        file = io.StringIO()
        with Progress(Console(file=file), "measuring", 3) as progress:
            progress.advance()
        assert file.getvalue() == shown
    assert CliRunner().invoke(build_app(), [*line.split(), "-v"]).exit_code == ExitCode.REFUSED


def test_an_interruption_ends_with_its_own_code_and_a_sentence() -> None:
    code = (
        "import sys, time\n"
        "import asv_bench.cli.report as report, asv_bench.__main__ as main\n"
        "report.require_packages = lambda *_: (print('begun', flush=True), time.sleep(60))\n"
        "sys.argv = ['kvtrail', 'report']\n"
        "main.main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=120)
    assert complaint == b"interrupted: the command did not finish.\n"
    assert process.returncode == ExitCode.INTERRUPTED


IMPORTING = """
import importlib.abc, os, runpy, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
sys.argv[1:] = ["report"]
runpy.run_module("asv_bench", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["rich", "asv_bench.errors", "asv_bench.cli.report"])
def test_an_interruption_of_the_imports_is_a_sentence(module: str) -> None:
    command = [sys.executable, "-c", IMPORTING.format(module=module)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (ExitCode.INTERRUPTED, "")
    assert done.stderr == "interrupted: nothing was measured.\n"


VERBS: Any = get_command(build_app())


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command, but for groups, that measures or shows something, by its full name."""
    for child, one in getattr(command, "commands", {}).items():
        if one.hidden:  # another name
            continue
        yield from leaves(one, f"{name} {child}".strip())
    if not getattr(command, "commands", None):
        yield name, command


def test_the_help_of_every_command_has_examples_that_its_command_line_takes() -> None:
    for name, command in leaves(VERBS):
        lines = [line for line in (command.epilog or "").split("\n\n") if "kvtrail" in line]
        assert lines, name
        assert "Raises" not in command.help, name
        for line in lines:
            program, *words = shlex.split(line, comments=True)
            own = len(name.split())
            assert [program, *words[:own]] == ["kvtrail", *name.split()], line
            command.make_context(name, words[own:])
    assert "Examples: kvtrail history v1.2..HEAD kvtrail history" in said("history", "--help")


def test_the_line_that_measures_a_workload_is_one_that_run_takes() -> None:
    _, *words = shlex.split(EngineWorkload("single", batch=2).line().partition("asv_bench")[2])
    commands = dict(leaves(VERBS))
    assert commands["run single"].make_context("single", words[1:]).params["batch"] == 2


@pytest.mark.parametrize(
    ("line", "but"),
    [("compare HEAD~1 HEAD", ()), ("bisect HEAD~1 HEAD", ()), ("bisect HEAD --files", ()),
     ("fixed HEAD~1", ()), ("swap HEAD~1 HEAD a b", ("--workload",)),
     ("changes", ()), ("calibrate", ()), ("history", ("--margin", "--require-gpu")),
     # Peers are other engines, on several workloads, and nothing is judged.
     ("peers", ("--workload", "--margin", "--anyway", "--require-gpu", "--devices", "--subject"))],
)  # fmt: skip
def test_verbs_that_measure_can_all_do_what_any_can(
    line: str, but: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb, *words = line.split()
    known = {option for one in VERBS.commands[verb].params for option in one.opts}
    abilities = ("--resume", "--minutes", "--fleet", "--workload", "--margin", "--require-quiet")
    outputs = ("--json", "--markdown", "--csv", "--require-gpu", "--devices", "--subject")
    assert {*abilities, "--anyway", *outputs} - known == set(but)
    if not words:
        return
    # What it takes, it takes together, whatever else is asked of it.
    toy = DeclaredRepository.make(tmp_path / "toy", TABLES, *"123")
    toy.change("more files", {"one": "1", "other": "1"})
    monkeypatch.chdir(toy.root)
    monkeypatch.setattr("asv_bench.measure.log.FOLDER", tmp_path / "lives")
    monkeypatch.setattr("asv_bench.session.session.WORKPLACE", tmp_path)
    monkeypatch.setattr("asv_bench.session.options.require_packages", lambda *_: None)
    opened = Mock(side_effect=Refused("no host is up."))
    monkeypatch.setattr("asv_bench.session.session.opened_fleet", opened)
    words += ["--resume", "--minutes=9", "--fleet=auto", "--margin=5", "--require-quiet"]
    words += ["--anyway", "--subject=kvtrail.toml"]
    words += [f"{option}={tmp_path / 'out'}{option}" for option in outputs[:3]]
    done = CliRunner().invoke(build_app(), [verb, *words])
    assert done.exception is opened.side_effect, done.output
    assert opened.call_args.args[0] == "auto"
    assert opened.call_args.kwargs["require_quiet"]


@pytest.mark.parametrize(
    ("cause", "said", "code"),
    [
        (lambda: re.compile("("), "'(' is no regular expression: missing ), unterm", 2),
        (Path("/").read_text, "/: Is a directory.", 1),
        (Path("/a\nb").rmdir, "No such file or directory", 1),
    ],
)
def test_what_a_user_can_cause_is_a_sentence(
    cause: Callable[[], object],
    said: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whichever verb meets it, and wherever in it."""
    monkeypatch.setattr("asv_bench.session.options.Choice", lambda *_, **__: cause())
    monkeypatch.setattr("sys.argv", ["kvtrail", "report"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == code
    assert said in " ".join(capsys.readouterr().err.split())


NUMBERS = "--max-new-tokens --prompt-len --pairs --rounds --most-pairs --margin --certain"
OTHERS = ("changes", "headline", "peers", "scheduler")


@pytest.mark.parametrize("verb", ["compare", "bisect", "swap", "history", *OTHERS])
def test_numbers_that_are_none_are_refused_by_each_option(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known = {name for one in VERBS.commands[verb].params for name in one.opts}
    taken = known & {*NUMBERS.split(), "--batch", "--null", "--processes"}
    assert taken
    given = "" if verb in OTHERS else "abcd"[: 4 if verb == "swap" else 2]
    for flag in taken:
        for value in ("nan", "", "9" * 400):
            done = CliRunner().invoke(build_app(), [verb, *given, flag, value])
            assert done.exception is None or isinstance(done.exception, SystemExit | Refused), flag
            assert done.exit_code in (1, 2)


@pytest.mark.parametrize(
    ("verdicts", "gate", "code"),
    [
        ("equivalent, faster", "slower,inconclusive", ExitCode.GOOD),
        ("equivalent, slower, failed, inconclusive", "slower,inconclusive", ExitCode.REGRESSION),
        ("equivalent, inconclusive", "slower,inconclusive", ExitCode.INCONCLUSIVE),
        ("equivalent, inconclusive", "slower", ExitCode.GOOD),
        ("slower, inconclusive", "inconclusive", ExitCode.INCONCLUSIVE),
        ("slower, inconclusive", "none", ExitCode.GOOD),
        ("equivalent, failed", "none", ExitCode.FAILED),
        ("not measured, not measured", "none", ExitCode.NOTHING_MEASURED),
        ("not measured, equivalent", "slower,inconclusive", ExitCode.GOOD),
    ],
)
def test_exit_codes(verdicts: str, gate: str, code: ExitCode) -> None:
    assert exit_code(list(map(Verdict, verdicts.split(", "))), parse_gate(gate)) is code


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
    assert done.output.split() == ["tokens", "wall_s", "peak_rss_bytes", "peak_gpu_bytes", "cpu_s"]
