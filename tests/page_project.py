"""A made-up checkout for tests of pages, which has everything that they show."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from stored_figures import store_results
from toy_project import git

from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.history.histories import Histories
from asv_bench.history.standing import ANSWERS, JudgedChange, keep_answers, stored_changes

HERE, OTHER = "own-this", "own-other"
STEP = "decode.Decode.track_step_time"
SIZE = "host.Größe.track_länge"
TPOT = "scheduler.Scheduler.track_tpot"
DESCRIBED = {
    STEP: ("seconds", ["model", "batch"]),
    SIZE: ("bytes", []),
    TPOT: ("seconds", ["model"]),
}
COMMITS, NEWER = 30, 5
"""Commits that are measured, and newer ones that are not."""
STEP_AT, FALL_AT = 22, 10
EVIL = "Speed up </script><script>window.evil = 1</script> <b>&amp; more"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BEGUN_MS = 1_790_000_000_000


@dataclass(frozen=True, slots=True)
class PageProject:
    """A checkout with histories of two machines; `hashes` are oldest first, all of them."""

    root: Path
    hashes: list[str] = field(default_factory=list)

    @classmethod
    def make(cls, root: Path) -> PageProject:
        """Write everything."""
        project = cls(root)
        project._commit()
        draws = np.random.default_rng(7)
        for place, commit in enumerate(project.hashes[:COMMITS]):
            project._measure(HERE, place, commit, draws)
            if place % 2 == 0:
                project._measure(OTHER, place, commit, draws)
        project._answer()
        return project

    @property
    def histories(self) -> Histories:
        """What is stored."""
        return Histories.of_checkout(self.root)

    def _commit(self) -> None:
        """All commits in one go, a day apart."""
        git(self.root, "init", "--quiet", "--initial-branch=main")
        git(self.root, "remote", "add", "origin", "git@github.com:jurgen/beispiel.git")
        lines: list[str] = []
        for number in range(COMMITS + NEWER):
            who = f"Jürgen Müßig <j@example.org> {BEGUN_MS // 1000 + 86400 * number} +0000"
            subject = EVIL if number == STEP_AT else f"Change number {number}"
            size = len(subject.encode())
            lines += ["commit refs/heads/main", f"author {who}", f"committer {who}"]
            lines += [f"data {size}", subject, ""]
        git(self.root, "fast-import", "--quiet", given="\n".join(lines))
        self.hashes.extend(git(self.root, "rev-list", "--reverse", "main").split())

    def _measure(self, machine: str, place: int, commit: str, draws: Any) -> None:
        kept, date = self.root / "reports" / "asv" / machine, BEGUN_MS + DAY_MS * place
        # The second machine changed its Python on the way.
        python = "3.12" if machine == OTHER and place >= 16 else "3.11"
        facts = {"cpu": "A <fast> CPU", "num_cpu": "2"}
        rows = self._rows(place, draws)
        store_results(kept, DESCRIBED, rows, commit, date, python=python, **facts)

    def _rows(self, place: int, draws: Any) -> dict[str, Any]:
        """Results of a commit: steps rise at one, sizes fall at another, TPOT fails at last."""
        started = BEGUN_MS + (place + 24 * (place >= 15)) * HOUR_MS // 20

        def samples(level: float) -> list[float]:
            return [float(level * np.exp(0.004 * draw)) for draw in draws.standard_normal(5)]

        step = 1.08 if place >= STEP_AT else 1.0
        rows: dict[str, Any] = {}
        steps = [samples(3e-3 * step), samples(9e-3 * step)]
        middle = [sorted(one)[2] for one in steps]
        rows[STEP] = [middle, [["'gpt2'"], ["8", "64"]], "1", started, steps]
        size = 4_000_000 if place >= FALL_AT else 5_000_000
        rows[SIZE] = [[size], [], "1", started, [[size + place % 2, size, size]]]
        if place < COMMITS - 3:
            tpot = samples(2.5e-3)
            rows[TPOT] = [[sorted(tpot)[2]], [["'gpt2'"]], "1", started, [tpot]]
        elif place == COMMITS - 3:
            rows[TPOT] = [[None], [["'gpt2'"]], "1", started]
        return rows

    def _answer(self) -> None:
        """The rise at batch 8 is confirmed, by `compare` too; the fall is acknowledged."""
        folder, fall = self.root / "reports", self.hashes[FALL_AT]
        ends = self.hashes[STEP_AT - 1], self.hashes[STEP_AT]
        said = Comparison(f"{STEP}('gpt2', 8)", *ends, Verdict.SLOWER, 0.079, (0.07, 0.09), 0.95)
        judged = [
            JudgedChange(change, replace(said, pairs_used=8))
            for change in stored_changes(self.histories, ())[0]
            if change.machine == HERE and ("batch", "8") in change.series.params
        ]
        keep_answers(folder / ANSWERS, "2026-11-20T10:00:00+00:00", judged)
        text = f'[[acknowledged]]\ncommit = "{fall[:10]}"\nwhy = "Names are <shorter> now."\n'
        (folder / "acknowledged.toml").write_text(text)
        record = {
            "command": "compare",
            "started": "2026-11-21T10:00:00+00:00",
            "machine": {"name": HERE},
            "settings": {"subject": {"kind": "kvtrail"}},
            "results": {"comparisons": [asdict(replace(said, effect=0.081, pairs_used=6))]},
        }
        (folder / "runs").mkdir()
        (folder / "runs" / "compare-20261121T100000-1.json").write_text(json.dumps(record))


def figures_in(page: str) -> dict[str, Any]:
    """What the page's script is given."""
    [payload] = re.findall(r'<script type="text/plain" id="figures">(.*?)</script>', page, re.S)
    content: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(payload)))
    return content
