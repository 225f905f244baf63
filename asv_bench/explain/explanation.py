"""What is explained: the change of two ends, all that was found out about them, and its causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asv_bench.compare.checks import CheckAnswer, checks_in, in_words
from asv_bench.compare.verdict import Verdict, word_of
from asv_bench.errors import Refused
from asv_bench.explain.clue import Clue, Source, number
from asv_bench.git.repository import Commit
from asv_bench.measure.rounds import named
from asv_bench.output.record import RUNS
from asv_bench.output.stored_json import UnreadableFile, read_stored
from asv_bench.output.table import Cell, Column, Table, interval, percent, percentage
from asv_bench.process.gpu import NO_GPU
from asv_bench.subjects.declared import DeclaredSubject

if TYPE_CHECKING:
    from asv_bench.explain.trace_pair import TracePair

MOST = 3
"""Causes that are named."""
_MINOR, _FULLY = 0.05, 0.8
"""Of the change: an exact clue that costs less comes last; causes that add up to as much explain
all of it."""
_ROWS = 12
_SHOWN, _KEPT = 3, 20
"""Files and commits that are said, and those that are kept: there may be thousands."""
_LOOKED_AT = 100
"""Records, the newest first, in which a comparison is looked for."""
_SAME = ("kind", "name", "command", "repository")
"""What a subject must share with that of a record. The file's text may have changed."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One metric of two commits, as a stored comparison has it."""

    metric: str
    verdict: Verdict
    effect: float | None
    cost: float | None  # how much longer the head takes, as a fraction; None: it is no time
    is_on_gpu: bool  # whether a GPU was measured
    sentence: str
    checks: tuple[CheckAnswer, ...] = ()


def known_effect(
    ends: tuple[str, str], subject: DeclaredSubject, record: Path | None, *, is_new: bool = False
) -> Effect | None:
    """The change of two ends that a record has, or the newest one stored; None without one.

    Of several metrics it is that of the largest change that was shown. Ends are full hashes, or
    labels. Raises Refused if a record is given which is none, or compares something else, unless it
    `is_new`: then the comparison had no time.
    """
    read = partial(_effect_in, ends=ends, subject=subject)
    if record is not None:
        found = read_stored(record, "a record", read)
        if found or is_new:
            return found
        names = ", ".join(metric.name for metric in subject.metrics)
        raise Refused(
            f"{record} holds no comparison of {' and '.join(end[:12] for end in ends)} in {names}; "
            f"give the record of a compare of the same two."
        )
    files = [path for kind in ("compare", "bisect") for path in RUNS.glob(f"{kind}-*.json")]
    files.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[:_LOOKED_AT]:
        with suppress(UnreadableFile):
            if found := read_stored(path, "a record", read):
                return found
    return None


def _effect_in(
    record: Mapping[str, Any], ends: tuple[str, str], subject: DeclaredSubject
) -> Effect | None:
    known, own = {metric.name: metric for metric in subject.metrics}, subject.to_json()
    settings, results = record.get("settings") or {}, record.get("results") or {}
    # Of several heads the name of each stands behind the metric.
    for head in settings.get("heads") or ():
        known |= {named(metric.name, head["name"]): metric for metric in subject.metrics}
    recorded, finding = settings.get("subject") or {}, results.get("finding") or {}
    # Those of `compare`, or those that `bisect` made of commits that it names, and of its ends.
    compared = [*(results.get("comparisons") or []), *(finding.get("confirmations") or [])]
    found = [
        one
        for one in (*compared, finding.get("gate") or {})
        if (one.get("base"), one.get("head")) == ends and one.get("benchmark") in known
    ]
    if not found or any(recorded.get(key) != own.get(key) for key in _SAME):
        return None
    shown = (Verdict.SLOWER, Verdict.FASTER)
    most = max(found, key=lambda one: (one["verdict"] in shown, abs(one.get("effect") or 0.0)))
    metric, machine = known[most["benchmark"]], record["machine"]
    checks = checks_in(results, ends)
    verdict, cost = Verdict(most["verdict"]), most.get("effect")
    text = f"{metric.name}: {word_of(verdict, metric.unit, cost)}"
    if cost is not None:
        text += f", {percentage(cost, 2, signed=True)}"
    if bounds := most.get("interval"):
        text += f" ({interval(2)(bounds)})"
    is_on_gpu = bool(machine.get("gpu")) and not set(NO_GPU) & set(settings.get("devices") or [])
    place = machine["gpu"] if is_on_gpu else f"{machine['cpu']}, {machine['cores']} cores"
    text += f" in {most.get('pairs_used', 0)} pairs on {place}, {record.get('started', '')[:10]}"
    text += f", {in_words(checks)}" * bool(checks)
    if metric.unit == "bytes":
        cost = None
    elif metric.better == "higher" and cost is not None:
        cost = 1 / (1 + cost) - 1
    return Effect(metric.name, verdict, most.get("effect"), cost, is_on_gpu, text, checks)


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
        hashes = new.ask("rev-list", "--no-merges", f"{base}..{head}", *paths).decode().split()
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


@dataclass(slots=True)
class Explanation:
    """All that was found out about two ends."""

    base: Commit
    head: Commit
    effect: Effect | None = None  # the change that a comparison measured; None: none is known
    traces: TracePair | None = None  # None: none were taken
    files: CommitFiles | None = None  # and commits between the ends; None along labels
    clues: list[Clue] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)  # each in a few words
    notes: list[str] = field(default_factory=list)  # sentences: what could not be looked at

    @property
    def sign(self) -> int:
        """1 where the head is slower, -1 where it is faster, 0 where nothing says so."""
        if self.effect is not None:
            return {Verdict.SLOWER: 1, Verdict.FASTER: -1}.get(self.effect.verdict, 0)
        if self.traces is not None and self.traces.shows_effect:
            return 1 if self.traces.effect > 0 else -1
        return 0

    @property
    def change(self) -> float | None:
        """How much longer the head takes, as a fraction, where that is measured.

        Of a profile it is what that shows.
        """
        if self.effect is not None and not self._profiled:
            return self.effect.cost
        traced = self.traces
        if traced is None or not traced.shows_effect or traced.effect * self.sign <= 0:
            return None
        return traced.effect

    @property
    def causes(self) -> list[Clue]:
        """The clues that explain the change best, the best first; none where there is no change."""
        if self.effect is not None and self.effect.verdict in (Verdict.EQUIVALENT, Verdict.SAME):
            return []
        # What a trace counted too is told as the trace has it.
        traced = {one.name for one in self.clues if one.source is Source.TRACE and one.is_exact}
        leaning = (0, self.sign) if self.sign else (-1, 0, 1)
        admitted = [
            one
            for one in self.clues
            if one.leaning in leaning
            and not one.is_waiting
            and not (one.source is Source.COUNTERS and one.name in traced)
        ]
        return sorted(admitted, key=self._rank)[:MOST]

    @property
    def account(self) -> dict[str, float] | None:
        """What the change is made of, which adds up to 1; None where that is unknown."""
        if self.traces is None or not self.change:
            return None
        told = {False: 0.0, True: 0.0}
        for one in self.clues:
            told[one.is_waiting] += one.part or 0.0
        parts = {
            "beyond noise": told[False],
            "waiting for others": told[True],
            "within noise": self.traces.effect - sum(told.values()),
            "not in the traces": self.change - self.traces.effect,
        }
        return {name: part / self.change for name, part in parts.items()}

    def _rank(self, clue: Clue) -> tuple[int, float]:
        """In this order causes are named, and of one kind the most expensive first."""
        cost_us = abs(clue.cost_us)
        if clue.source is Source.VARIABLES:
            return 0, 0.0
        if clue.source is Source.PACKAGES:
            return 2, 0.0
        if not clue.is_exact:
            return 3, -cost_us
        whole = abs(self.traces.base_us * self.change) if self.traces and self.change else 0.0
        return 4 if cost_us < _MINOR * whole else 1, -cost_us

    def headline(self) -> str:
        """What is explained, in a line."""
        if self.effect is not None:
            return self.effect.sentence
        differ = f"What differs between {self.base.short} and {self.head.short}"
        if self.traces is None:
            return differ
        seen = percentage(self.traces.effect, 1, signed=True)
        beyond = "beyond" if self.traces.shows_effect else "within"
        return f"{differ}; their traces differ by {seen}, {beyond} noise"

    def answer(self) -> list[str]:
        """What checks say, and the causes in words, numbered, or that there is none."""
        looked_at = f"Looked at: {', '.join(self.looked_at)}."
        found = [one.sentence for one in self.effect.checks] if self.effect else []
        if not self.causes:
            return [*found, f"No cause was found. {looked_at}"]
        found += [
            f"{place}. {one.sentence}{self.worth(one)}" for place, one in enumerate(self.causes, 1)
        ]
        if self.account is not None:
            (_, share), *others = self.account.items()
            text = f"What differs in the traces beyond noise adds up to {percentage(share, 0)}"
            rest = [f"{percentage(part, 0)} {name}" for name, part in others if abs(part) >= 0.005]
            of = f"of the change{self._profiled}"
            found.append(f"{text} {of}{'; the rest: ' * bool(rest)}{', '.join(rest)}.")
            found += [looked_at] if share < _FULLY else []
        return found

    @property
    def _profiled(self) -> str:
        """That the change is a profile's, which has all of a life and a metric perhaps not."""
        if self.traces is None or not self.traces.is_profile:
            return ""
        return f" as profiled, {percentage(self.traces.effect, 1, signed=True)}"

    def worth(self, one: Clue) -> str:
        """How much of the change a cause explains, as far as it is measured."""
        if one.part is None:
            return "."
        if not self.change:
            return f": {percentage(one.part, 1, signed=True)} of the base's time."
        return f": {percentage(one.part / self.change, 0)} of the change."

    def context(self) -> Iterator[str]:
        """Files and commits between the ends, in sentences, and what could not be looked at."""
        yield from self.files.sentences() if self.files else ()
        if self._profiled and self.sign and self.change is None:
            yield (
                f"The change is not shown{self._profiled}: it is outside functions of Python, or "
                f"the benchmark does as much as there is time for."
            )
        yield from self.notes

    def table(self) -> Table:
        """The first clues: those that a trace measured, the largest first, then the others."""
        columns = (
            Column("name", "what differs", kind="text"),
            Column("base", "base", kind="text", show=number),
            Column("head", "head", kind="text", show=number),
            Column("part", "of the", "base", percent(1, signed=True)),
            Column("source", "seen in", kind="text"),
        )
        clues = sorted(self.clues, key=lambda one: (one.part is None, -abs(one.cost_us)))
        left = len(clues) - _ROWS
        caption = f"{left} more differences are in the record. " if left > 0 else ""
        caption += "Of the base: what it costs, of the base's traced time."
        rows = [
            (
                Cell(one.name, note=one.what + ", waits for others" * one.is_waiting),
                *(one.before, one.after, one.part, one.source),
            )
            for one in clues[:_ROWS]
        ]
        return Table(columns, rows, "what differs besides time", caption)

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON-ready values; what is explained leaves out waiting."""
        account = self.account
        return {
            "effect": self.effect and asdict(self.effect),
            "causes": list(map(asdict, self.causes)),
            "answer": self.answer(),
            "differences": list(map(asdict, self.clues)),
            "explained": account and account["beyond noise"],
            "account": account,
            "changes": self.files and asdict(self.files),
            "traced": self.traces and self.traces.to_json(),
            "looked_at": self.looked_at,
        }
