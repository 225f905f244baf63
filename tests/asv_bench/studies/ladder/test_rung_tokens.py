"""Every rung generates what today's engine generates, and a broken one does not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ladder_faults import BROKEN, SAME_TOKENS, parts_of

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.studies.ladder.model import seeded_model
from asv_bench.studies.ladder.rung_build import build_rung
from asv_bench.studies.ladder.rung_engine import RungEngine
from asv_bench.studies.ladder.rungs import RUNGS, rung_named, rungs_between
from asv_bench.studies.ladder.token_check import (
    BLOCK_SIZE,
    LENGTHS,
    NEW_TOKENS,
    SHARED_LENGTH,
    check_config,
    check_prompts,
    check_rung,
    require_near_tie,
    run_check,
)
from engine import Engine, EngineConfig, SamplingParams

MODEL = "random:gpt2-tiny"
VOCAB = 1024
PARAMS = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
ROOT = Path(__file__).resolve().parents[4]
ON_CPU = [rung for rung in RUNGS if rung.needs == "any"]


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """Each prompt by itself, without a prefix cache: what every rung must repeat in any batch."""
    engine = Engine(EngineConfig(device="cpu", prefix_cache=False, max_batch_size=1))
    return [one.token_ids for one in engine.generate(check_prompts(VOCAB), PARAMS)]


def test_the_prompts_visit_boundaries_and_share_a_partly_filled_block(alone):
    ends = {length % BLOCK_SIZE for length in LENGTHS}
    assert {0, 1, BLOCK_SIZE - 1} <= ends
    assert SHARED_LENGTH % BLOCK_SIZE
    assert NEW_TOKENS > 2 * BLOCK_SIZE
    prompts = check_prompts(VOCAB)
    assert all(prompt[:SHARED_LENGTH] == prompts[0] for prompt in prompts[-3:])
    assert len({tuple(tokens) for tokens in alone}) == len(alone)


@pytest.mark.parametrize("rung", ON_CPU, ids=lambda rung: rung.label)
def test_rungs_generate_the_same_tokens(rung, alone):
    assert check_rung(rung, MODEL, "cpu") == alone


@pytest.mark.parametrize("number", [3, 4])
def test_rungs_of_kernels_do_too_with_their_kernels_in_torch(number, alone):
    engine = RungEngine(check_config(MODEL, "cpu", "float32"), parts_of(number))
    assert run_check(engine, VOCAB) == alone
    engine.check_integrity()


def test_shared_blocks_are_really_shared_and_copied(monkeypatch):
    copies = []
    engine = RungEngine(check_config(MODEL, "cpu", "float32"), parts_of(6))
    copy_block = engine.path.blocks._copy_block
    engine.path.blocks._copy_block = lambda *places: (copies.append(places), copy_block(*places))
    run_check(engine, VOCAB)
    layers = engine.model_config.num_layers
    # The first prompt's own next token, and each of the three that share its last block.
    assert len(copies) >= 4 * layers


@pytest.mark.parametrize("fault", sorted(BROKEN.keys() - SAME_TOKENS - {"freed once"}))
def test_a_broken_rung_generates_other_tokens(fault, alone):
    engine = RungEngine(check_config(MODEL, "cpu", "float32"), BROKEN[fault])
    assert run_check(engine, VOCAB) != alone


def test_a_rung_that_frees_twice_falls_over():
    engine = RungEngine(check_config(MODEL, "cpu", "float32"), BROKEN["freed once"])
    with pytest.raises(AttributeError, match="layer"):
        run_check(engine, VOCAB)


KERNELS = """
import torch
from asv_bench.studies.ladder.rung_build import build_rung
from asv_bench.studies.ladder.rungs import RUNGS, interpreting
from engine import EngineConfig, SamplingParams
assert interpreting()
prompts = [[5] * 15, [7, 8], [9]]
params = SamplingParams(max_new_tokens=4, ignore_eos=True)
config = EngineConfig(device="cpu", dtype="float32", block_size=16, max_batch_size=4,
                      max_model_len=32, num_kv_blocks=16, prefix_cache=False)
seen = []
for number in (2, 3, 4):
    engine = build_rung(RUNGS[number], config)
    tokens = {engine.submit(prompt, params): [] for prompt in prompts}
    while engine.has_unfinished:
        for event in engine.step():
            tokens[event.request_id].append(event.token_id)
    engine.check_integrity()
    seen.append(list(tokens.values()))
assert all(tokens == seen[0] for tokens in seen), seen
print("equal")
"""


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="on a GPU test_rungs_on_gpu runs the kernels themselves"
)
@pytest.mark.thorough
def test_rungs_of_kernels_agree_through_the_interpreter():
    # Triton decides when a kernel is defined whether to interpret it: another process.
    variables = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KERNELS],
        env=variables, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip().endswith("equal"), done.stderr[-2000:]


def test_rungs_of_a_gpu_are_refused_on_a_cpu():
    config = check_config(MODEL, "cpu", "float32")
    for rung in RUNGS:
        assert rung.runs_on("cpu") == (rung.needs == "any")
        if rung.needs != "any":
            with pytest.raises(Refused, match=f"{rung.label} does not run on a CPU"):
                build_rung(rung, config)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_new_tokens=2, temperature=1.0, ignore_eos=True),
        SamplingParams(max_new_tokens=2),
        SamplingParams(max_new_tokens=2, ignore_eos=True, stop_token_ids=(3,)),
        SamplingParams(max_new_tokens=500, ignore_eos=True),
    ],
    ids=str,
)
def test_requests_that_a_rung_cannot_run_are_refused(params):
    engine = RungEngine(check_config(MODEL, "cpu", "float32"), parts_of(0))
    with pytest.raises(Refused):
        engine.submit([1], params)
    assert not engine.has_unfinished


@pytest.mark.parametrize("num_kv_blocks", [4, 5, 8, 9])
def test_a_rung_waits_for_blocks_and_gives_up_what_it_keeps(num_kv_blocks):
    config = EngineConfig(
        device="cpu",
        block_size=16,
        max_batch_size=4,
        max_model_len=64,
        num_kv_blocks=num_kv_blocks,
    )
    engine = RungEngine(config, parts_of(6))
    prompts = [[token] * 20 for token in range(1, 7)]
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    ids = [engine.submit(prompt, params) for prompt in prompts]
    tokens = {request: 0 for request in ids}
    while engine.has_unfinished:
        for event in engine.step():
            tokens[event.request_id] += 1
        engine.check_integrity()
    assert set(tokens.values()) == {20}


def test_a_request_that_could_never_be_admitted_is_refused():
    config = EngineConfig(device="cpu", block_size=16, max_model_len=64, num_kv_blocks=3)
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    with pytest.raises(Refused, match="up to 4 blocks"):
        RungEngine(config, parts_of(6)).submit([1] * 20, params)
    alone = RungEngine(replace(config, prefix_cache=False), parts_of(6))
    alone.submit([1] * 20, params)
    while alone.has_unfinished:
        alone.step()
    alone.check_integrity()


def test_rungs_are_named_and_chosen_by_number():
    assert rung_named("2-batched-append") is RUNGS[2]
    assert [rung.number for rung in rungs_between("0,3-5")] == [0, 3, 4, 5]
    assert rungs_between("0-10") == RUNGS
    for text in ("", "a", "5-3", "0-11", "-1"):
        with pytest.raises(Refused, match="--rungs"):
            rungs_between(text)
    with pytest.raises(Refused, match="there is no rung"):
        rung_named("2-batch")


def test_only_near_ties_may_part():
    half = seeded_model(MODEL, device="cpu", dtype="float16", seed=0)
    exact = half.in_float32()
    known = check_prompts(VOCAB)[3]
    [best] = Engine(EngineConfig(device="cpu", dtype="float16")).generate(
        [known], SamplingParams(max_new_tokens=1, ignore_eos=True)
    )
    token = best.token_ids[0]
    require_near_tie(half, exact, known, (token, token), RUNGS[9])
    with pytest.raises(MeasurementFailed, match="9-fused generated token"):
        require_near_tie(half, exact, known, ((token + 1) % VOCAB, token), RUNGS[9])


def test_a_prompt_that_is_known_as_a_whole_is_computed_again(alone):
    engine = RungEngine(check_config(MODEL, "cpu", "float32"), parts_of(6))
    prompt = check_prompts(VOCAB)[0]
    for _ in range(2):
        tokens = []
        engine.submit(prompt, PARAMS)
        while engine.has_unfinished:
            tokens += [event.token_id for event in engine.step()]
        assert tokens == alone[0]
    engine.check_integrity()
