"""The page of changes: each with its commit, its figures before and after, and its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from asv_bench.compare.confirmation import Standing
from asv_bench.history.triage import Triaged
from asv_bench.output.destinations import write_text
from asv_bench.output.figure_rows import duration
from asv_bench.output.table import MISSING, percentage
from asv_bench.pages.plots import plot_history
from asv_bench.pages.site import page_templates


@dataclass(frozen=True, slots=True)
class _Section:
    """What the template shows of one change."""

    title: str
    change_text: str
    standing: str
    is_bad: bool
    machine: str
    commit: str
    subject: str
    author: str | None
    rows: list[tuple[str, ...]]
    remark: str
    svg: str


def build_triage_page(triaged: Sequence[Triaged], path: Path) -> Path:
    """Write the page of these changes: one file, nothing fetched; returns its path."""
    page = (
        page_templates()
        .get_template("changes.html.j2")
        .render(
            entries=[_section(entry) for entry in triaged],
            built=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
    )
    return write_text(path, page)


def _section(entry: Triaged) -> _Section:
    change = entry.change
    figures = [point.figure for point in entry.points]
    commits = [point.commit for point in entry.points]
    plot = plot_history(
        f"{entry.title} on {change.machine}", figures, commits, marked=change.commit.hash
    )
    return _Section(
        title=entry.title,
        change_text=percentage(change.effect, 1, signed=True),
        standing=entry.standing,
        is_bad=entry.standing is Standing.REGRESSION,
        machine=", ".join(filter(None, (change.machine, entry.environment))),
        commit=change.commit.short,
        subject=change.commit.subject,
        author=change.commit.author or None,
        rows=_rows(entry),
        remark=_remark(entry),
        svg=plot.svg,
    )


def _rows(entry: Triaged) -> list[tuple[str, ...]]:
    change = entry.change
    rows: list[tuple[str, ...]] = [
        (
            "stored history",
            _value(change.before_value, change.unit),
            _value(change.after_value, change.unit),
            percentage(change.effect, 2, signed=True),
            _interval(change.interval),
            f"{change.commits_before} + {change.commits_after} commits",
        )
    ]
    if entry.answer is not None:
        compared = entry.answer
        rows.append(
            (
                f"compared: {compared.verdict}",
                _value(compared.base_value, change.unit),
                _value(compared.head_value, change.unit),
                MISSING if compared.effect is None else percentage(compared.effect, 2, signed=True),
                MISSING if compared.interval is None else _interval(compared.interval),
                f"{compared.pairs_used} pairs",
            )
        )
    return rows


def _remark(entry: Triaged) -> str:
    change = entry.change
    sentences = [
        f"{change.before.short} is the last commit measured before it, {change.commit.short} the "
        f"first after it."
    ]
    if not change.is_placed:
        sentences.append(
            f"Noise may have misplaced it: it lies after {change.since.short} and not after "
            f"{change.until.short}, and those two are compared."
        )
    if change.reference is not None:
        sentences.append(
            f"Judged by ratios to {change.reference[:8]}, measured in the same sessions."
        )
    if entry.answer is not None and entry.answer.reason:
        sentences.append(entry.answer.reason)
    return " ".join(sentences)


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return MISSING
    return duration(value) if unit == "seconds" else f"{value:.4g} {unit}"


def _interval(interval: tuple[float, float]) -> str:
    low, high = (percentage(bound, 2, signed=True) for bound in interval)
    return f"{low} to {high}"
