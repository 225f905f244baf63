"""Which subject a command measures: what the user names, or what lies around."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.history.asv_selection import require_patterns
from asv_bench.measure.places import CPU, HOST
from asv_bench.output.record import IS_CHECKOUT, REPOSITORY
from asv_bench.run.settings import EngineWorkload
from asv_bench.subjects.axis import repository_around
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.own_suite import EngineRuns, OwnSuite
from asv_bench.subjects.subject_file import FILE_NAME

SUITE_NAME = "asv.conf.json"
WITH_COMMAND = ("compare", "fixed", "bisect", "calibrate")
"""Commands that take one behind --."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user says of the subject."""

    command: Sequence[str] = ()  # what stands behind `--`
    file: Path | None = None  # `--subject`; None: the nearest `kvtrail.toml`, or asv suite
    patterns: Sequence[str] = ()  # regular expressions for names of metrics, or of benchmarks
    devices: str | None = None
    axis: str | None = None
    require_gpu: bool = False
    workload: EngineWorkload | None = None  # of kvtrail's own engine; None: kvtrail's benchmarks
    is_elsewhere: bool = False  # whether the hosts of a fleet run lives
    near: Sequence[str] = ()  # revisions that are measured

    def __post_init__(self) -> None:
        require_patterns("--metric", self.patterns)

    def subject(self, verb: str) -> DeclaredSubject:
        """The subject, in this order: the command, the file, a file around, kvtrail itself.

        Raises Refused where there is none or the options do not fit it, and MeasurementFailed where
        a GPU is required and none is measured.
        """
        subject = self.declared(verb)
        subject.near = self.near
        self.choose(subject, self.patterns)
        return subject

    def choose(self, subject: DeclaredSubject, patterns: Sequence[str]) -> None:
        """Choose what is compared of a subject, on this machine or on the hosts of a fleet.

        Raises NothingSelected where it has no such metric, and as `subject` does.
        """
        if self.is_elsewhere:
            subject.choose_metrics(patterns)
            return
        subject.choose(patterns, self.devices)
        if self.require_gpu and set(subject.devices) & {CPU, HOST}:
            raise MeasurementFailed(
                "--require-gpu was given, but what is measured is given no GPU: there is none that "
                "can be used, or [subject] devices does not ask for one."
            )

    def words(self) -> list[str]:
        """The options and the command, as they are typed."""
        options = {"--subject": self.file, "--axis": self.axis, "--devices": self.devices}
        pairs = [("--metric", pattern) for pattern in self.patterns]
        pairs += [(name, str(value)) for name, value in options.items() if value is not None]
        words = [word for pair in pairs for word in pair]
        words += self.workload.options() if self.workload is not None else []
        return [*words, *(["--", *self.command] if self.command else [])]

    def declared(self, verb: str) -> DeclaredSubject:
        """The subject before metrics are chosen.

        Raises Refused as `subject` does, and where a fleet should run lives that can run here only.
        """
        declared = self._found(verb)
        if not self.is_elsewhere:
            return declared
        if not declared.is_portable:
            raise Refused(
                f"--fleet measures what a {FILE_NAME} declares, a command or a --workload. "
                f"kvtrail's benchmarks and asv suites are measured on one machine: leave it out."
            )
        if self.devices:
            raise Refused("--devices names GPUs of this machine; a fleet uses those of its hosts.")
        if self.require_gpu and not declared.work.table.devices:
            raise Refused("--require-gpu was given, and [subject] devices asks for no GPU.")
        return declared

    def _found(self, verb: str) -> DeclaredSubject:
        """What the user names, or what lies around; in a checkout of kvtrail its own benchmarks."""
        here = Path.cwd()
        root = repository_around(here)
        if self.command:
            if self.file or self.axis or self.devices or self.workload:
                raise Refused(
                    "--subject, --axis, --devices and --workload say what is measured in other "
                    "ways; leave them out where a command is given."
                )
            if root is None:
                raise Refused(f"{here} is in no git repository; run {verb} in the one to measure.")
            return DeclaredSubject.of_command(root, self.command)
        if self.workload is not None:
            if self.file or self.axis or not IS_CHECKOUT:
                raise Refused(
                    f"--workload measures kvtrail's own engine, in a checkout of kvtrail, by "
                    f"`python -m asv_bench {verb}`; leave out --subject and --axis."
                )
            return EngineRuns(REPOSITORY, self.workload)
        path = self.file or _file_around(here, root)
        if path is not None:
            return declared_by(path, self.axis)
        # From another repository nobody means kvtrail's commits.
        if not IS_CHECKOUT or root not in (None, REPOSITORY):
            also = ", or give a command behind --" if verb in WITH_COMMAND else ""
            below = [shlex.quote(str(one.relative_to(here))) for one in suites_in(here)]
            suite = f" as {below[0]}, an asv suite" if below else ""
            raise Refused(
                f"{verb} finds nothing to measure: neither {FILE_NAME} nor {SUITE_NAME} lies in "
                f"{here} or around it. Begin one in your repository with `kvtrail init`, name a "
                f"file with --subject{suite}{also}."
            )
        if self.axis:
            raise Refused("--axis is of a subject's file; kvtrail's benchmarks compare commits.")
        return OwnSuite(REPOSITORY)


def declared_by(path: Path, axis: str | None = None) -> DeclaredSubject:
    """The subject of a `kvtrail.toml`, or of an `asv.conf.json`."""
    if path.suffix in (".json", ".jsonc"):
        # Not at the top: most commands need no asv.
        from asv_bench.subjects.asv_suite import AsvSuite

        return AsvSuite(path)
    return DeclaredSubject.of_file(path, axis)


def _file_around(folder: Path, root: Path | None) -> Path | None:
    """The nearest `kvtrail.toml` in a folder or those around it; where there is none the nearest
    configuration of asv up to the top of a repository, of which kvtrail's own is none."""
    around = (folder, *folder.parents)
    found = [path for one in around if (path := one / FILE_NAME).is_file()]
    if not found and root not in (None, REPOSITORY):
        inside = around[: around.index(root) + 1]
        found = [suite for one in inside for suite in sorted(one.glob(f"{SUITE_NAME}*"))]
    return next(iter(found), None)


def suites_in(folder: Path) -> list[Path]:
    """Configurations of asv in a folder, and then in those directly in it."""
    return [path for place in ("", "*/") for path in sorted(folder.glob(f"{place}{SUITE_NAME}*"))]
