"""Pairs of rungs: who runs when, what is paired with what, and what a failure does."""

from __future__ import annotations

import pytest
from fake_rungs import FakeProcesses

from asv_bench.process.measured_process import Place
from asv_bench.process.samples import SampleFailed
from asv_bench.studies.ladder.claims import CLAIMS, SECONDS_PER_TOKEN, trials_here
from asv_bench.studies.ladder.rung_pairs import RungPairs
from asv_bench.studies.ladder.rungs import RUNGS

ON_GPU = trials_here(CLAIMS, RUNGS, "cuda")
SECONDS = {number: 1e-3 * (number + 1) for number in range(7)}


def _source(processes, trials=ON_GPU, devices=("one",)):
    return RungPairs(processes, trials, [Place(device) for device in devices])


def _labels(trial):
    return trial.base.label, trial.head.label


def test_a_round_runs_every_rung_once_in_order_with_its_workloads():
    processes = FakeProcesses(SECONDS)
    source = _source(processes)
    pair = source.pair(*_labels(ON_GPU[0]), head_first=False, benchmarks=["036"])["036"]
    assert [(number, workloads) for _, number, workloads, _ in processes.ran] == [
        (0, ("scheduler",)),
        (1, ("scheduler",)),
        (2, ("scheduler",)),
        (3, ("streaming",)),
        (4, ("streaming", "streaming-small")),
        (5, ("streaming-small",)),
        (6, ("streaming-small",)),
    ]
    assert (pair.base.commit, pair.head.commit) == ("0-rebuild", "1-row-cache")
    assert (pair.base.value, pair.head.value) == (1e-3, 2e-3)
    assert not pair.head_first


def test_where_the_head_goes_first_the_round_runs_backwards():
    processes = FakeProcesses(SECONDS)
    source = _source(processes)
    pair = source.pair(*_labels(ON_GPU[1]), head_first=True, benchmarks=["038"])["038"]
    assert [number for _, number, _, _ in processes.ran] == [6, 5, 4, 3, 2, 1, 0]
    assert pair.head_first
    assert (pair.base.value, pair.head.value) == (2e-3, 3e-3)


def test_other_claims_take_their_pairs_from_the_same_round():
    processes = FakeProcesses(SECONDS)
    source = _source(processes)
    for trial in ON_GPU:
        seed = trial.claim.seed
        pair = source.pair(*_labels(trial), head_first=False, benchmarks=[seed])[seed]
        assert pair.base.commit == trial.base.label
        assert pair.head.value == SECONDS[trial.head.number]
        assert set(source.pairs[seed][0]) == {one.figure for one in trial.claim.reported}
    assert len(processes.ran) == 7
    source.pair(*_labels(ON_GPU[0]), head_first=True, benchmarks=["036"])
    assert len(processes.ran) == 14, "a pair in the other order is another round's"


def test_no_pair_is_handed_out_twice():
    processes = FakeProcesses(SECONDS, noise=0.1)
    source = _source(processes)
    values = [
        source.pair(*_labels(ON_GPU[0]), head_first=False, benchmarks=["036"])["036"].log_ratio
        for _ in range(4)
    ]
    assert len(set(values)) == 4


def test_devices_have_rounds_of_their_own():
    processes = FakeProcesses(SECONDS)
    source = _source(processes, devices=("one", "two"))
    for device in ("one", "two"):
        pair = source.pair(
            *_labels(ON_GPU[0]), head_first=False, benchmarks=["036"], device=device
        )["036"]
        assert pair.base.device == pair.head.device == device
    assert [device for device, *_ in processes.ran] == ["one"] * 7 + ["two"] * 7


def test_a_claim_with_an_answer_is_measured_no_more():
    processes = FakeProcesses(SECONDS)
    source = _source(processes)
    source.close("036")
    source.close("062")
    source.pair(*_labels(ON_GPU[1]), head_first=False, benchmarks=["038"])
    assert [(number, workloads) for _, number, workloads, _ in processes.ran] == [
        (1, ("scheduler",)),
        (2, ("scheduler",)),
        (4, ("streaming-small",)),
        (5, ("streaming-small",)),
        (6, ("streaming-small",)),
    ]


def test_a_process_that_fails_is_said_to_the_claim_that_asked():
    source = _source(FakeProcesses(SECONDS, fails={5}))
    with pytest.raises(SampleFailed, match="no such thing") as caught:
        source.pair(*_labels(ON_GPU[0]), head_first=False, benchmarks=["036"])
    assert caught.value.benchmarks == ("036",)


def test_pairs_of_which_both_processes_were_throttled_are_discarded():
    source = _source(FakeProcesses(SECONDS, throttled={0, 1}))
    spoilt = source.pair(*_labels(ON_GPU[0]), head_first=False, benchmarks=["036"])["036"]
    sound = source.pair(*_labels(ON_GPU[1]), head_first=False, benchmarks=["038"])["038"]
    assert "was throttled during both" in (spoilt.discarded or "")
    assert sound.discarded is None


def test_readings_say_claim_and_figure():
    source = _source(FakeProcesses(SECONDS))
    source.pair(*_labels(ON_GPU[3]), head_first=False, benchmarks=["064"])
    [pairs] = source.pairs["064"]
    assert pairs["itl_p99"].base.benchmark == "064 itl_p99"
    assert pairs[SECONDS_PER_TOKEN].base.samples == (SECONDS[4],)
