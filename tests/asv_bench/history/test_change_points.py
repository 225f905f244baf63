"""Where a stored series moved for good: steps, noise, places, and ratios to a reference."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stored_figures import SERIES, figures, hash_of, steps

from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Figure, Ratios, read_ratios, sessions_of, write_session
from asv_bench.history.change_points import Point, changes_in, points_of


def commits_for(count: int) -> list[Commit]:
    return [Commit(hash_of(number), f"Subject {number}") for number in range(count)]


def changes_of(levels, **options):
    return changes_in(points(figures(levels, **options)))


def points(measured: list[Figure], ratios: Ratios | None = None) -> list[Point]:
    return points_of(measured, commits_for(len(measured)), ratios or {}, sessions_of(measured))


@pytest.mark.parametrize("effect", [0.03, -0.03])
def test_a_step_of_three_per_cent_is_found_where_it_is(effect: float) -> None:
    found = 0
    for seed in range(30):
        seen = changes_of(steps(60, c40=effect), seed=seed)
        found += any(
            change.commit.hash in (hash_of(39), hash_of(40), hash_of(41))
            and change.effect == pytest.approx(effect, abs=0.01)
            and change.interval[0] < change.effect < change.interval[1]
            for change in seen
        )
    assert found >= 28


def test_noise_alone_moves_few_series() -> None:
    series = [changes_of(steps(60), seed=seed) for seed in range(60)]
    assert sum(map(bool, series)) <= 9


def test_single_processes_that_were_disturbed_are_no_changes() -> None:
    levels = [0.0] * 40
    for place in (7, 19, 33):
        levels[place] = 0.15
    assert changes_of(levels, processes=1) == []


def single(values: list[float] | list[list[float]]) -> list[Point]:
    """Commits whose processes gave these figures."""
    rows = np.array(values).reshape(len(values), -1)
    pairs = zip(figures([0.0] * len(values)), rows, strict=True)
    return points([replace(figure, samples=tuple(row.tolist())) for figure, row in pairs])


@pytest.mark.parametrize(
    ("values", "places"),
    [
        ([1.0, 1.2], [1]),
        ([1.0, 1.0, 1.2], [2]),
        ([[1.0, 1.01, 0.99], [1.2, 1.19, 1.21]], [1]),
        ([[1.0, 1.01, 0.99], [1.01, 1.0, 0.99], [1.2, 1.19, 1.21]], [2]),
        ([1.0, 1.03], []),
        ([[1.0, 1.04, 0.96], [1.04, 1.08, 1.0]], []),
        # Figures without any noise, but for steps; and with a figure that was disturbed.
        ([5.0, 5.0, 5.0, 6.0], [3]),
        ([5.0] * 5 + [6.0] * 5, [5]),
        ([5.0] * 5 + [6.0] * 3 + [4.0] * 4, [5, 8]),
        ([[5.0] * 3] * 2 + [[6.0] * 3], [2]),
        ([5.0] * 4 + [6.0] + [5.0] * 6, []),
    ],
)
def test_few_commits_and_figures_without_noise_show_what_moved(values, places: list[int]) -> None:
    assert [int(change.commit.hash, 16) for change in changes_in(single(values))] == places


def test_single_processes_show_a_step_of_one_and_a_half_of_their_deviation() -> None:
    found = wrong = 0
    for seed in range(60):
        draws = np.random.default_rng(seed)
        flat, step = draws.normal(0.0, 0.01, 100), np.arange(100) >= 50
        wrong += len(changes_in(single(np.exp(flat).tolist())))
        ranges = [
            (int(change.since.hash, 16), int(change.until.hash, 16))
            for change in changes_in(single(np.exp(flat + 0.015 * step).tolist()))
        ]
        found += any(since < 50 <= until for since, until in ranges)
    assert found >= 55
    assert wrong == 0


@pytest.mark.parametrize(("place", "noise"), [(12, 0.002), (19, 0.01)])
def test_a_clear_step_has_one_place_also_at_the_newest_commit(place: int, noise: float) -> None:
    effect = 0.05 if place == 12 else 0.06
    [change] = changes_of(steps(20, **{f"c{place}": effect}), noise=noise)
    assert (change.before.hash, change.commit.hash) == (hash_of(place - 1), hash_of(place))
    assert (change.commits_before, change.commits_after) == (place, 20 - place)
    if place == 12:
        assert change.is_placed
        assert (change.since.hash, change.until.hash) == (hash_of(11), hash_of(12))


def test_a_short_history_of_nothing_but_changes_shows_those_of_one_per_cent() -> None:
    first, second, third = changes_of(steps(6, c1=-0.2, c3=0.1, c4=-0.05), noise=0.002)
    assert [round(one.effect, 2) for one in (first, second, third)] == [-0.2, 0.1, -0.05]
    assert [one.commit.hash for one in (first, second, third)] == [*map(hash_of, (1, 3, 4))]
    assert first.after_value == pytest.approx(second.before_value)
    assert first.commits_after == second.commits_before
    assert changes_of(steps(60, c30=0.008), noise=0.0001) == []


def test_a_neighbour_that_was_measured_badly_hides_no_change_from_its_comparison() -> None:
    levels = steps(12, c6=0.075)
    levels[5] += 0.06
    [change] = changes_of(levels, noise=0.015)
    assert change.commit.hash == hash_of(5)
    assert not change.is_placed
    assert int(change.since.hash, 16) < 5
    assert int(change.until.hash, 16) == 6


def test_the_range_of_a_change_holds_its_place() -> None:
    held = ranges = 0
    for seed in range(60):
        for change in changes_of(steps(30, c18=0.03), seed=seed):
            if change.effect == pytest.approx(0.03, abs=0.015):
                since, until = int(change.since.hash, 16), int(change.until.hash, 16)
                held += since < 18 <= until
                ranges += until - since
    assert held >= 55
    assert ranges < 60 * 4


def in_sessions(measured: list[Figure], *begins: int) -> list[Figure]:
    """Figures, of which those with these numbers begin sessions two hours after the one before."""
    return [
        replace(figure, started_ms=7_200_000 * sum(number >= one for one in begins) + number)
        for number, figure in enumerate(measured)
    ]


def test_what_sessions_differ_by_is_no_change() -> None:
    levels = steps(40, c20=0.015)
    assert len(changes_of(levels, noise=0.002)) == 1
    assert changes_in(points(in_sessions(figures(levels, noise=0.002), 20))) == []


def test_a_step_within_a_session_is_as_high_as_that_session_says_and_more_certain() -> None:
    levels = steps(40, c20=-0.02, c30=0.03)
    [change] = changes_in(points(in_sessions(figures(levels, noise=0.002), 20)))
    assert change.commit.hash == hash_of(30)
    assert change.effect == pytest.approx(0.03, abs=0.004)
    widths = []
    for size in (10, 20):
        measured = figures(steps(40, c20=0.15), noise=0.002)
        [change] = changes_in(points(in_sessions(measured, size)))
        widths.append(change.interval[1] - change.interval[0])
    assert widths[1] > 3 * widths[0]


def test_a_reference_measured_badly_makes_no_change(tmp_path: Path) -> None:
    measured = in_sessions(figures([0.0] * 60, noise=0.004), *range(10, 60, 10))
    draws = np.random.default_rng(1)
    for first in range(0, 60, 10):
        level = 1e-3 * math.exp(draws.normal(0, 0.004))
        reference = replace(measured[first], commit="f" * 40, samples=(level,))
        write_session(tmp_path, "f" * 40, [*measured[first : first + 10], reference])
    related = points(measured, read_ratios(tmp_path, "m", []))
    assert {point.reference for point in related} == {"f" * 40}
    assert changes_in(related) == []


def test_ratios_to_a_reference_cancel_the_machine(tmp_path: Path) -> None:
    drifting = steps(12, c6=0.05)
    measured = figures(drifting, noise=0.001)
    for figure, level in zip(measured, drifting, strict=True):
        of_reference = {"committed_ms": 0, "samples": (1e-3 * math.exp(level),)}
        reference = replace(figure, commit="f" * 40, **of_reference)
        assert write_session(tmp_path, "f" * 40, [figure, reference]) is not None
    assert len(changes_in(points(measured))) == 1
    related = points(measured, read_ratios(tmp_path, "m", []))
    assert {point.reference for point in related} == {"f" * 40}
    assert changes_in(related) == []


def test_a_figure_of_another_session_is_not_divided(tmp_path: Path) -> None:
    measured = figures(steps(4))
    reference = Figure(SERIES, "seconds", "m", "f" * 40, 0, (2e-3,), 1000)
    write_session(tmp_path, "f" * 40, [*measured[:3], reference])
    related = points(measured, read_ratios(tmp_path, "m", []))
    assert {point.reference for point in related} == {None}
    assert related[0].level == pytest.approx(math.log(measured[0].median))


def test_a_session_without_its_reference_keeps_nothing_and_a_broken_one_is_named(
    tmp_path: Path,
) -> None:
    assert write_session(tmp_path, "f" * 40, figures(steps(3))) is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x.json").write_text('{"figures": [{}]}')
    write_session(tmp_path, figures(steps(3))[0].commit, figures(steps(3)))
    complaints: list[str] = []
    assert len(read_ratios(tmp_path, "m", complaints)) == 3
    assert re.search(r"x\.json is not a session.*left out", *complaints)


@pytest.mark.parametrize("processes", [1, 3])
def test_processes_of_which_some_take_longer_make_no_change(processes: int) -> None:
    for seed in range(5):
        draws = np.random.default_rng(seed)
        flat = figures([0.0] * 150, seed=seed, processes=processes, noise=0.003)
        slower = 1 + 0.05 * (draws.random((150, processes)) < 0.3)
        rows = np.array([figure.samples for figure in flat]) * slower
        assert changes_in(single(rows.tolist())) == []


def correlated(seed: int, memory: float, commits: int = 150) -> np.ndarray:
    """[commits] errors of deviation 1, of which each remembers so much of the one before."""
    errors = np.random.default_rng(seed).normal(0.0, 1.0, commits)
    errors[1:] *= math.sqrt(1.0 - memory**2)
    for place in range(1, commits):
        errors[place] += memory * errors[place - 1]
    return errors


@pytest.mark.parametrize("processes", [1, 3])
def test_what_neighbours_have_in_common_makes_few_changes(processes: int) -> None:
    found = [
        changes_of((0.03 * correlated(seed, 0.7)).tolist(), seed=seed, processes=processes)
        for seed in range(20)
    ]
    assert sum(map(len, found)) <= 12


@pytest.mark.parametrize("processes", [1, 3])
def test_a_slope_is_said_in_few_changes(processes: int) -> None:
    slope = np.linspace(0.0, 0.1, 150).tolist()
    found = [changes_of(slope, seed=seed, processes=processes, noise=0.01) for seed in range(20)]
    assert all(found)
    assert sum(map(len, found)) <= 52


@pytest.mark.parametrize("processes", [1, 3])
def test_noisy_sessions_that_look_alike_by_chance_make_no_changes(processes: int) -> None:
    found = 0
    for seed in range(60):
        added = 0.01 * np.random.default_rng(seed).choice([-1.0, 1.0], 15)
        levels = np.repeat(added, 10).tolist()
        measured = figures(levels, seed=seed, processes=processes, noise=0.01)
        found += len(changes_in(points(in_sessions(measured, *range(10, 150, 10)))))
    assert found <= 1
