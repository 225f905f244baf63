"""The folder in which the lives of a variant run: its files, and what its setup made."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from asv_bench.git.repository import GitError, kind_of, short
from asv_bench.measure.command_line import filled
from asv_bench.measure.delay import Delay
from asv_bench.measure.processes import Job, LifeFailed, Processes
from asv_bench.measure.samples import CommitUnusable
from asv_bench.output.console import doing
from asv_bench.process.environment import users_environment
from asv_bench.subjects.axis import Variant
from asv_bench.subjects.pinned import Pinned
from asv_bench.subjects.subject_file import SUBJECT, SubjectTable

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvtrail" / "setups"
"""Where setups stay, each with the files that it was made from."""
CANNOT_BE_MEASURED = 125
"""The exit code by which a command says that this commit cannot be measured, as for git bisect."""
_KEPT_SETUPS = 64
_PATH_STEP, _ENVIRONMENT_STEP = 5, 37
"""Characters by which folders and environments of builds differ: odd, as alignments are even."""
_DONE, _LOCKS = "done", "locks"


@dataclass(frozen=True, slots=True)
class Laid:
    """A variant as it lies on disk."""

    top: Path  # the folder of its files
    tree: Path  # that of the subject in it, where its commands run
    out: Path  # the folder for what its setup makes
    label: str
    delay: Delay | None = None
    build: int = 0  # which one of its setup's builds it is

    def follow(self, command: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """A command whose wall time is measured, with the delay that is planted in it."""
        return self.delay.follow(command) if self.delay else command

    def environment(self, table: SubjectTable, **more: str) -> dict[str, str]:
        """All variables of its commands: the user's own, the file's, and what they are told."""
        told = {
            "KVTRAIL_TREE": str(self.top),
            "KVTRAIL_OUT": str(self.out),
            "KVTRAIL_LABEL": self.label,
            **(self.delay.variables() if self.delay else {}),
            **({"KVTRAIL_PADDING": "x" * _ENVIRONMENT_STEP * self.build} if self.build else {}),
            **more,
        }
        if SUBJECT in table.env:
            told[SUBJECT] = table.env[SUBJECT]
        own = {name: filled(text, told) for name, text in table.env.items()}
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if table.devices == 0 else {}
        return {**users_environment(), **hidden, **own, **told}


@dataclass
class Trees:
    """Lays out variants and runs their setup, once for those that differ in a delay only, or as
    often as `table` asks for builds, each time in another folder.

    Without a setup they lie in a scratch folder and go with it. With one they stay in the cache,
    under the files, the setup and its variables, so that the next command finds them made.
    Commands run in `folder` of a variant's files; "": at their top.
    """

    variant_of: Callable[[str], Variant]
    table: SubjectTable
    pinned: Pinned
    folder: str
    scratch: Path
    processes: Processes
    remarks: list[str] = field(init=False, default_factory=list)

    def lay_out(self, name: str) -> tuple[Laid, ...]:
        """The folders of a variant, one for each build, with its setup made.

        Raises CommitUnusable where git cannot write its files, it lacks the subject's folder, or
        its setup fails.
        """
        return tuple(self._lay_out(name, build) for build in range(self.table.builds))

    def _lay_out(self, name: str, build: int) -> Laid:
        variant = self.variant_of(name)
        if not self.table.setup:
            key = f"{variant.commit} {variant.label}"
            folder = self.scratch / hashlib.sha256(key.encode()).hexdigest()[:16]
            said = [] if folder.exists() else self._write(name, variant, folder)
        else:
            folder = CACHE / (self._key(variant) + "-" * (_PATH_STEP * build))
        top = folder / "tree"
        laid = Laid(top, top / self.folder, folder / "out", variant.label, variant.delay, build)
        if self.table.setup:
            lock, done = CACHE / _LOCKS / folder.name, folder / _DONE
            lock.parent.mkdir(parents=True, exist_ok=True)
            with lock.open("a") as file:
                # Nobody else on this machine makes the same setup meanwhile.
                fcntl.flock(file, fcntl.LOCK_EX)
                if done.is_file():
                    said = os.fsdecode(done.read_bytes()).split("\0")
                else:
                    shutil.rmtree(folder, ignore_errors=True)
                    said = self._write(name, variant, folder)
                    self._set_up(name, laid)
                    done.write_bytes(os.fsencode("\0".join(said)))
                    # Of all setups only those used last stay.
                    setups = [one for one in CACHE.iterdir() if one.name != _LOCKS]
                    setups.sort(key=lambda one: one.stat().st_mtime)
                    for old in setups[: -_KEPT_SETUPS * self.table.builds]:
                        shutil.rmtree(old, ignore_errors=True)
                os.utime(folder)
        if not build:
            self.remarks += [f"{kind_of(name)} {short(name)}: {one}" for one in said if one]
        return laid

    def _write(self, name: str, variant: Variant, folder: Path) -> list[str]:
        """Write a variant's files; return clauses that say what became of some of them."""
        for part in ("tree", "out"):
            (folder / part).mkdir(parents=True)
        try:
            said = variant.repository.write_files(variant.commit, folder / "tree")
        except GitError as error:
            raise CommitUnusable(name, f"git could not unpack it: {error}") from None
        said += self.pinned.write(folder / "tree")
        top = (folder / "tree").resolve()
        place = (top / self.folder).resolve()
        if not (place.is_dir() and place.is_relative_to(top)):
            lacking = f"it has no folder {self.folder}, where the subject lies."
            raise CommitUnusable(name, lacking, is_lacking=True)
        return said

    def _set_up(self, name: str, laid: Laid) -> None:
        job = Job(self.table.setup, laid.tree, laid.environment(self.table))
        try:
            count = self.table.builds
            which = f", build {laid.build + 1} of {count}" if count > 1 else ""
            with doing(f"setting up {short(name)}{which}"):
                self.processes.run(job, self.table.setup_timeout_s)
        except LifeFailed as failure:
            reason, is_lacking = f"its setup{which}: {failure}", failure.code == CANNOT_BE_MEASURED
            raise CommitUnusable(name, reason, is_lacking=is_lacking) from None

    def _key(self, variant: Variant) -> str:
        """What decides how a setup comes out, as far as it can be known."""
        tree = variant.repository.line("rev-parse", f"{variant.commit}^{{tree}}")
        table, label = self.table, "" if variant.label == variant.commit else variant.label
        python, pinned = shutil.which("python"), self.pinned.digests
        text = json.dumps([tree, label, table.setup, table.env, python, pinned], sort_keys=True)
        return f"{table.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
