"""The change that is to be explained, as a stored comparison says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asv_bench.compare.verdict import Verdict, word_of
from asv_bench.errors import Refused
from asv_bench.output.record import RUNS
from asv_bench.output.stored_json import UnreadableFile, read_stored
from asv_bench.output.table import interval, percentage
from asv_bench.subjects.declared import DeclaredSubject

_LOOKED_AT = 100
"""Records, the newest first, in which a comparison is looked for."""
_SAME = ("kind", "name", "command", "repository")
"""What a subject must share with that of a record. The file's text may have changed."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One metric of two commits, as `Comparison` has it."""

    metric: str
    unit: str
    verdict: str
    effect: float | None
    interval: tuple[float, float] | None
    pairs: int
    higher_is_better: bool
    is_on_gpu: bool  # whether a GPU was measured
    machine: str  # in words
    started: str

    @property
    def sign(self) -> int:
        """1: the head is slower; -1: faster; 0: neither was shown."""
        return {Verdict.SLOWER: 1, Verdict.FASTER: -1}.get(Verdict(self.verdict), 0)

    @property
    def cost(self) -> float | None:
        """How much longer the head takes, as a fraction; None where the metric is no time."""
        if self.effect is None or self.unit == "bytes":
            return None
        return 1 / (1 + self.effect) - 1 if self.higher_is_better else self.effect

    def sentence(self) -> str:
        """The change in words."""
        text = f"{self.metric}: {word_of(Verdict(self.verdict), self.unit, self.effect)}"
        if self.effect is not None:
            text += f", {percentage(self.effect, 2, signed=True)}"
        if self.interval is not None:
            text += f" ({interval(2)(self.interval)})"
        return f"{text} in {self.pairs} pairs on {self.machine}, {self.started[:10]}"


def known_effect(
    ends: tuple[str, str], subject: DeclaredSubject, record: Path | None
) -> Effect | None:
    """The change of two ends that a record has, or the newest one stored; None without one.

    Of several metrics it is that of the largest change that was shown. Ends are full hashes, or
    labels. Raises Refused if a record is given which is none, or compares something else.
    """
    if record is not None:
        if found := _read(record, ends, subject):
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
            if found := _read(path, ends, subject):
                return found
    return None


def _read(path: Path, ends: tuple[str, str], subject: DeclaredSubject) -> Effect | None:
    known = {metric.name: metric for metric in subject.metrics}
    own = subject.to_json()

    def parse(record: Mapping[str, Any]) -> Effect | None:
        settings, results = record.get("settings") or {}, record.get("results") or {}
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
        devices = settings.get("devices") or []
        is_on_gpu = machine.get("gpu") is not None and not {"cpu", "host"} & set(devices)
        low_high = most.get("interval")
        return Effect(
            metric=metric.name,
            unit=metric.unit,
            verdict=most["verdict"],
            effect=most.get("effect"),
            interval=None if low_high is None else (low_high[0], low_high[1]),
            pairs=most.get("pairs_used", 0),
            higher_is_better=metric.better == "higher",
            is_on_gpu=is_on_gpu,
            machine=machine["gpu"] if is_on_gpu else f"{machine['cpu']}, {machine['cores']} cores",
            started=record.get("started", ""),
        )

    return read_stored(path, "a record", parse)
