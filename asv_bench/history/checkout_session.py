"""A session of `history` that measures kvtrail's own benchmarks, which asv does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console

from asv_bench.errors import Refused
from asv_bench.git.commits import commits_in_range, first_of_each_run, resolve_revision
from asv_bench.git.repository import Repository
from asv_bench.git.working_tree import WorkingTree, working_tree
from asv_bench.history.asv_measuring import (
    Measured,
    expected_time,
    measure_with_progress,
    record_of,
)
from asv_bench.history.asv_runs import AsvProject, require_project
from asv_bench.history.asv_selection import Selection
from asv_bench.history.estimate import agree_to
from asv_bench.history.histories import Histories
from asv_bench.output.record import Record
from asv_bench.process.machine import machine_facts


class CheckoutSession:
    """A session of kvtrail's own benchmarks, which asv measures.

    Attributes
    ----------
    histories, runs
        Where figures go, and records.
    lock
        Where only one session measures at a time.
    rounds
        Processes per figure and commit.
    record
        Of the session, once it is measured.
    reasons
        Why commits gave no figure, where that is known.
    """

    noun = "commits"

    def __init__(self, histories: Histories, selection: Selection) -> None:
        root = histories.repository
        require_project(root)
        self.rounds = selection.rounds
        self.lock = self._root = root
        self.histories = histories
        self.runs = self.histories.folder / "runs"
        self._selection = selection
        self.reasons: dict[str, str] = {}
        self._project = AsvProject(root, root, self.histories.results)
        self.record: Record

    @property
    def hint(self) -> str:
        """Where to read more about a failure."""
        return f"; their output is in {self._project.log}"

    def in_ranges(self, texts: Sequence[str]) -> list[str]:
        """The commits of all ranges, newest first."""
        in_ranges = [commits_of(text, self._root) for text in texts]
        return list(dict.fromkeys(chain.from_iterable(in_ranges)))

    def first_of_each_run(self, commits: list[str]) -> list[str]:
        """The oldest of each run without changes: to it a change of its figures is put down."""
        return first_of_each_run(commits[::-1], Repository(self._root))[::-1]

    def resolve(self, revision: str) -> str:
        """The full hash of a revision."""
        return resolve_revision(revision, self._root).hash

    def measure(self, commits: Sequence[str], console: Console, *, yes: bool) -> Measured:
        """Measure with asv, once the user has agreed to how long it takes."""
        facts = machine_facts()
        expected = expected_time(self._project, facts.name, commits, self._selection)
        agree_to(expected, console, yes=yes)
        self.record = record_of("history", self._project, commits, self._selection, facts)
        self.record.look_around(console)
        return measure_with_progress(self._project, commits, self._selection, console)


def commits_of(commit_range: str, repository: Path) -> list[str]:
    """The full hashes of a range, newest first, first parents only.

    Raises
    ------
    Refused
        If `repository` is no repository, lacks part of its history, or has uncommitted changes
        that bear on the measurement; or if the range is unknown or empty.
    """
    refuse_unfit(working_tree(repository), repository)
    return [commit.hash for commit in commits_in_range(commit_range, Repository(repository))][::-1]


def refuse_unfit(tree: WorkingTree, repository: Path) -> None:
    """Raise Refused unless the repository can give an honest history."""
    if tree.commit is None:
        raise Refused(
            f"{repository} is not a git repository with commits; history measures commits. "
            f"bench measures the working tree as it stands."
        )
    changes = tree.measured_changes
    if changes:
        shown = ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if changes[5:] else "")
        raise Refused(
            f"there are uncommitted changes in {shown}. history measures commits, and with today's "
            f"benchmarks: commit or stash them first. bench measures them as they stand."
        )
