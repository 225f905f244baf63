"""What the commands that measure ends of a range have in common: their record and their ending."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import typer

from asv_bench.cli.exit_codes import ExitCode
from asv_bench.compare.kept_pairs import KeptFile
from asv_bench.compare.noise_pools import NoisePools
from asv_bench.fleet.fleet import Fleet
from asv_bench.fleet.fleet_records import hosts_json, look_around, record_of
from asv_bench.output.console import print_remarks, print_sentences
from asv_bench.output.issue_text import environment_of
from asv_bench.output.table_files import TableFiles
from asv_bench.process.doing import command_line
from asv_bench.subjects.imports import same_code
from asv_bench.subjects.subject import Subject

S = TypeVar("S", bound=Subject)


class Question(ABC, Generic[S]):
    """One question of a command about commits or labels, from its first process to its record."""

    def __init__(
        self,
        command: str,
        settings: Mapping[str, Any],
        subject: S,
        files: TableFiles,
        fleet: Fleet | None = None,
    ) -> None:
        self._subject = subject
        self._files = files
        self._console = files.console
        self._fleet = fleet
        known = {"subject": subject.to_json(), "fixed": subject.fixed}
        devices = list(subject.devices)
        self._record = record_of(command, {**settings, **known, "devices": devices}, fleet)
        self.seconds = 0.0

    @abstractmethod
    def print_answer(self) -> None:
        """Print the table and the answer."""

    @abstractmethod
    def results(self) -> dict[str, Any]:
        """What the record says of the answer."""

    def _begin(
        self, said: Sequence[str], noise: NoisePools, resume: bool | None, *, require_quiet: bool
    ) -> KeptFile:
        """Say what is measured, and look around; the pairs of earlier runs."""
        kept = KeptFile.of_record(self._record, resume)
        known = [self._subject.sentence(), *kept.sentences(), *noise.complaints]
        print_sentences(self._console, [*said, *known])
        look_around(
            self._record, self._console, self._subject, self._fleet, require_quiet=require_quiet
        )
        return kept

    def end(self, code: ExitCode) -> None:
        """Print the answer, write the record, and end with a code.

        Raises
        ------
        typer.Exit
            With the code, unless it is 0.
        """
        self._record.warn(self._console, same_code(self._subject.measured.cells))
        self.print_answer()
        print_remarks(self._console, self._subject.remarks)
        self._console.print(f"record: {self.write_record(self._files.record, code)}")
        if code is ExitCode.INTERRUPTED:
            self._console.print(f"go on with these pairs: {command_line('--fresh')}")
        if code:
            raise typer.Exit(code)

    def write_record(self, path: Path | None, code: ExitCode) -> Path:
        """Write what was measured, and the answer; return where."""
        self._record.notes += self._subject.remarks
        self._record.results = {
            "exit_code": int(code),
            "outcome": self._outcome(code),
            "seconds": self.seconds,
            **self.results(),
            **hosts_json(self._fleet),
        }
        return self._record.write(path)

    def _outcome(self, code: ExitCode) -> str:
        return code.name.lower()

    def _environment(self) -> dict[str, str]:
        """The facts that the figures depend on."""
        return environment_of(
            self._record,
            self._subject.sentence(),
            self._subject.devices,
            with_torch=self._subject.measured.has_engine,
            seconds=self.seconds,
        )
