"""Labels that are listed when a command begins: releases, tags, or what a line prints."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import msgspec

from asv_bench.errors import Refused
from asv_bench.git.repository import Repository
from asv_bench.measure.command_line import filled
from asv_bench.measure.processes import last_words
from asv_bench.measure.trees import SUBJECT
from asv_bench.output.redaction import without_secrets
from asv_bench.process.environment import users_environment
from asv_bench.subjects import toml_values as toml
from asv_bench.subjects.subject_file import AxisTable, LabelsTable, SubjectTable
from asv_bench.words import first_of

_RELEASES = str(Path(__file__).with_name("pip_releases.py"))
_BEFORE = ".dev -dev dev .alpha -alpha alpha a .beta -beta beta b -pre .rc -rc rc"
"""What behind a version makes a tag one before it, the earliest first."""


def listed(table: LabelsTable, repository: Path, subject: SubjectTable) -> tuple[str, ...]:
    """The labels that a table means now; Refused where they are no two, or cannot be listed."""
    if table.tags is not None:
        order = [word for one in _BEFORE.split() for word in ("-c", f"versionsort.suffix={one}")]
        listing = ("tag", "--no-column", "--sort=version:refname", "--format=%(refname:strip=2)")
        said = Repository(repository).line(*order, *listing, "--list", "--", table.tags)
    elif table.pip is not None:
        asked = [table.pip, table.since or "", table.until or "", "pre" * table.pre]
        said = _printed(shlex.join(["python", _RELEASES, *asked]), f"pip = {table.pip!r}", subject)
    else:
        said = _printed(table.run or "", f"run = {table.run!r}", subject)
    labels = tuple(line.strip() for line in said.splitlines() if line.strip())
    try:
        msgspec.convert({"kind": "labels", "labels": labels}, AxisTable)
    except msgspec.ValidationError as error:
        asked = [
            f"{key} = {value!r}" for key, value in msgspec.structs.asdict(table).items() if value
        ]
        given = f"{', '.join(asked)} in [axis] gives {first_of(labels, 3) or 'nothing'}"
        raise Refused(f"{given}; {toml.in_words(str(error))}.") from None
    return labels


def _printed(line: str, what: str, subject: SubjectTable) -> str:
    """What a line for the shell prints in the folder of the file, with the variables of a setup."""
    folder = subject.env[SUBJECT]
    own = {name: filled(text, {SUBJECT: folder}) for name, text in subject.env.items()}
    env, no_input = {**users_environment(), **own}, subprocess.DEVNULL
    done = subprocess.run(
        line, shell=True, cwd=folder, env=env, stdin=no_input, capture_output=True, check=False
    )
    if done.returncode:
        said = last_words(done.stderr.decode(errors="replace"))
        ended = f"{what} in [axis] ended with exit code {done.returncode}: {said}"
        raise Refused(without_secrets(ended))
    return done.stdout.decode(errors="replace")
