"""Every rung generates what today's engine generates, and a broken one does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.studies.ladder.appends import IndexedAppend, NarrowestKernelAppend
from asv_bench.studies.ladder.block_managers import MutableBlocks, TupleBlocks
from asv_bench.studies.ladder.block_tables import CachedRows
from asv_bench.studies.ladder.model import seeded_model
from asv_bench.studies.ladder.rung_build import PARTS, build_rung
from asv_bench.studies.ladder.rung_engine import RungEngine
from asv_bench.studies.ladder.rungs import RUNGS
from asv_bench.studies.ladder.token_check import (
    NEW_TOKENS,
    check_config,
    check_fused,
    check_prompts,
    check_rung,
    require_near_tie,
    run_check,
)
from engine import Engine, EngineConfig, SamplingParams

pytestmark = pytest.mark.thorough
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a CUDA GPU: run `nox -s tests -- -m thorough` on one",
)
MODEL = "random:gpt2-tiny"
VOCAB = 1024
PARAMS = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)


class WrongRowAfterBoundary(CachedRows):
    """Keeps a row for good: it lacks the block that a boundary brings."""

    def _row(self, sequence, layer):
        if layer in sequence.rows:
            return sequence.rows[layer][1]
        return super()._row(sequence, layer)


class ForgottenCopyOnWrite(TupleBlocks):
    """Appends to a shared block in place."""

    def _copy_on_write(self, layer, block_ids):
        pass


class StaleLength(MutableBlocks):
    """Forgets to lengthen the blocks of the fast path."""

    def append_token_batch(self, layer, sequences):
        before = {ids[-1]: self.infos[ids[-1]].length for ids in sequences if ids}
        slots = super().append_token_batch(layer, sequences)
        for row in slots.rows:
            block_id = sequences[row][-1]
            self.infos[block_id].length = before[block_id]
        return slots


class PositionsTakenForCommon(NarrowestKernelAppend):
    """Writes every row at the first one's position."""

    def write_fast(self, keys, values, slots, key, value):
        common = replace(slots, positions=[slots.positions[0]] * len(slots.positions))
        super().write_fast(keys, values, common, key, value)


class SlowRowsUnwritten(IndexedAppend):
    """Writes the fast path only."""

    def write(self, keys, values, slots, key, value):
        if slots.rows:
            self.write_fast(keys, values, slots, key, value)


BROKEN = (
    (0, {"blocks": ForgottenCopyOnWrite}),
    (1, {"tables": WrongRowAfterBoundary}),
    (2, {"append": SlowRowsUnwritten}),
    (4, {"append": PositionsTakenForCommon}),
    (5, {"blocks": StaleLength}),
)


def rung_engine(number: int, **parts: type) -> RungEngine:
    """A rung on a CPU, where its kernels run in torch."""
    own = PARTS[RUNGS[number].name]
    return RungEngine(check_config(MODEL, "cpu", "float32"), replace(own, **parts))


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """Each prompt by itself, without a prefix cache: what every rung must repeat in any batch."""
    engine = Engine(EngineConfig(device="cpu", prefix_cache=False, max_batch_size=1))
    return [one.token_ids for one in engine.generate(check_prompts(VOCAB), PARAMS)]


@pytest.mark.parametrize("number", range(7))
def test_rungs_generate_the_same_tokens_and_leave_sound_books(number, alone):
    engine = rung_engine(number)
    assert run_check(engine, VOCAB) == alone
    engine.check_integrity()


def test_todays_engine_does_too(alone):
    assert check_rung(RUNGS[7], MODEL, "cpu") == alone


@pytest.mark.parametrize(("number", "parts"), BROKEN)
def test_a_broken_rung_generates_other_tokens(number, parts, alone):
    assert run_check(rung_engine(number, **parts), VOCAB) != alone


@needs_gpu
@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.label)
def test_rungs_generate_on_a_gpu_what_they_do_on_a_cpu(rung):
    assert check_rung(rung, MODEL, "cuda") == check_rung(RUNGS[0], MODEL, "cpu")


@needs_gpu
@pytest.mark.parametrize("number", [9, 10])
def test_fused_rungs_part_at_near_ties_only(number):
    assert check_fused(RUNGS[number], "random:gpt2", "cuda") <= 4


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


def test_rungs_of_a_gpu_are_refused_on_a_cpu():
    config = check_config(MODEL, "cpu", "float32")
    for rung in RUNGS:
        assert rung.runs_on("cpu") == (rung.needs == "any")
        if rung.needs != "any":
            with pytest.raises(Refused, match=f"{rung.label} does not run on a CPU"):
                build_rung(rung, config)
