"""A command as the subject: its wall time in the tree of each commit, for any repository."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.commit_sources import WORKING_TREE, resolve_revision
from asv_bench.git.commits import commits_between
from asv_bench.git.repository import Commit, GitError, Repository
from asv_bench.git.whole_tree import write_whole_tree
from asv_bench.git.working_tree import snapshot
from asv_bench.process.process_pairs import repeats_for
from asv_bench.process.run_apart import end_group, kill_group, last_words, start_group
from asv_bench.process.samples import Absence, CommitUnusable, Pair, Reading, SampleFailed
from asv_bench.process.threads import users_environment
from asv_bench.subjects.subject import Metric

WALL = Metric("wall_s", "seconds")
"""From the start of the command's process to its end."""
HOST = "host"
"""The only device: a command may use whatever the machine has."""
CANNOT_BE_MEASURED = 125
"""The exit code by which a command says that this commit cannot be measured, as for git bisect."""
TIMEOUT_SECONDS = 600.0


class CommandSubject:
    """A command that runs in the tree of each commit, laid out in a temporary folder.

    The repository is only read. What the command writes to its tree stays until the last pair, and
    goes with the folder.

    Parameters
    ----------
    root
        The repository's folder.
    command
        Program and arguments. One word with a space in it is a line for the shell.

    Raises
    ------
    Refused
        If the command is empty.
    """

    metrics = (WALL,)
    devices = (HOST,)

    def __init__(self, root: Path, command: Sequence[str]) -> None:
        if not command or not command[0].strip():
            raise Refused("the command to measure is empty; give it behind --.")
        self._root = root
        self._words = tuple(command)
        self._in_snapshots: set[str] = set()
        self.remarks: list[str] = []

    @cached_property
    def _scratch(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="kvtrail-")

    @property
    def _snapshots(self) -> Path:
        return Path(self._scratch.name) / "worktree.git"

    @property
    def line(self) -> str:
        """The command as it is typed."""
        return self._words[0] if len(self._words) == 1 else shlex.join(self._words)

    @property
    def arguments(self) -> list[str]:
        """What is started."""
        is_line = len(self._words) == 1 and len(self._words[0].split()) > 1
        return ["/bin/sh", "-c", self._words[0]] if is_line else list(self._words)

    def resolve(self, revision: str) -> Commit:
        """See `Subject`."""
        if revision != WORKING_TREE:
            return resolve_revision(revision, self._root)
        commit = snapshot(self._root, self._snapshots, (".",))
        self._in_snapshots.add(commit)
        return Commit(commit, "the working tree as it stands")

    def are_same(self, base: str, head: str) -> bool:
        """See `Subject`: whether all files are the same."""
        first, second = (
            self._repository_of(commit).line("rev-parse", f"{commit}^{{tree}}")
            for commit in (base, head)
        )
        return first == second

    @property
    def name(self) -> str:
        """See `Subject`."""
        return self._root.name

    def between(self, base: str, head: str) -> list[Commit]:
        """See `Subject`: on one line of first parents."""
        return commits_between(base, head, Repository(self._root))

    def pairs(self) -> CommandPairs:
        """See `Subject`; the commits' folders go with it."""
        return CommandPairs(self)

    def sentence(self) -> str:
        """See `Subject`."""
        return f"measuring the wall time of `{self.line}` in the files of each commit"

    def to_json(self) -> dict[str, Any]:
        """See `Subject`."""
        return {"kind": "command", "command": self.line, "repository": self._root.name}

    def lay_out(self, commit: str) -> Path:
        """A new folder with the files of a commit.

        Raises
        ------
        CommitUnusable
            If git cannot write them.
        """
        folder = Path(self._scratch.name) / commit
        folder.mkdir()
        try:
            self.remarks += write_whole_tree(commit, self._repository_of(commit), folder)
        except GitError as error:
            raise CommitUnusable(commit, f"git could not unpack it: {error}") from None
        return folder

    def clean_up(self) -> None:
        """Remove all that was laid out."""
        self._scratch.cleanup()

    def _repository_of(self, commit: str) -> Repository:
        return Repository(self._snapshots if commit in self._in_snapshots else self._root)


class LifeFailed(MeasurementFailed):
    """The command did not end well; the message is what it said last.

    Attributes
    ----------
    code
        The exit code; negative where a signal ended it, None where it did not start or end.
    """

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class CommandPairs:
    """A source of pairs of runs of a command, see `PairSource`.

    A short command runs several times for a reading, which is the least of them: what else the
    machine does only ever adds time. The first run in each commit is not measured.
    """

    def __init__(self, subject: CommandSubject) -> None:
        self._subject = subject
        self._trees: dict[str, Path | CommitUnusable] = {}
        self._repeats: int | None = None
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def __enter__(self) -> CommandPairs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._subject.clean_up()

    @property
    def devices(self) -> Sequence[str]:
        """See `PairSource`."""
        return self._subject.devices

    def stop(self) -> None:
        """See `PairSource`; nothing is measured from then on."""
        with self._lock:
            self._is_stopped = True
            if self._running is not None:
                kill_group(self._running)

    def prepare(self, commit: str) -> Mapping[str, Absence]:
        """See `PairSource`: lay the commit out, and run the command once without measuring."""
        if commit not in self._trees:
            try:
                self._trees[commit] = self._try(commit)
            except CommitUnusable as error:
                self._trees[commit] = error
        tried = self._trees[commit]
        if isinstance(tried, CommitUnusable):
            raise tried
        return {}

    def pair(
        self,
        base: str,
        head: str,
        *,
        head_first: bool,
        benchmarks: Collection[str] | None = None,
        device: str | None = None,
    ) -> Mapping[str, Pair]:
        """See `PairSource`."""
        for commit in (base, head):
            self.prepare(commit)
        order = (head, base) if head_first else (base, head)
        first, second = (self._measure(commit) for commit in order)
        of_base, of_head = (second, first) if head_first else (first, second)
        return {WALL.name: Pair(of_base, of_head, head_first)}

    def _try(self, commit: str) -> Path:
        tree = self._subject.lay_out(commit)
        try:
            seconds = self._live(commit, tree)
        except LifeFailed as failure:
            is_lacking = failure.code == CANNOT_BE_MEASURED
            raise CommitUnusable(commit, str(failure), is_lacking=is_lacking) from None
        # Settled by the first commit and kept: both halves of a pair are measured alike.
        self._repeats = self._repeats or repeats_for(seconds)
        return tree

    def _measure(self, commit: str) -> Reading:
        tree, started = self._trees[commit], time.time()
        assert isinstance(tree, Path)
        try:
            samples = tuple(self._live(commit, tree) for _ in range(self._repeats or 1))
        except LifeFailed as failure:
            raise SampleFailed(commit, (WALL.name,), str(failure)) from None
        return Reading(
            commit=commit,
            benchmark=WALL.name,
            value=min(samples),
            samples=samples,
            device=HOST,
            started_at=started,
            process_s=time.time() - started,
        )

    def _live(self, commit: str, tree: Path) -> float:
        """Run the command once; its wall time in seconds."""
        variables = {"KVTRAIL_TREE": str(tree), "KVTRAIL_LABEL": commit}
        with tempfile.TemporaryFile() as said:
            begun = time.perf_counter()
            with self._lock:
                if self._is_stopped:
                    raise LifeFailed("measuring was stopped.")
                try:
                    process = self._running = start_group(
                        self._subject.arguments,
                        cwd=tree,
                        env={**users_environment(), **variables},
                        stdout=said,
                        stderr=subprocess.STDOUT,
                    )
                except OSError as error:
                    raise LifeFailed(f"{self._subject.line}: {error.strerror}.") from None
            # Not wait(timeout), which sleeps up to 50 ms between looks.
            alarm = threading.Timer(TIMEOUT_SECONDS, kill_group, (process,))
            alarm.daemon = True
            alarm.start()
            try:
                code = process.wait()
                seconds = time.perf_counter() - begun
            finally:
                alarm.cancel()
                end_group(process)
                with self._lock:
                    self._running = None
            if code == 0:
                return seconds
            said.seek(0)
            words = last_words(said.read().decode(errors="replace"))
        if code == -signal.SIGKILL and seconds >= TIMEOUT_SECONDS:
            raise LifeFailed(f"it did not end within {TIMEOUT_SECONDS:.0f} s: {words}")
        ended = f"signal {-code} ended it" if code < 0 else f"it ended with exit code {code}"
        raise LifeFailed(f"{ended}: {words}", code)


def repository_around(folder: Path) -> Path | None:
    """The folder of the repository that a folder lies in; None where there is none."""
    inside = (one for one in (folder, *folder.parents) if os.path.lexists(one / ".git"))
    return next(inside, None)
