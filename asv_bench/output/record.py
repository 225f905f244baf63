"""What a measuring command leaves behind: a JSON record, and files of results.

Files are looked at before anything is measured, and written in one piece.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from rich.console import Console

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.trees import WorkingTree, working_tree
from asv_bench.output.console import print_sentences
from asv_bench.output.redaction import words_without_secrets
from asv_bench.process.environment import measured_threads
from asv_bench.process.gpu import GpuState, gpu_state
from asv_bench.process.machine import MachineFacts, Surroundings, look_around, machine_facts
from asv_bench.words import counted

SCHEMA = 1
REPOSITORY = Path(__file__).resolve().parents[2]
"""The checkout of kvtrail that the ruler lies in, or the folder where it is installed."""
IS_CHECKOUT = (REPOSITORY / "asv.conf.json").is_file()
STATE = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kvtrail"
WORKPLACE = REPOSITORY if IS_CHECKOUT else STATE
"""Where locks, interrupted pairs and records go; never the repository of a user."""
RUNS = WORKPLACE / "reports" / "runs"
STANDARD_OUTPUT = Path("-")
"""The name that stands for standard output."""
_TEXT: Any = {"encoding": "utf-8", "errors": "backslashreplace"}


@dataclass(slots=True)
class Record:
    """A measurement in the making: opened before the first run, closed after the last."""

    command: str
    settings: Mapping[str, Any]  # everything that the command was asked to do, defaults included
    samples: list[dict[str, Any]] = field(default_factory=list)  # raw samples, one per run
    results: dict[str, Any] = field(default_factory=dict)  # figures derived from the samples
    notes: list[str] = field(default_factory=list)  # what whoever reads the figures must know
    warnings: list[str] = field(default_factory=list)  # why figures may not mean what they say
    tree: WorkingTree = field(default_factory=lambda: working_tree(REPOSITORY))
    machine: MachineFacts = field(default_factory=machine_facts)
    before: GpuState | None = field(default_factory=gpu_state)
    threads: int = field(default_factory=measured_threads)  # of each process that measures
    # What else the machine did before; None where nobody looked.
    surroundings: Surroundings | None = None
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def look_around(
        self,
        console: Console,
        devices: Sequence[str],
        *,
        require_quiet: bool = False,
        is_told: bool = True,
    ) -> list[str]:
        """Record what else the machine does, and warn if that may spoil figures of these devices.

        The warnings are returned, and printed if `is_told`. Raises Refused if quiet is required and
        there is other load.
        """
        self.surroundings = look_around(devices)
        disturbances = self.surroundings.sentences()
        if is_told or require_quiet:
            self.warn(console, disturbances)
        else:
            self.warnings += disturbances
        if require_quiet and disturbances:
            raise Refused("--require-quiet was given, and the machine is not quiet: see above.")
        return disturbances

    def warn(self, console: Console, sentences: Sequence[str]) -> None:
        """Print and record sentences that make figures doubtful."""
        self.warnings += sentences
        print_sentences(console, sentences, "yellow")

    def to_json(self) -> dict[str, Any]:
        """The record as JSON-ready values; the GPU's state after the measurement is read now."""
        states = {"before": self.before, "after": gpu_state() if self.before else None}
        return {
            "schema": SCHEMA,
            "command": self.command,
            "argv": words_without_secrets(list(map(without_folders, sys.argv[1:]))),
            "started": self.started,
            "commit": self.tree.commit,
            "dirty": bool(self.tree.changed),
            "changed": list(self.tree.changed),
            "machine": self.machine.to_json(),
            "threads": self.threads,
            "surroundings": self.surroundings and asdict(self.surroundings),
            "gpu_state": {name: one and one.to_json() for name, one in states.items()},
            "settings": dict(self.settings),
            "notes": self.notes,
            "warnings": self.warnings,
            "results": self.results,
            "samples": self.samples,
        }

    def title(self, what: str) -> str:
        """What was measured, on which machine and at which commit, above a table or a drawing."""
        machine = self.machine.gpu or self.machine.cpu
        commit = (self.tree.label or "none")[:9]
        return f"{machine}, {counted(self.threads, 'thread')}, {what}, commit {commit}"

    def default_path(self) -> Path:
        """A file name of its own under `reports/runs`, which git ignores."""
        moment = self.started.replace(":", "").replace("-", "").split("+")[0]
        commit = (self.tree.commit or "nocommit")[:9]
        return RUNS / f"{self.command}-{moment}-{commit}-{os.getpid()}.json"

    def write(self, path: Path | None = None) -> Path:
        """Write the record to `path` (or its default path) and return where it went."""
        return write_json(path or self.default_path(), self.to_json())


def command_line(*without: str) -> str:
    """The command as it was typed, but for these words."""
    return shlex.join(["kvtrail", *(word for word in sys.argv[1:] if word not in without)])


def without_folders(argument: str) -> str:
    """An argument as a record keeps it: without the folders that only one machine has.

    Of an absolute path that is the part below this checkout, or else the file's name.
    """
    option, equals, value = argument.rpartition("=")
    path = Path(value)
    if not path.is_absolute():
        return argument
    kept = path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path.name
    return f"{option}{equals}{kept}"


def require_places(record: Path | None, *beside: Path | None) -> None:
    """Refuse unless a record (None: in `reports/runs`) and the files beside it can be written."""
    require_writable(record or RUNS / "record.json", *beside)


def write_json(path: Path, content: Any, *, indent: int | None = None) -> Path:
    """Write JSON in one piece; figures that are not finite become null."""
    finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return write_text(path, f"{json.dumps(finite, indent=indent)}\n")


def require_writable(*paths: Path | None) -> None:
    """See before measuring that files can be written; Refused if not.

    Nothing is written, not even a folder. Paths that are None are skipped.
    """
    for path in paths:
        if path is None or path == STANDARD_OUTPUT:
            continue
        try:
            target = path.resolve()
            if target.is_dir():
                raise IsADirectoryError("it is a folder")
            # Files below other names are made in folders that do not exist yet.
            nearest = next(one for one in (target, *target.parents) if one.exists())
            if nearest != target and not nearest.is_dir():
                raise NotADirectoryError(f"{nearest} is a file, not a folder")
            if not os.access(nearest, os.W_OK):
                raise PermissionError("it may not be written to")
        except (OSError, RuntimeError) as error:  # a RuntimeError is a loop of symbolic links
            raise Refused(
                f"{path} cannot be written: {_reason(error)}. Nothing was measured; make it "
                f"writable, or name another file."
            ) from None


def write_text(path: Path, text: str) -> Path:
    """Write a file in one piece: a reader sees the old text or the new, never half of it.

    What is no regular file, such as a pipe or a device, is written to as it stands. Missing folders
    are made, and "-" is standard output. Raises MeasurementFailed if it could not be written.
    """
    try:
        if path == STANDARD_OUTPUT:
            sys.stdout.write(text)
            sys.stdout.flush()
        elif path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, **_TEXT)  # a pipe, or a device
        else:
            # Through a symbolic link, as any other program writes.
            target = path.resolve()
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.parent / f".{target.name}.{token_hex(4)}"
            try:
                beside.write_text(text, **_TEXT)
                beside.replace(target)
            finally:
                beside.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        raise MeasurementFailed(f"{path} could not be written: {_reason(error)}.") from None
    return path


def _reason(error: OSError | RuntimeError) -> str:
    return getattr(error, "strerror", None) or str(error)
