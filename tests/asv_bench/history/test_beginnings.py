"""Where a stored history begins a new series, and what it says of why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from stored_figures import SERIES, figures, hash_of, steps

from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Figure
from asv_bench.history.histories import CLIENTS, Beginning, beginnings

COMMITS = [Commit(hash_of(number)) for number in range(6)]


def measured(*drivers: str, **facts: str) -> list[Figure]:
    """A figure of each commit, under these drivers in turn."""
    return [
        replace(one, environment=tuple({"driver": driver, **facts}.items()))
        for one, driver in zip(figures(steps(6)), drivers, strict=False)
    ]


def begun(found: list[Figure], folder: Path = Path("/nowhere")) -> list[Beginning]:
    return beginnings("m", found, COMMITS, folder)


def test_a_series_begins_where_the_driver_changed_and_only_there() -> None:
    assert begun(measured("1", "1", "1")) == []
    [one] = begun(measured("1", "1", "2", "2"))
    assert (one.commit, one.benchmarks) == (hash_of(2), [SERIES.name])
    assert (one.before, one.environment) == ({"driver": "1"}, {"driver": "2"})
    assert one.sentence == (
        f"m: a new series begins at {hash_of(2)[:8]}, as this changed: driver 1 → 2 "
        f"({SERIES.name})."
    )
    # It goes on where the driver is again what it was.
    assert len(begun(measured("1", "2", "1"))) == 1
    assert [one.changed for one in begun(measured("1", "2", "3"))] == [
        "driver 1 → 2",
        "driver 2 → 3",
    ]


def test_other_series_failures_and_commits_elsewhere_begin_none() -> None:
    first, second, third = measured("1", "2", "2")
    assert begun([first, replace(second, series=SERIES._replace(benchmark="other"))]) == []
    assert begun([first, replace(second, samples=())]) == []
    assert begun([first, replace(second, commit="f" * 40)]) == []
    [one] = begun([first, replace(second, samples=()), third])
    assert one.commit == third.commit


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_client_is_told_by_what_changed_in_it_where_that_is_kept(
    tmp_path: Path, is_kept: bool
) -> None:
    for name, version in (("aa", "1.0"), ("bb", "1.1")) if is_kept else ():
        told = {"interpreter": "python3", "packages": {"bench": version}, "variables": {}}
        path = tmp_path / CLIENTS / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**told, "programs": {}, "hash": name, "client": None}))
    first, second = (
        measured("1", client="aa", env_name="host-aa"),
        measured("1", "1", client="bb", env_name="host-bb"),
    )
    [one] = begun([*first, second[1]], tmp_path)
    assert one.changed == ("client bench 1.0 → 1.1" if is_kept else "client aa → bb")
    # A history from before clients were noted.
    [one] = begun([measured("1")[0], second[1]], tmp_path)
    assert one.changed == "client not noted → bb"
