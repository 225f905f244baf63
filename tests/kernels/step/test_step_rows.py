"""What `tune` accepts: steps as close to full precision as unfused ones, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from asv_bench.lab.tune.candidates import Rejected, StepPoint
from asv_bench.lab.tune.step_bench import StepRows
from engine.models.decoder import Decoder
from engine.models.gpt2 import gpt2
from engine.models.random_weights import random_weights
from kernels.tiles.table import committed_table
from kernels.tiles.tile import LinearTile

CONFIG = gpt2(
    vocab_size=200,
    max_positions=256,
    num_layers=1,
    num_heads=2,
    hidden_size=64,
    inner_size=128,
    activation="gelu_new",
)


@pytest.fixture(scope="module")
def rows(triton_device: torch.device) -> StepRows:
    weights = random_weights(CONFIG, seed=3, device=triton_device, dtype=torch.float16)
    exact = Decoder(CONFIG, {name: one.float() for name, one in weights.items()})
    return StepRows(Decoder(CONFIG, weights), exact, StepPoint(3, 70))


@dataclass
class Spoilt:
    """A fused step after which something is changed."""

    fused: Any
    spoil: Any
    steps: int = 0

    def step(self, num_rows: int) -> None:
        self.fused.step(num_rows)
        self.steps += 1
        self.spoil(self)

    @property
    def best_of_tiles(self) -> torch.Tensor:
        return self.fused.best_of_tiles


def test_a_step_is_accepted_however_it_is_cut(rows: StepRows) -> None:
    rows.check(rows.fused)
    table = committed_table()
    place = table.place(3)
    narrow = table.with_tile(place, "head", LinearTile(16, 64, 32))
    narrow = narrow.with_tile(place, "feed_forward_out", LinearTile(16, 16, 32, split_k=2))
    rows.check(rows.fused.retabled(narrow))


def shift_logits(step: Spoilt) -> None:
    step.fused.best_of_tiles.add_(0.1)


def lose_logits(step: Spoilt) -> None:
    step.fused.best_of_tiles[0, 0] = float("nan")


def differ(step: Spoilt) -> None:
    if step.steps == 2:
        step.fused.best_of_tiles[0, 0] += 1e-6 + step.fused.best_of_tiles[0, 0].abs() * 1e-6


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (shift_logits, "the logits are"),
        (lose_logits, "does not repeat|the logits are"),
        (differ, "does not repeat"),
    ],
)
def test_wrong_logits_are_refused(rows: StepRows, spoil: Any, sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence):
        rows.check(Spoilt(rows.fused, spoil))


def test_another_token_is_refused(rows: StepRows) -> None:
    def next_token(step: Spoilt) -> None:
        rows._rows.fields.last_token.add_(1).remainder_(CONFIG.vocab_size)

    with pytest.raises(Rejected, match="token's score lies"):
        rows.check(Spoilt(rows.fused, next_token))


def test_a_step_that_does_not_append_is_refused(rows: StepRows) -> None:
    def forget(step: Spoilt) -> None:
        rows._cache.values[0, rows._blocks(), 0, rows._slot] = 0.0

    with pytest.raises(Rejected, match="appended keys and values"):
        rows.check(Spoilt(rows.fused, forget))


def test_every_check_starts_from_the_same_rows(rows: StepRows) -> None:
    state = rows._rows.fields
    rows.reset()
    before = [one.clone() for one in (state.last_token, state.position, state.remaining)]
    rows.fused.step(3)
    assert not torch.equal(state.position, before[1])
    rows.reset()
    after = (state.last_token, state.position, state.remaining)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert before[1].tolist() == [69] * 3
