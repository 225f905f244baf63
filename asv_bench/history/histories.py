"""Where the histories of one subject are kept, and along what they run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from asv_bench.errors import Refused, require_packages
from asv_bench.git.repository import Commit, Repository, commits_on_line
from asv_bench.history.asv_results import Results, read_results
from asv_bench.output.destinations import require_writable
from asv_bench.output.record import WORKPLACE
from asv_bench.subjects.declared import DeclaredSubject

OWN = "kvtrail"


@dataclass(frozen=True, slots=True)
class Histories:
    """The stored histories of one subject."""

    subject: str  # its name
    folder: Path  # holds asv's results of commits, those of the working tree, sessions and pages
    configured: Path  # holds asv.conf.json
    repository: Path  # has the commits
    labels: tuple[str, ...] = ()
    """In their order, where they are measured in place of commits."""

    @classmethod
    def of_checkout(cls, root: Path) -> Histories:
        """Those of kvtrail's own benchmarks in a checkout."""
        return cls(OWN, root / "reports", root, root)

    @classmethod
    def of_subject(cls, subject: DeclaredSubject, folder: Path | None = None) -> Histories:
        """Those of a subject, by default at a place of its own; kvtrail's own in its checkout.

        Raises Refused where another place is named for kvtrail's own.
        """
        if subject.kept_in is None:
            # asv takes what is relative for a place beside its configuration.
            kept = (folder or WORKPLACE / "subjects" / subject.name).absolute()
            return cls(subject.name, kept, kept, subject.repository, subject.labels)
        if folder is not None:
            raise Refused("--results is for a subject's file; kvtrail's own are kept in reports/.")
        return cls.of_checkout(subject.kept_in)

    @property
    def is_own(self) -> bool:
        return self.configured != self.folder

    @property
    def results(self) -> Path:
        """asv's results directory, of commits or labels."""
        return self.folder / "asv"

    @property
    def of_worktree(self) -> Path:
        """asv's results directory of a working tree that differs from its commit."""
        return self.folder / "asv-worktree"

    @property
    def sessions(self) -> Path:
        return self.folder / "asv-sessions"

    @property
    def pages(self) -> Path:
        return self.folder / "pages"

    def require_ready(self) -> None:
        """See before measuring that its packages are here and its folders can be written."""
        require_packages("asv", "jinja2")
        folders = ("asv", "asv-worktree", "asv-sessions", "asv-clients", "pages", "html")
        require_writable(*(self.folder / name / "file" for name in folders))

    def read(self, directory: Path | None = None) -> Results:
        """What a results directory, by default `results`, holds of commits, or labels by name."""
        results = read_results(directory or self.results)
        labels = {filed_under(label): label for label in self.labels}
        named = (replace(one, commit=labels.get(one.commit, one.commit)) for one in results.figures)
        return replace(results, figures=tuple(named)) if labels else results

    def on_line(self, dates: Mapping[str, int], tip: str = "HEAD") -> tuple[list[Commit], int]:
        """What a series runs along up to `tip`, and how many of those measured are not on it."""
        if not self.labels:
            return commits_on_line(dates, Repository(self.repository), tip)
        line = [Commit(label) for label in self.labels if label in dates]
        return line, len(dates) - len(line)


def filed_under(label: str) -> str:
    """What asv's results have in place of a commit's hash for a label."""
    return hashlib.sha1(label.encode(), usedforsecurity=False).hexdigest()
