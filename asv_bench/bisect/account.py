"""A search as a person reads it: a line for each probe or part, a table, and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asv_bench.bisect.file_search import FileFinding, FileTry, Guilty
from asv_bench.bisect.finding import Finding, Outcome, Probe, RangeShape
from asv_bench.compare.verdict import Comparison, word_of
from asv_bench.git.repository import Commit, kind_of, short
from asv_bench.output.table import Cell, Column, Row, Table, interval, percent, percentage
from asv_bench.words import first_of

_LIKELY = 0.05
"""Probability of a step from which a commit that was not measured has a row."""
_SHOWN = 0.005
_COLUMNS = (
    Column("subject", "commit and subject", kind="text"),
    Column("commit", "commit", kind="data"),
    Column("pairs", "pairs"),
    Column("difference", "level", show=percent(2, signed=True)),
    Column("half_width", "±", show=percent(2)),
    Column("probability", "step", show=percent(1)),
)
_FILE_COLUMNS = (
    Column("files", "files changed", kind="text"),
    Column("count", "files"),
    Column("verdict", "verdict"),
    Column("effect", "effect", show=percent(2, signed=True)),
    Column("interval", "interval", show=interval(2), parts=("low", "high")),
    Column("pairs", "pairs"),
)


def probe_line(number: int, probe: Probe, commits: Mapping[str, Commit]) -> str:
    """Which commit, how it compares with the good end, and what is most probable now.

    Before the search, and of a confirmation, it is said what the commit is compared with.
    """
    told = probe.failure
    if probe.pair is not None:
        told = f"{percentage(probe.pair.effect, 2, signed=True):>9}"
        if probe.pair.discarded:
            told += f"  discarded: {probe.pair.discarded}"
    line = f"{number:4d}  {short(probe.commit)}  {told}   "
    if (guess := probe.guess) is None:
        return f"{line}{probe.stage}, against {short(probe.reference)}"
    ends = dict.fromkeys(short(one) for one in (*guess.commits[:1], *guess.commits[-1:]))
    only = commits[guess.commits[0]].subject if len(guess.commits) == 1 else ""
    where = " to ".join(ends) or "no other"
    return f"{line}{where}, {guess.probability:.0%} {only}".rstrip()


def commit_table(finding: Finding, commits: Sequence[Commit], *, is_whole: bool = False) -> Table:
    """The commits that were measured or suspected, oldest first, each against the good end.

    `is_whole` asks for all commits, with every probability.
    """
    points = {point.commit: point for point in finding.curve}
    named = {*finding.suspects, *(one for step in finding.confirmed_steps for one in step.commits)}
    rows: list[Row] = []
    row_from, shown_from = (0, 0) if is_whole and finding.posterior else (_LIKELY, _SHOWN)
    for commit in commits:
        point, probability = points.get(commit.hash), finding.posterior.get(commit.hash, 0.0)
        is_shown = point is not None or probability >= row_from
        likely = probability if is_shown and probability >= shown_from else None
        name = Cell(f"{commit.short} {commit.subject}", "bold" if commit.hash in named else "")
        if point is not None:
            half_width = (point.interval[1] - point.interval[0]) / 2.0
            rows.append((name, commit.hash, point.pairs, point.effect, half_width, likely))
        elif likely is not None:
            rows.append((name, commit.hash, 0, None, None, likely))
    kind = kind_of(finding.bad)
    return Table(
        _COLUMNS,
        rows,
        title=f"{finding.benchmark}: {kind}s against {short(finding.good)}, the good end",
        caption="level: change against the good end, fitted to all pairs, ± half its interval of "
        f"95 %. step: how probably this {kind} made it.",
    )


def answer_lines(finding: Finding, commits: Mapping[str, Commit]) -> list[str]:
    """The answer in sentences; the first is the answer in short."""
    named, kind = finding.confirmed_steps, kind_of(finding.bad)
    chance = f"probability {finding.probability or 0:.1%}"
    if finding.outcome is Outcome.FOUND and len(named) > 1:
        steps = ", ".join(
            f"{percentage(one.effect, 1, signed=True)} at {short(one.commit)}" for one in named
        )
        lines = [f"{len(named)} steps: {steps}."]
    elif finding.outcome is Outcome.FOUND:
        verdict, gate = finding.direction.verdict, finding.gate
        word = word_of(verdict, gate.unit, named[0].effect)
        what = f"{word} {kind}" if word == verdict else f"{kind} with {word} {finding.benchmark}"
        lines = [f"first {what}: {_suspected(finding.suspects, commits)}, {chance}."]
    elif finding.outcome is Outcome.NONE:
        lines = [f"no {finding.direction}: {finding.reason}."]
    elif finding.shape is RangeShape.SLOPE:
        lines = [f"{finding.reason}."]
    else:
        lines = [f"inconclusive: {finding.reason}."]
        if finding.suspects:
            first, last = finding.suspects[0], finding.suspects[-1]
            suspects = f"{len(finding.suspects)} {kind}s, {short(first)} to {short(last)}"
            if first == last:
                suspects = _suspected((last,), commits)
            lines.append(f"Most suspect: {suspects}, {chance}.")
    lines.append(f"The ends: {compared(finding.gate)}.")
    if len(named) > 1 or finding.outcome is not Outcome.FOUND:
        lines += [
            f"{percentage(one.effect, 1, signed=True)} at {_suspected(one.commits, commits)}."
            for one in named
        ]
    lines += [
        f"{short(one.head)} against {short(one.base)}, before it: "
        f"{'; '.join(filter(None, [compared(one), one.reason.removesuffix('.')]))}."
        for one in finding.confirmations
    ]
    lines += filter(None, [finding.remark])
    for commit, reason in finding.unmeasurable.items():
        lines.append(f"{short(commit)} was left out, it cannot be measured: {reason}")
    return lines


def _suspected(hashes: Sequence[str], commits: Mapping[str, Commit]) -> str:
    """Commits with their messages and authors; a label has neither."""
    described = [
        " ".join(filter(None, (one.short, one.subject, f"({one.author})" if one.author else "")))
        for one in (commits[commit] for commit in hashes)
    ]
    if len(described) == 1:
        return described[0]
    return (
        f"one of these {len(described)}, of which only the last could be measured: "
        f"{'; '.join(described)}"
    )


def compared(comparison: Comparison) -> str:
    """A comparison in a clause: verdict, effect, interval and pairs."""
    if comparison.effect is None or comparison.interval is None:
        return comparison.word
    effect = percentage(comparison.effect, 2, signed=True)
    shown = f"{effect} ({interval(2)(comparison.interval)})"
    return f"{comparison.word}, {shown} in {comparison.pairs_used} pairs"


def try_line(tried: FileTry, files: Sequence[str]) -> str:
    """One part, as soon as it was compared; `files` are the changes that numbers mean."""
    result = "cannot be tried" if tried.comparison is None else compared(tried.comparison)
    return f"  {_part(tried, files)}: {result}"


def file_table(finding: FileFinding, files: Sequence[str]) -> Table:
    """All parts that were compared, the whole first."""
    base, head = short(finding.gate.base), short(finding.gate.head)
    named = {(one.before, one.changes) for one in finding.named}
    rows: list[Row] = []
    for tried in (FileTry((), tuple(range(len(files))), finding.gate), *finding.tries):
        is_named = (tried.before, tried.changes) in named
        name = Cell(_part(tried, files), "bold" if is_named else "")
        one, count = tried.comparison, len(tried.changes)
        if one is None:
            rows.append((name, count, "cannot be tried", None, None, None))
        else:
            verdict = Cell(str(one.verdict), text=one.word)
            rows.append((name, count, verdict, one.effect, one.interval, one.pairs_used))
    return Table(
        _FILE_COLUMNS,
        rows,
        title=f"{finding.gate.benchmark}: parts of {head} against {base}",
        caption=f"A part is {base} with these files as {head} has them. What cannot be tried, such "
        "as a part that does not build, says nothing of its files.",
    )


def file_lines(finding: FileFinding, files: Sequence[str]) -> list[str]:
    """The answer in sentences; the first is the answer in short."""
    worse = word_of(finding.direction.verdict, finding.gate.unit, finding.gate.effect)
    whole = f"The whole commit: {compared(finding.gate)}."
    if finding.outcome is Outcome.NONE:
        return [f"no {finding.direction}: {finding.reason}.", whole]
    lines = [
        _guilty(one, share, worse, files)
        for one, share in zip(finding.named, finding.shares(), strict=True)
    ]
    if not lines and finding.outcome is Outcome.FOUND:
        together = f"all {len(files)} files of {short(finding.gate.head)} together"
        lines = [f"{together} make it {worse}, and no smaller part."]
    if finding.outcome is Outcome.INCONCLUSIVE:
        doubtful = [one for one in finding.guilty if not one.is_confirmed]
        lines = [
            f"inconclusive: {finding.reason}.",
            *lines,
            *(f"Most suspect: {_names(one.changes, files)}." for one in doubtful),
        ]
    if finding.is_cut:
        lines.append("The search ended after as many pairs as --most-pairs allows.")
    untried = [one for one in finding.tries if one.comparison is None]
    lines.append(whole)
    if untried:
        others = len(untried) - 1
        more = f", nor can {others} other part{'s' if others > 1 else ''}" if others else ""
        why = untried[0].why_not.rstrip(".")
        lines.append(f"{_part(untried[0], files)} cannot be tried{more}: {why}.")
    return lines


def _guilty(one: Guilty, share: float, worse: str, files: Sequence[str]) -> str:
    effect = compared(one.comparison).removeprefix(f"{one.comparison.word}, ")
    makes = "makes" if len(one.changes) == 1 else "together make"
    also = ", with the files above," if one.before else ""
    of_all = f"{percentage(share, 0)} of the effect"
    if one.share is not None and not one.before:
        low, high = (percentage(bound, 0) for bound in one.share.interval)
        of_all += f" ({low} to {high})"
    return f"{_names(one.changes, files)}{also} {makes} it {worse}: {effect}, {of_all}."


def _part(tried: FileTry, files: Sequence[str]) -> str:
    besides = f", besides {_names(tried.before, files)}" if tried.before else ""
    return _names(tried.changes, files) + besides


def _names(changes: Sequence[int], files: Sequence[str]) -> str:
    if len(changes) == len(files):
        return f"all {len(changes)} files"
    return first_of([files[number] for number in changes], 3)
