"""`init`: begin a `kvtrail.toml`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from asv_bench.errors import Refused
from asv_bench.output.console import make_console
from asv_bench.output.destinations import write_text
from asv_bench.process.gpu import visible_gpus
from asv_bench.subjects.axis import repository_around
from asv_bench.subjects.beginning import beginning
from asv_bench.subjects.choose import suites_in
from asv_bench.subjects.subject_file import FILE_NAME, SubjectFile


def init() -> None:
    """Write a commented kvtrail.toml for the repository around the current folder.

    What it measures is guessed from the files that lie there; read it, and edit the command if the
    guess is wrong. No other file is touched.
    """
    root = repository_around(Path.cwd())
    if root is None:
        raise Refused(f"{Path.cwd()} is in no git repository; run init in the one to measure.")
    path = root / FILE_NAME
    if path.exists():
        raise Refused(f"{path} exists already; edit it, or move it away first.")
    write_text(path, beginning(root, has_gpu=bool(visible_gpus())))
    subject = SubjectFile.read(path).content.subject
    before = f", after `{subject.setup}`" if subject.setup else ""
    console = make_console()
    console.print(f"wrote {os.path.relpath(path)}")
    console.print(f"each measurement runs `{subject.measure}`{before}")
    for suite in suites_in(root):
        word = shlex.quote(os.path.relpath(suite))
        console.print(f"an asv suite lies here too: --subject {word} measures it")
    console.print(
        "next: read the file, edit the command if the guess is wrong, then "
        "`kvtrail compare HEAD~1 HEAD`"
    )
