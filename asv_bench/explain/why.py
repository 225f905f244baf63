"""A few lines of what differs besides time, for a verdict: only what is cheap to look at."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from asv_bench.errors import BenchError
from asv_bench.explain.clue import Source, cell_clues
from asv_bench.explain.commit_files import files_between
from asv_bench.git.repository import Commit
from asv_bench.measure.software import Software
from asv_bench.output.redaction import words_without_secrets
from asv_bench.process.gpu import NO_GPU
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.own_suite import engine_of

_FILES, _COUNTED = 3, 2


def why(
    subject: DeclaredSubject,
    base: Commit,
    head: Commit,
    options: Sequence[str],
    cells: Mapping[str, Software],
    *,
    sign: int = 1,
    has_commits: bool = True,
) -> list[str]:
    """Sentences about two ends that differ in time, the command that tells more last.

    `options` name what was measured, for that command. `cells` are what the ends ran with, by hash
    or label, as far as that is known. `sign` is 1 where the head is slower, -1 where it is faster.
    `has_commits` says whether to list the commits between the ends.
    """
    found: list[str] = []
    # They are hints beside the verdict, which stands without them.
    with suppress(BenchError):
        files = files_between(base.hash, head.hash, subject)
        found += list(files.sentences(_FILES))[: 2 if has_commits else 1] if files else []
    with suppress(BenchError):
        found += _counted(subject, base, head, sign) if subject.has_engine else []
    if base.hash in cells and head.hash in cells:
        clues = cell_clues(cells[base.hash], cells[head.hash])
        found += [f"Besides, {one.sentence}." for one in clues if one.source is Source.VARIABLES]
    ends = shlex.join(words_without_secrets([base.short, head.short, *options]))
    return [*found, f"Why: kvtrail explain {ends}"]


def _counted(subject: DeclaredSubject, base: Commit, head: Commit, sign: int) -> Iterator[str]:
    """Exact counts of kvtrail's engine that lean the way the time does."""
    # Not at the top: whoever measures something else has no need of them.
    from asv_bench.explain.engine_counts import CPU_PATHS, GPU_PATHS, count_ends
    from asv_bench.explain.explanation import Explanation

    is_gpu = not set(subject.devices) & set(NO_GPU)
    paths = GPU_PATHS if is_gpu else CPU_PATHS
    counted = count_ends(*(engine_of(subject, end.hash) for end in (base, head)), paths=paths)
    stand_in = counted.stand_in(subject.models)
    leaning = [one for one in counted.clues if one.leaning == sign]
    for one in Explanation(base, head, is_gpu, clues=leaning).causes[:_COUNTED]:
        yield f"Counted exactly{stand_in and f' {stand_in}'}: {one.sentence}."
