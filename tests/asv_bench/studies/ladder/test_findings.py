"""What pairs say of a claim, and which claims a machine can try."""

from __future__ import annotations

import pytest
from fake_rungs import FakeProcesses, Silent

from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.measure.lives import Place
from asv_bench.measure.processes import LifeFailed
from asv_bench.studies.ladder.claims import CLAIMS, SECONDS_PER_TOKEN, claims_named, trials_here
from asv_bench.studies.ladder.ladder_run import measure_waterfall, processes_expected, try_claims
from asv_bench.studies.ladder.rungs import RUNGS

ON_CPU = [rung for rung in RUNGS if rung.needs == "any"]


def _try(processes, pairs=12, trials=None, devices=("one",)):
    trials = trials or trials_here(CLAIMS, RUNGS, "cuda")
    samples: list[dict] = []
    places = [Place(name=device) for device in devices]
    plan = ComparisonPlan.with_cap(pairs)
    found = try_claims(processes, trials, places, plan, Silent(), samples)
    return {one.trial.claim.seed: one for one in found}, samples


def test_reported_changes_are_those_of_the_write_ups():
    throughput = [round(100 * claim.reported[0].change, 2) for claim in CLAIMS]
    assert throughput == [2.48, 131.35, 1.52, 2.62, 0.92]
    assert [claim.workload for claim in CLAIMS] == [
        *("scheduler", "scheduler", "streaming", "streaming-small", "streaming-small")
    ]


def test_a_gpu_tries_every_claim_on_its_own_rungs():
    trials = trials_here(CLAIMS, RUNGS, "cuda")
    assert [(one.base.number, one.head.number) for one in trials] == [
        *((0, 1), (1, 2), (3, 4), (4, 5), (5, 6))
    ]
    assert all(one.is_as_claimed for one in trials)


def test_a_cpu_tries_what_needs_no_kernels_with_a_stand_in_for_the_rung_before():
    trials = trials_here(CLAIMS, ON_CPU, "cpu")
    assert [(one.claim.seed, one.base.number, one.head.number) for one in trials] == [
        *(("036", 0, 1), ("038", 1, 2), ("064", 2, 5), ("065", 5, 6))
    ]
    assert [one.is_as_claimed for one in trials] == [True, True, False, True]


def test_a_rung_that_was_left_out_is_not_stood_in_for():
    assert not trials_here(CLAIMS, [RUNGS[0], RUNGS[2]], "cpu")
    assert [one.claim.seed for one in trials_here(CLAIMS, [RUNGS[5], RUNGS[6]], "cpu")] == ["065"]


def test_claims_are_chosen_by_their_seeds():
    assert [claim.seed for claim in claims_named("064, 036")] == ["036", "064"]
    assert claims_named(None) == CLAIMS
    assert claims_named("") == ()
    with pytest.raises(Refused, match="--claims names '037'"):
        claims_named("037")


def test_a_plain_gain_is_faster_by_as_much():
    found, samples = _try(FakeProcesses({0: 2e-3, 1: 1e-3, 2: 1e-3}, noise=0.002))
    claim = found["036"]
    assert claim.comparison.verdict is Verdict.FASTER
    throughput, tpot = claim.figures
    assert throughput.change == pytest.approx(1.0, rel=0.05)
    assert throughput.interval[0] < throughput.change < throughput.interval[1]
    assert tpot.change == pytest.approx(-0.5, rel=0.05)
    assert throughput.before == pytest.approx(500, rel=0.05)
    assert tpot.after == pytest.approx(1.0, rel=0.05)
    assert found["065"].comparison.verdict is Verdict.EQUIVALENT
    pairs = {seed: one.comparison.pairs_used for seed, one in found.items()}
    assert len(samples) == sum(pairs[one.seed] * len(one.reported) for one in CLAIMS)


def test_a_loss_is_slower():
    found, _ = _try(FakeProcesses({0: 1e-3, 1: 1.1e-3}, noise=0.005))
    assert found["036"].comparison.verdict is Verdict.SLOWER
    assert found["036"].figures[0].change == pytest.approx(1 / 1.1 - 1, rel=0.1)


def test_noise_hides_a_small_gain():
    found, _ = _try(FakeProcesses({0: 1.005e-3, 1: 1e-3}, noise=0.05))
    assert found["036"].comparison.verdict is Verdict.INCONCLUSIVE


def test_several_devices_share_the_pairs():
    processes = FakeProcesses({0: 2e-3, 1: 1e-3, 2: 1e-3}, noise=0.002)
    found, samples = _try(processes, devices=("one", "two", "three", "four"))
    assert found["036"].comparison.verdict is Verdict.FASTER
    assert {device for device, *_ in processes.ran} == {"one", "two", "three", "four"}
    ratios = [(sample["benchmark"], sample["log_ratio"]) for sample in samples]
    assert len(set(ratios)) == len(ratios), "every pair is recorded once"


def test_a_rung_that_fails_leaves_the_other_claims():
    found, _ = _try(
        FakeProcesses({1: 1e-3, 2: 0.5e-3}, noise=0.01, fails={0}),
        trials=trials_here(CLAIMS[:1], RUNGS, "cuda"),
    )
    assert found["036"].comparison.verdict is Verdict.FAILED
    assert "no such thing" in found["036"].comparison.reason
    assert found["036"].figures[0].change is None


def test_the_waterfall_measures_and_checks_every_rung():
    watcher = Silent()
    processes = FakeProcesses({0: 4e-3, 1: 2e-3})
    rungs = measure_waterfall(
        processes, RUNGS[:3], [Place(name="one"), Place(name="two")], watcher, is_exact=True
    )
    assert [rung.step_ms for rung in rungs] == [4.0, 2.0, 1.0]
    assert sorted(watcher.rungs) == [0, 1, 2]
    assert all(check and workloads == ("scheduler",) for _, _, workloads, check in processes.ran)
    assert rungs[2].counters["operators"] == 2
    assert (rungs[1].same_requests, rungs[1].requests) == (2, 2)
    assert processes_expected(RUNGS[:3], trials_here(CLAIMS, RUNGS[:3], "cpu"), 8) == 3 + 8 * 2 * 2


def test_other_tokens_are_refused():
    one = [Place(name="one")]
    with pytest.raises(MeasurementFailed, match=r"rung 2-batched-append .* 1 of 3 requests of the"):
        measure_waterfall(
            FakeProcesses(checks={2: ["c", "x", "e"]}), RUNGS[:3], one, Silent(), is_exact=False
        )
    other = FakeProcesses(digests={1: ["a", "x"]})
    with pytest.raises(MeasurementFailed, match=r"rung 1-row-cache .* 1 of 2 requests of sch"):
        measure_waterfall(other, RUNGS[:3], one, Silent(), is_exact=True)
    rungs = measure_waterfall(other, RUNGS[:3], one, Silent(), is_exact=False)
    assert [rung.same_requests for rung in rungs] == [2, 1, 2]


def test_a_rung_that_does_not_start_ends_the_waterfall():
    processes = FakeProcesses(fails={1})
    with pytest.raises(LifeFailed, match="no such thing"):
        measure_waterfall(processes, RUNGS[:3], [Place(name="one")], Silent(), is_exact=True)
    assert processes.is_stopped


def test_the_first_reported_figure_is_what_the_verdict_is_about():
    assert {claim.reported[0].figure for claim in CLAIMS} == {SECONDS_PER_TOKEN}
