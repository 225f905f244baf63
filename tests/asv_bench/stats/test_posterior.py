"""The posterior over the first bad commit: what pairs say, what is asked next."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from asv_bench.stats.posterior import (
    DEGREES_OF_FREEDOM,
    EFFECTS,
    NOISES,
    PRIOR_OF_NONE,
    REFERENCE,
    FirstBad,
)


def quiet_ratios(effect: float, pairs: int = 8) -> list[float]:
    """Log-ratios around an effect, a fifth of a per cent apart."""
    return [math.log1p(effect) + 0.002 * step / pairs for step in range(-pairs // 2, pairs // 2)]


def certain_of(first_bad: int, count: int, effect: float = 0.03) -> FirstBad:
    posterior = FirstBad(count)
    for commit in range(count):
        posterior.observe(REFERENCE, commit, quiet_ratios(effect if commit >= first_bad else 0.0))
    return posterior


def test_weights_are_those_of_bayes_rule_by_brute_force() -> None:
    posterior = FirstBad(3)
    seen = [(REFERENCE, 2, 0.031), (REFERENCE, 1, -0.004), (0, 1, 0.02), (REFERENCE, 2, 0.3)]
    for reference, commit, ratio in seen:
        posterior.observe(reference, commit, [ratio])
    weights = np.zeros((4, EFFECTS.size, NOISES.size))
    for first_bad in range(4):
        prior = PRIOR_OF_NONE if first_bad == 3 else (1 - PRIOR_OF_NONE) / 3
        for place, effect in enumerate(EFFECTS):
            for scale_place, scale in enumerate(NOISES):
                likelihood = prior
                for reference, commit, ratio in seen:
                    mean = effect if reference < first_bad <= commit else 0.0
                    likelihood *= student.pdf(ratio, DEGREES_OF_FREEDOM, mean, scale)
                weights[first_bad, place, scale_place] = likelihood
    np.testing.assert_allclose(posterior.joint, weights / weights.sum(), rtol=1e-9)


def test_before_any_pair_every_commit_is_equally_suspect() -> None:
    probabilities = FirstBad(8).probabilities
    np.testing.assert_allclose(probabilities, [(1 - PRIOR_OF_NONE) / 8] * 8 + [PRIOR_OF_NONE])


@pytest.mark.parametrize("first_bad", [0, 3, 9])
def test_clear_pairs_name_the_commit_and_its_effect(first_bad: int) -> None:
    posterior = certain_of(first_bad, 10)
    suspects = posterior.suspects()
    assert suspects.commits == range(first_bad, first_bad + 1)
    assert suspects.probability > 0.999
    assert posterior.effect == pytest.approx(math.log1p(0.03), abs=0.002)
    assert posterior.pairs_left() <= 1


def test_pairs_without_a_difference_say_that_there_is_none() -> None:
    suspects = certain_of(5, 5).suspects()
    assert not suspects.commits
    assert suspects.probability > 0.99


def test_one_outlier_does_not_decide() -> None:
    posterior = certain_of(6, 10)
    # A disturbed process: this commit looks 40 % slower once, and normal eight times.
    posterior.observe(REFERENCE, 2, [0.4])
    assert posterior.suspects().commits == range(6, 7)
    assert posterior.suspects().probability > 0.99


def test_pairs_that_agree_to_the_last_digit_do_not_make_an_offset_certain() -> None:
    """A layout that moves a harmless commit by 0.2 % leaves a step of 1 % in doubt."""
    posterior = FirstBad(2)
    posterior.observe(REFERENCE, 1, [0.01] * 16)
    posterior.observe(REFERENCE, 0, [0.002])
    assert posterior.suspects().commits == range(1, 2)
    assert 0.9 < posterior.suspects().probability < 0.98


def test_a_pair_of_two_candidates_speaks_only_of_the_commits_between_them() -> None:
    posterior = FirstBad(10)
    posterior.observe(REFERENCE, 9, quiet_ratios(0.03))
    posterior.observe(3, 6, quiet_ratios(0.03))
    probabilities = posterior.probabilities
    assert probabilities[4:7].sum() > 0.999
    np.testing.assert_allclose(probabilities[4:7], probabilities[4:7].mean())
    posterior.observe(4, 6, quiet_ratios(0.0))
    assert posterior.suspects().commits == range(4, 5)


def test_the_commit_in_the_middle_of_the_suspects_is_asked_first() -> None:
    posterior = FirstBad(64)
    posterior.observe(REFERENCE, 63, quiet_ratios(0.03, 16))
    assert posterior.most_informative() in (31, 32)
    posterior.observe(REFERENCE, 31, quiet_ratios(0.03))
    assert posterior.most_informative() in (15, 16)
    posterior.observe(REFERENCE, 15, quiet_ratios(0.0))
    assert posterior.most_informative() in (23, 24)


def test_quiet_pairs_measured_together_split_the_range_evenly() -> None:
    posterior = FirstBad(64)
    posterior.observe(REFERENCE, 63, quiet_ratios(0.05, 16))
    pending: list[int] = []
    for _ in range(3):
        pending.append(posterior.most_informative(pending))
    np.testing.assert_allclose(sorted(pending), [15, 31, 47], atol=5)


def test_noisy_pairs_measured_together_stay_near_the_middle() -> None:
    draws = np.random.default_rng(0)
    posterior = FirstBad(64)
    posterior.observe(REFERENCE, 63, 0.02 + 0.05 * draws.standard_normal(48))
    pending: list[int] = []
    for _ in range(3):
        pending.append(posterior.most_informative(pending))
    assert all(24 <= commit <= 40 for commit in pending)


def test_a_commit_that_cannot_be_measured_is_not_asked_for() -> None:
    posterior = FirstBad(16)
    posterior.observe(REFERENCE, 15, quiet_ratios(0.03))
    for commit in range(4, 12):
        posterior.exclude(commit)
    assert posterior.most_informative() in (3, 12)
    assert posterior.measurable() == [0, 1, 2, 3, 12, 13, 14, 15]


def test_neighbours_that_cannot_be_told_apart_are_suspects_together() -> None:
    posterior = FirstBad(10)
    for commit in (5, 6):
        posterior.exclude(commit)
    for commit in (4, 7, 9):
        posterior.observe(REFERENCE, commit, quiet_ratios(0.03 if commit >= 7 else 0.0))
    suspects = posterior.suspects()
    assert suspects.commits == range(5, 8)
    assert suspects.probability > 0.99


def test_fewer_pairs_are_left_the_more_is_known() -> None:
    posterior = FirstBad(64)
    posterior.observe(REFERENCE, 63, quiet_ratios(0.03, 16))
    before = posterior.pairs_left()
    posterior.observe(REFERENCE, 31, quiet_ratios(0.03))
    assert before > posterior.pairs_left() > 0


def test_a_single_candidate_can_still_be_asked() -> None:
    posterior = FirstBad(1)
    assert posterior.most_informative() == 0
    posterior.observe(REFERENCE, 0, quiet_ratios(0.03, 16))
    assert posterior.suspects().commits == range(1)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: FirstBad(0), "cannot hold"),
        (lambda: FirstBad(4).exclude(3), "cannot be left out"),
        (lambda: FirstBad(4).observe(2, 2, [0.0]), "an older one"),
        (lambda: FirstBad(4).observe(2, 1, [0.0]), "an older one"),
        (lambda: FirstBad(4).observe(REFERENCE, 4, [0.0]), "an older one"),
        (lambda: FirstBad(4).observe(REFERENCE, 1, [math.nan]), "finite"),
    ],
)
def test_what_makes_no_sense_is_refused(ask, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask()
