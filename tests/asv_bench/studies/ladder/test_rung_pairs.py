"""Pairs of rungs: who runs when, what is paired with what, and what a failure does."""

from __future__ import annotations

import os

import pytest
from fake_rungs import FakeProcesses

from asv_bench.measure.lives import Place
from asv_bench.measure.rounds import two_cells
from asv_bench.measure.samples import SampleFailed
from asv_bench.measure.turns import TURNS_VARIABLE, Turns
from asv_bench.studies.ladder.claims import CLAIMS, SECONDS_PER_TOKEN, trials_here
from asv_bench.studies.ladder.rung_pairs import RungPairs
from asv_bench.studies.ladder.rungs import RUNGS
from asv_bench.subjects.subject import Metric

ON_GPU = trials_here(CLAIMS, RUNGS, "cuda")
SECONDS = {number: 1e-3 * (number + 1) for number in range(7)}


def _source(processes, trials=ON_GPU, devices=("one",)):
    return RungPairs(processes, trials, [Place(name=device) for device in devices])


def _pair(source, trial, *, head_first=False, device=None):
    seed, design = trial.claim.seed, two_cells(trial.base.label, trial.head.label)
    order = (1, 0) if head_first else (0, 1)
    measured = source.round(design.cells, order, metrics=[seed], device=device)
    return design.pairs([Metric(seed, "seconds")], measured)[seed]


def test_a_pair_is_of_the_two_rungs_of_a_claim_on_its_workload():
    processes = FakeProcesses(SECONDS)
    source = _source(processes)
    pair = _pair(source, ON_GPU[2])
    assert sorted(processes.ran) == [
        ("one", 3, ("streaming",), False),
        ("one", 4, ("streaming",), False),
    ]
    assert (pair.base.commit, pair.head.commit) == ("3-triton-append", "4-identity-append")
    assert (pair.base.value, pair.head.value) == (4e-3, 5e-3)
    assert not pair.head_first
    assert _pair(source, ON_GPU[2], head_first=True).head_first


def test_the_first_rung_of_a_pair_works_first():
    first = []

    class Waiting(FakeProcesses):
        def measure(self, rung, workloads, place, *, check=False, variables=None):
            mine, _, theirs = variables[TURNS_VARIABLE].partition(os.pathsep)
            turns = Turns((mine, theirs))
            turns.wait()
            first.append(rung.number)
            turns.pass_on()
            return super().measure(rung, workloads, place, check=check, variables=variables)

    source = _source(Waiting(SECONDS))
    for head_first in (False, True):
        _pair(source, ON_GPU[0], head_first=head_first)
    assert first == [0, 1, 1, 0]


def test_a_pair_stays_on_its_device():
    processes = FakeProcesses(SECONDS)
    source = _source(processes, devices=("one", "two"))
    for device in ("one", "two"):
        pair = _pair(source, ON_GPU[0], device=device)
        assert pair.base.device == pair.head.device == device
    assert [device for device, *_ in processes.ran] == ["one"] * 2 + ["two"] * 2


def test_a_process_that_fails_is_said_to_the_claim_that_asked():
    source = _source(FakeProcesses(SECONDS, fails={1}))
    with pytest.raises(SampleFailed, match="no such thing") as caught:
        _pair(source, ON_GPU[0])
    assert caught.value.benchmarks == ("036",)


def test_pairs_of_which_both_processes_were_throttled_are_discarded():
    source = _source(FakeProcesses(SECONDS, throttled={0, 1}))
    spoilt = _pair(source, ON_GPU[0])
    sound = _pair(source, ON_GPU[1])
    assert "was throttled during both" in (spoilt.discarded or "")
    assert sound.discarded is None


def test_readings_say_claim_and_figure():
    source = _source(FakeProcesses(SECONDS))
    _pair(source, ON_GPU[3])
    [pairs] = source.pairs["064"]
    assert pairs["itl_p99"].base.benchmark == "064 itl_p99"
    assert pairs[SECONDS_PER_TOKEN].base.samples == (SECONDS[4],)
