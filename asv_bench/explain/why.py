"""What lies between two ends, and a few lines for a verdict: only what is cheap to look at."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from asv_bench.compare.verdict import Verdict
from asv_bench.errors import BenchError, TimeIsUp
from asv_bench.explain.clue import Source, cell_clues
from asv_bench.explain.explanation import Effect, Explanation
from asv_bench.git.repository import Commit
from asv_bench.measure.software import Software
from asv_bench.output.redaction import words_without_secrets
from asv_bench.process.gpu import NO_GPU
from asv_bench.process.run_apart import ending_in_time
from asv_bench.subjects.declared import DeclaredSubject

_SHOWN, _KEPT, _COUNTED = 3, 20, 2
"""Files and commits that are said, and those that are kept: there may be thousands."""
_CHEAP_S = 3.0
"""Lives of at most so many seconds are profiled."""


@dataclass(frozen=True, slots=True)
class CommitFiles:
    """What was committed between two ends, and what came of it; counts are of all."""

    commits: tuple[str, ...]  # that touch what is measured, the newest first, with their authors
    commit_count: int
    files: tuple[str, ...]  # with the lines added and removed, those with the most lines first
    file_count: int

    def sentences(self) -> Iterator[str]:
        """The first files and commits in words."""
        if not self.files:
            yield "No file differs in what is measured."
            return
        count = "1 file differs" if self.file_count == 1 else f"{self.file_count} files differ"
        more = self.file_count - _SHOWN
        files = ", ".join(self.files[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        yield f"{count}: {files}."
        if self.commits:
            is_one, more = self.commit_count == 1, self.commit_count - _SHOWN
            count = "One commit lies" if is_one else f"{self.commit_count} commits lie"
            commits = [*self.commits[:_SHOWN], *[f"{more} more"] * (more > 0)]
            yield f"{count} between: {'; '.join(commits)}."


def files_between(base: str, head: str, subject: DeclaredSubject) -> CommitFiles | None:
    """What lies between two commits, given by full hashes, or tags; None along other labels."""
    if not subject.axis.have_files:
        return None
    ends = [subject.axis.variant(end) for end in (base, head)]
    (base, head), (old, new) = ([one.commit for one in ends], [one.repository for one in ends])
    paths = ("--", *subject.pathspecs)
    variables: dict[str, str] = {}
    hashes: list[str] = []
    if old == new:
        between = new.ask("rev-list", "--no-merges", f"{base}..{head}", *paths)
        hashes = between.decode().split()
    else:
        # The objects of both ends, wherever they are.
        variables["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = old.objects()
    diff = ("diff-tree", "-r", "-z", "--numstat", "--find-renames", base, head)
    # A renamed file has its two names in entries apart.
    entries = iter(new.names(*diff, *paths, variables=variables))
    files: list[tuple[int, str]] = []
    for entry in entries:
        added, removed, path = entry.split("\t", 2)
        if not path:
            next(entries)
            path = next(entries)
        is_text = added.isdecimal()
        lines = int(added) + int(removed) if is_text else 0
        files.append((lines, f"{path} (+{added} -{removed})" if is_text else path))
    names = [name for _, name in sorted(files, key=lambda one: -one[0])]
    commits = tuple(
        f"{one.short} {one.subject}{f' ({one.author})' if one.author else ''}"
        for one in new.commits(hashes[:_KEPT]).values()
    )
    return CommitFiles(commits, len(hashes), tuple(names[:_KEPT]), len(names))


def why(
    subject: DeclaredSubject,
    base: Commit,
    head: Commit,
    options: Sequence[str],
    cells: Mapping[str, Software],
    *,
    sign: int = 1,
    has_commits: bool = True,
    seconds: float | None = None,
) -> list[str]:
    """Sentences about two ends that differ in time, the command that tells more last.

    `options` name what was measured, for that command. `cells` are what the ends ran with, by hash
    or label, as far as that is known. `sign` is 1 where the head is slower, -1 where it is faster.
    `has_commits` says whether to list the commits between the ends. No life is profiled once so
    many `seconds` are over; None: there is no hurry.
    """
    found: list[str] = []
    # They are hints beside the verdict, which stands without them.
    with suppress(BenchError):
        files = files_between(base.hash, head.hash, subject)
        found += list(files.sentences())[: 2 if has_commits else 1] if files else []
    with suppress(BenchError, TimeIsUp), ending_in_time(seconds):
        folders = subject.engines([base.hash, head.hash])
        found += (_counted if folders else _profiled)(subject, base, head, sign)
    if base.hash in cells and head.hash in cells:
        clues = cell_clues(cells[base.hash], cells[head.hash])
        found += [f"Besides, {one.sentence}." for one in clues if one.source is Source.VARIABLES]
    ends = shlex.join(words_without_secrets([base.short, head.short, *options]))
    return [*found, f"Why: kvtrail explain {ends}"]


def _counted(subject: DeclaredSubject, base: Commit, head: Commit, sign: int) -> Iterator[str]:
    """Exact counts of kvtrail's engine that lean the way the time does, the dearest first."""
    # Not at the top: whoever measures something else has no need of them.
    from asv_bench.explain.engine_counts import CPU_PATHS, GPU_PATHS, count_ends, stand_in

    paths = CPU_PATHS if set(subject.devices) & set(NO_GPU) else GPU_PATHS
    folders = subject.engines([base.hash, head.hash])
    old, new = (folders[end.hash] for end in (base, head))
    clues, _ = count_ends(old, new, paths)
    leaning = [one for one in clues if one.leaning == sign]
    # kvtrail's benchmarks are called by their models.
    named = (subject.decoded(one.name)[1] or one.name for one in subject.metrics)
    where = stand_in(" ".join(named))
    for one in sorted(leaning, key=lambda one: -abs(one.cost_us))[:_COUNTED]:
        yield f"Counted exactly{where}: {one.sentence[0].lower()}{one.sentence[1:]}."


def _profiled(subject: DeclaredSubject, base: Commit, head: Commit, sign: int) -> Iterator[str]:
    """Functions of a Python command of the user's that cause the change, the dearest first."""
    # Not at the top: whoever measures something else has no need of them.
    from asv_bench.explain.functions import FunctionProfiler
    from asv_bench.explain.trace_pair import Trace, TracePair

    if (command := subject.work.life.as_command) is None:
        return
    taken: dict[str, list[Trace]] = {base.hash: [], head.hash: []}
    # What was measured stays the record's.
    known = subject.cells, subject.others, subject.remarks
    try:
        with subject.ends() as ends, tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            take = FunctionProfiler(ends, replace(command, timeout_s=_CHEAP_S), tuple(taken))
            for turn, end in enumerate((*taken, *reversed(taken))):
                taken[end].append(take(end, Path(scratch, str(turn))))
    finally:
        subject.cells, subject.others, subject.remarks = known
    pair = TracePair(*taken.values())
    effect = Effect("", Verdict.SLOWER if sign > 0 else Verdict.FASTER, None, None, False, "")
    found = Explanation(base, head, effect, pair, clues=list(pair.clues()))
    for one in found.causes[:_COUNTED]:
        yield f"Profiled: {one.sentence}{found.worth(one)}"
