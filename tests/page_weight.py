"""A site of made-up histories, to see what a page of many weighs."""

from __future__ import annotations

import hashlib

import numpy as np

from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Figure, Series
from asv_bench.history.sessions import SessionStarts
from asv_bench.pages.graph import Graph, Line
from asv_bench.pages.machine_view import MachineView
from asv_bench.pages.site import Site

DAY_MS = 86_400_000


def made_up_site(*, benchmarks: int, commits: int) -> Site:
    """Each benchmark measured at each commit, five processes with a noise of one per cent."""
    draws = np.random.default_rng(3)
    made = tuple(
        Commit(
            hashlib.sha1(str(number).encode()).hexdigest(),
            f"Say in a sentence of usual length what change {number} does",
            f"Author {number % 7}",
        )
        for number in range(commits)
    )
    graphs = []
    for number in range(benchmarks):
        series = Series(f"suite{number % 20}.Suite.track_{number}", ())
        levels = 10.0 ** draws.uniform(-6, 0) * np.exp(0.01 * draws.standard_normal((commits, 5)))
        figures = {
            place: Figure(series, "seconds", "machine", commit.hash, place, tuple(row), DAY_MS)
            for place, (commit, row) in enumerate(zip(made, levels.tolist(), strict=True))
        }
        graphs.append(Graph(series, "seconds", "", (Line(0, figures),)))
    hashes = [commit.hash for commit in made]
    view = MachineView(
        name="machine",
        facts=(("CPU", "a CPU"),),
        commits=made,
        dates={name: DAY_MS * (20_000 + place) for place, name in enumerate(hashes)},
        behind={name: commits - 1 - place for place, name in enumerate(hashes)},
        sessions=SessionStarts((DAY_MS,)),
        environments=((("python", "3.11"),),),
        graphs=tuple(graphs),
    )
    return Site("made up", False, [view])
