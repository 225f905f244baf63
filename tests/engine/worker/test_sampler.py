"""Sampling: the right token, the right distribution, and the same one every time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from engine.worker import sampler
from engine.worker.sampler import INVALID_TOKEN, sample, sample_greedy, uniform

VOCAB = 50


def _draw(logits, *, temperature=1.0, top_k=0, top_p=1.0, seeds=None, position=0):
    rows = len(logits)
    return sample(
        logits,
        torch.full((rows,), temperature, dtype=torch.float32),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p, dtype=torch.float32),
        torch.arange(rows, dtype=torch.int64) if seeds is None else seeds,
        torch.full((rows,), position, dtype=torch.int32),
    )


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 2


def test_greedy_takes_the_lowest_id_among_equals():
    logits = torch.tensor([[0.0, 3.0, 3.0], [5.0, 1.0, 5.0]])
    assert sample_greedy(logits).tolist() == [1, 0]


def test_rows_that_are_not_numbers_are_marked():
    logits = torch.tensor([[0.0, float("nan"), 3.0], [5.0, 1.0, 2.0]])
    assert sample_greedy(logits).tolist() == [INVALID_TOKEN, 0]
    assert _draw(logits).tolist()[0] == INVALID_TOKEN


def test_temperature_zero_is_greedy_beside_sampled_rows(logits):
    rows = logits.repeat(4, 1)
    tokens = sample(
        rows,
        torch.tensor([0.0, 1.0, 0.0, 1.0]),
        torch.zeros(4, dtype=torch.int32),
        torch.ones(4),
        torch.arange(4),
        torch.zeros(4, dtype=torch.int32),
    )
    assert tokens[0] == tokens[2] == logits.argmax()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(logits, temperature):
    draws = 20_000
    tokens = _draw(logits.expand(draws, -1), temperature=temperature)
    expected = torch.softmax(logits.double() / temperature, -1).numpy() * draws
    observed = np.bincount(tokens.numpy(), minlength=VOCAB)
    # Rare tokens share one bin, and it takes the rarest of the others along so as not to be empty.
    order = np.argsort(expected)
    num_pooled = int(np.searchsorted(expected[order].cumsum(), 20)) + 1
    pooled, own = order[:num_pooled], order[num_pooled:]
    observed = np.append(observed[own], observed[pooled].sum())
    expected = np.append(expected[own], expected[pooled].sum())
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_top_k_draws_only_from_the_k_likeliest(logits):
    tokens = set(_draw(logits.expand(2000, -1), temperature=3.0, top_k=5).tolist())
    assert tokens == set(logits.topk(5).indices.tolist())


def test_top_p_draws_from_the_smallest_set_that_reaches_it(logits):
    probability, order = torch.softmax(logits.double(), -1).sort(descending=True)
    count = int((probability.cumsum(-1) < 0.7).sum()) + 1
    tokens = set(_draw(logits.expand(20_000, -1), top_p=0.7).tolist())
    assert tokens == set(order[:count].tolist())


def test_top_p_applies_to_what_top_k_left():
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    # Among the two likeliest, 0.4 / 0.7 reaches 0.5 alone; among all four it takes two.
    assert set(_draw(logits.expand(500, -1), top_k=2, top_p=0.5).tolist()) == {0}
    assert set(_draw(logits.expand(500, -1), top_p=0.5).tolist()) == {0, 1}


def test_tiny_temperature_and_tiny_top_p_take_the_likeliest(logits):
    rows = logits.expand(100, -1)
    assert set(_draw(rows, temperature=1e-30).tolist()) == {int(logits.argmax())}
    assert set(_draw(rows, top_p=1e-30).tolist()) == {int(logits.argmax())}


def test_extreme_logits_are_sampled_without_overflow():
    logits = torch.tensor([[1e30, -1e30, 0.0, 9e29]]).repeat(50, 1)
    assert set(_draw(logits, temperature=0.1).tolist()) == {0}


def test_a_row_draws_the_same_alone_as_in_any_batch(logits):
    rows = logits.repeat(8, 1) + torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(1))
    seeds = torch.arange(8) * 7919
    together = _draw(rows, seeds=seeds, position=5)
    for row in range(8):
        alone = _draw(rows[row : row + 1], seeds=seeds[row : row + 1], position=5)
        assert alone[0] == together[row]


def test_uniform_is_uniform_over_positions_and_over_seeds():
    over_positions = uniform(torch.zeros(20_000, dtype=torch.int64), torch.arange(20_000))
    over_seeds = uniform(torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64))
    for numbers in (over_positions.numpy(), over_seeds.numpy()):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert stats.kstest(numbers, "uniform").pvalue > 1e-3
        # Neighbours are unrelated, too: no lag-1 correlation beyond chance.
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_uniform_matches_splitmix64_in_python():
    mask = (1 << 64) - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    for seed, position in ((0, 0), (1, 5), (-3, 1023), (2**62 + 11, 77)):
        state = (mix(seed & mask) + (position + 1) * 0x9E3779B97F4A7C15) & mask
        expected = (mix(state) >> 11) * 2.0**-53
        assert float(uniform(torch.tensor([seed]), torch.tensor([position]))[0]) == expected


@pytest.mark.parametrize(
    ("probabilities", "top_p", "nucleus"),
    [
        ([0.3, 0.1, 0.1, 0.5], 0.8, {0, 3}),
        ([0.1, 0.2, 0.3, 0.4], 0.7, {2, 3}),
        ([0.6, 0.3, 0.1], 0.9, {0, 1}),
        ([0.9, 0.09, 0.009, 0.001], 0.999, {0, 1, 2}),
        ([0.7, 0.2, 0.1], 0.7, {0}),
        ([0.25, 0.25, 0.25, 0.25], 0.5, {0, 1}),
        ([0.1] * 10, 0.3, {0, 1, 2}),
        ([0.02] * 50, 0.58, set(range(29))),
        ([0.3, 0.1, 0.1, 0.5], 0.8001, {0, 1, 3}),
        ([0.3, 0.1, 0.1, 0.5], 0.7999, {0, 3}),
        ([0.3, 0.1, 0.1, 0.5], 0.5001, {0, 3}),
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_nucleus_ends_with_the_token_that_reaches_top_p_exactly(
    probabilities, top_p, nucleus, temperature
):
    logits = torch.log(torch.tensor(probabilities)) * temperature
    drawn = _draw(logits.expand(4000, -1), top_p=top_p, temperature=temperature)
    assert set(drawn.tolist()) == nucleus


def test_top_p_reached_exactly_among_what_top_k_left():
    logits = torch.log(torch.tensor([0.1, 0.25, 0.4, 0.15, 0.1]))
    # The three likeliest are renormalised to 0.5, 0.3125 and 0.1875.
    drawn = _draw(logits.expand(4000, -1), top_k=3, top_p=0.8125)
    assert set(drawn.tolist()) == {1, 2}


def test_top_p_of_one_keeps_the_tail(monkeypatch):
    """Sums of float32 reach 1 thousands of tokens before the end of a vocabulary."""
    logits = torch.randn(50_257, generator=torch.Generator().manual_seed(0)) * 4
    probability, order = logits.double().softmax(-1).sort(descending=True)
    within_the_tail = 1 - 1e-6
    expected = order[int((probability.cumsum(-1) <= within_the_tail).sum())]
    monkeypatch.setattr(
        sampler, "uniform", lambda *_: torch.tensor([within_the_tail], dtype=torch.float64)
    )
    assert _draw(logits[None], top_p=1.0).tolist() == [int(expected)]
    assert probability[order == expected] < 1e-9
