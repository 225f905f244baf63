"""An answer as text for an issue or a pull request, in GitHub's Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from asv_bench import __version__
from asv_bench.git.repository import WORKING_TREE, Commit
from asv_bench.output.markdown import fenced, inline
from asv_bench.output.record import Record, without_folders
from asv_bench.output.redaction import words_without_secrets
from asv_bench.output.table import Table
from asv_bench.process.gpu import NO_GPU
from asv_bench.process.machine import MachineFacts
from asv_bench.words import counted

LIMIT = 65_000
"""Characters; GitHub takes 65,536 in one comment."""
_MOST_REMARKS = 30
_MORE = "\n\nMore rows are in the record."
_FILES = ("--json", "--markdown", "--csv", "--format")
_HOW = ("--resume", "--fresh", "--quiet", "-q", "--verbose", "-v")


def issue_text(
    heading: str,  # the answer in a line
    commits: str,  # what it is about, as `described` and the like say it, in Markdown
    # Figures; the rows that stand last are left out first where there is no room. Captions are
    # printed small.
    tables: Sequence[Table],
    remarks: Sequence[str],  # sentences without which the figures would be misunderstood
    environment: Mapping[str, str],  # facts by their name
    command: str,  # what repeats the measurement, see `repeating`
) -> str:
    """The Markdown of an answer, of at most `LIMIT` characters; all but tables are plain text."""
    listed = [f"- {_line(one)}" for one in dict.fromkeys(remarks)]
    if left := len(listed[_MOST_REMARKS:]):
        listed[_MOST_REMARKS:] = [f"- Left out here: {left} more."]
    captions = dict.fromkeys(table.caption for table in tables if table.caption)
    facts = "\n".join(f"- {name}: {_line(fact)}" for name, fact in environment.items() if fact)
    after = [
        "\n".join(listed),
        *(f"<sub>{inline(caption)}</sub>" for caption in captions),
        f"To repeat it:\n\n{fenced(command, 'sh')}",
        f"<details><summary>Environment</summary>\n\n{facts}\n\n</details>\n",
    ]
    before = f"### {_line(heading)}\n\n{commits}"
    end = "\n\n".join(filter(None, after))
    bare = [replace(table, title="", caption="").to_markdown().rstrip() for table in tables]
    figures = "\n\n".join(bare)
    room = LIMIT - len(before) - len(end) - 4
    if len(figures) > room:
        figures = figures[: room - len(_MORE)].rpartition("\n")[0] + _MORE
    return "\n\n".join(filter(None, (before, figures, end)))[:LIMIT]


def place_of(machine: MachineFacts, devices: Sequence[str]) -> str:
    """The GPUs that are measured, or the CPU."""
    if machine.gpu is None or set(devices) <= set(NO_GPU):
        return f"{machine.cpu}, {machine.cores} cores"
    return machine.gpu if len(devices) == 1 else f"{len(devices)} x {machine.gpu}"


def environment_of(
    record: Record, measured: str, devices: Sequence[str], *, with_torch: bool, seconds: float
) -> dict[str, str]:
    """The facts that a figure depends on: what is `measured` and how, and on which `devices`.

    `with_torch` says whether lives run with the ruler's own torch and its number of threads.
    """
    machine = record.machine
    software = [f"Python {machine.python}", f"kvtrail {__version__}"]
    if with_torch:
        threads = f"{counted(record.threads, 'thread')} a process"
        software += [f"torch {machine.torch}", f"Triton {machine.triton}", threads]
    driver = f", driver {machine.driver}" if machine.gpu and machine.driver else ""
    return {
        "measured": measured.removeprefix("measuring "),
        "machine": f"{place_of(machine, devices)}{driver}",
        "system": f"{machine.os}, kernel {machine.kernel}",
        "software": ", ".join(software),
        "begun": f"{record.started}, {seconds:.0f} s",
    }


def described(commit: Commit) -> str:
    """A commit or a label in bold with its message, in Markdown."""
    return f"**{inline(commit.short)}** {_line(commit.subject, 200)}".rstrip()


def lasting_names(given: Iterable[tuple[str, Commit]]) -> dict[str, tuple[str, ...]]:
    """What to say in place of the names that commits were given by; the working tree has none."""
    return {name: (commit.short,) for name, commit in given if name != WORKING_TREE}


def repeating(arguments: Sequence[str], names: Mapping[str, tuple[str, ...]]) -> str:
    """The command line that measures the same again, wherever the same commits are.

    Names of files to write are left out, and so are secrets and how much is said. `arguments` come
    without the program; `names` are words in place of names that move, as a hash for HEAD~1.
    """
    given = [without_folders(word) for word in arguments]
    end = given.index("--") if "--" in given else len(given)
    kept: list[str] = []
    words = iter(given[:end])
    for word in words:
        option, equals, value = word.partition("=")
        if option in _FILES:
            if not equals:
                next(words, None)
        elif equals:
            kept.append(f"{option}={names.get(value, (value,))[0]}")
        elif word not in _HOW:
            kept += names.get(word, (word,))
    return shlex.join(words_without_secrets(["kvtrail", *kept, *given[end:]]))


def _line(text: str, longest: int = 600) -> str:
    """Text in one line that is not too long."""
    line = " ".join(text.split())
    return inline(line if len(line) <= longest else f"{line[: longest - 1]}…")
