"""What the documents say of commands, files, variables and exit codes is so."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from documents import ROOT, blocks, command_lines, documents, name_of

import command_reference
from asv_bench.session.exit_codes import ExitCode

COMMANDS = dict(command_reference.commands())
PAGES = pytest.mark.parametrize("page", documents(), ids=name_of)
SOURCES = ("engine", "kernels", "asv_bench", ".ci", "noxfile.py", "tests/conftest.py")
INTERNAL = {
    *("KVTRAIL_LOCK", "KVTRAIL_WORK"),
}
"""Variables that one process of the ruler sets for another."""


def command_of(words: list[str]) -> tuple[str, list[str]]:
    """The longest name of a command that the words begin with, and the words after it."""
    for length in (3, 2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS and (length > 1 or words[1:2] == [] or words[1].startswith("-")):
            return name, words[length:]
    raise AssertionError(f"{' '.join(words)!r} names no command of kvtrail")


@PAGES
def test_command_lines_have_the_commands_and_options_that_exist(page: Path) -> None:
    for words in command_lines(page):
        if words[0] == "nox":
            # The session's own test says whether it exists; options go to the command it wraps.
            if "--" not in words:
                continue
            names = {name.rpartition(" ")[2]: name for name in COMMANDS}
            session, after = words[2], words[words.index("--") + 1 :]
            if session not in names:
                continue
            words = [*names[session].split(), *after]
        elif words[1] == "VERB":
            continue
        name, after = command_of(words)
        own = after[: after.index("--")] if "--" in after else after
        options = {word.partition("=")[0] for word in own if re.match(r"-+[a-z]", word)}
        assert options <= command_reference.option_names(COMMANDS[name]), " ".join(words)


@PAGES
def test_sessions_that_documents_name_exist(page: Path) -> None:
    noxfile = (ROOT / "noxfile.py").read_text("utf-8")
    sessions = set(re.findall(r"^def ([a-z]+)\(session", noxfile, re.M))
    sessions |= set(re.findall(r'^    Command\(\s*"(\w+)"', noxfile, re.M))
    named = re.findall(r"nox -s ([a-z]+)", page.read_text("utf-8"))
    assert set(named) <= sessions


@PAGES
def test_files_that_documents_name_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    files = re.findall(r"`((?:\w[\w.-]*/|\.\w+/)+[\w.-]*\w\.(?:py|md|yml|toml|txt))`", text)
    assert not [path for path in files if not (ROOT / path).exists()]
    folders = re.findall(r"`((?:engine|kernels|asv_bench|tests|docs)(?:/\w+)*)/?`", text)
    assert not [path for path in folders if not (ROOT / path).is_dir()]


@PAGES
def test_modules_that_documents_run_exist(page: Path) -> None:
    modules = re.findall(r"python -m (asv_bench[\w.]*)", page.read_text("utf-8"))
    assert not [module for module in modules if find_spec(module.rstrip(".")) is None]


@PAGES
def test_nothing_is_installed_from_an_index_that_does_not_have_it(page: Path) -> None:
    # A folder, the path of a wheel, or an address may be.
    named = r"install [^`#\n]*(?<![\w/.-])kvtrail(?:\[[\w,]*\])?(?![\[\w/-]| @)|asv preview"
    assert not re.findall(named, page.read_text("utf-8"))


def test_every_variable_is_documented_and_every_documented_one_is_read() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text("utf-8")
    documented = set(re.findall(r"^\| `(KVTRAIL_\w+)`", page, re.M))
    read: set[str] = set()
    for source in SOURCES:
        path = ROOT / source
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.suffix in (".py", ".sh"):
                read |= set(re.findall(r"KVTRAIL_[A-Z_]*[A-Z]", file.read_text("utf-8")))
    assert documented == read - INTERNAL


def test_every_exit_code_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text("utf-8")
    documented = re.findall(r"^\| (\d+) \|", page, re.M)
    assert [int(code) for code in documented] == sorted(ExitCode)


def test_the_reference_has_every_command_with_every_option() -> None:
    sections = re.split(r"^## ", command_reference.markdown(), flags=re.M)[1:]
    by_command = {name: text for text in sections for name in text.splitlines()[0].split(", ")}
    for full_name, command in COMMANDS.items():
        section = by_command[full_name.removeprefix("kvtrail ")]
        shown = [one for one in command.params if not getattr(one, "hidden", False)]
        options = [one.opts[0] for one in shown if one.opts[0].startswith("-")]
        assert not [option for option in options if option not in section], full_name


def runs(page: Path) -> list[str]:
    """The blocks of Python that a page shows as whole programs, not as excerpts."""
    return [one.text for one in blocks(page) if one.language == "python" and not one.is_excerpt]


@pytest.mark.parametrize("page", [page for page in documents() if runs(page)], ids=name_of)
def test_python_of_the_pages_runs(page: Path) -> None:
    # Blocks of one page go on where the one before ended.
    namespace: dict[str, object] = {}
    for text in runs(page):
        exec(compile(text, f"<{name_of(page)}>", "exec"), namespace)
