"""The page of changes: each with its commit, its figures before and after, and its history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from asv_bench.git.repository import short
from asv_bench.history.triage import Triaged
from asv_bench.output.destinations import write_text
from asv_bench.output.figure_rows import figure_text
from asv_bench.output.table import MISSING, interval, percentage
from asv_bench.pages.plots import plot_history
from asv_bench.pages.site import page_templates


def build_triage_page(triaged: Sequence[Triaged], path: Path) -> Path:
    """Write the page of these changes: one file, nothing fetched; returns its path."""
    template = page_templates().get_template("changes.html.j2")
    page = template.render(
        entries=[(entry, _rows(entry), _remark(entry), _plot(entry)) for entry in triaged],
        percentage=percentage,
        built=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    return write_text(path, page)


def _plot(entry: Triaged) -> str:
    change = entry.change
    figures, commits = zip(*((point.figure, point.commit) for point in entry.points), strict=True)
    title = f"{entry.title} on {change.machine}"
    return plot_history(title, figures, commits, marked=change.commit.hash)


def _rows(entry: Triaged) -> list[tuple[str, ...]]:
    """Where figures come from, before, after, the change, its interval, and how many there are."""
    change, answer = entry.change, entry.answer
    rows: list[tuple[str, ...]] = [
        (
            "stored history",
            figure_text(change.before_value, change.unit),
            figure_text(change.after_value, change.unit),
            percentage(change.effect, 2, signed=True),
            interval(2)(change.interval),
            f"{change.commits_before} + {change.commits_after} commits",
        )
    ]
    if answer is not None:
        rows.append(
            (
                f"compared: {answer.verdict}",
                figure_text(answer.base_value, change.unit),
                figure_text(answer.head_value, change.unit),
                MISSING if answer.effect is None else percentage(answer.effect, 2, signed=True),
                MISSING if answer.interval is None else interval(2)(answer.interval),
                f"{answer.pairs_used} pairs",
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
            f"Judged by ratios to {short(change.reference)}, measured in the same sessions."
        )
    if entry.answer is not None and entry.answer.reason:
        sentences.append(entry.answer.reason)
    return " ".join(sentences)
