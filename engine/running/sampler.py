"""From logits to token ids, on the device, without a host synchronization.

Random numbers are counter-based: a row's draw depends on its seed and on the position of the
token being chosen, never on the step, the row or the batch. So from the same logits a request
samples the same tokens alone, in any batch, and after a preemption.
"""

from __future__ import annotations

import torch

INVALID_TOKEN = -1
"""Sampled in place of a token where a row's logits are not numbers."""

_MASK_64 = (1 << 64) - 1

_SHORT_OF_TOP_P = 1e-6
"""A sum that falls short of `top_p` by no larger part than this has reached it: float32, which
logits and `top_p` come in, rounds by less, and .5 + .3 must reach .8."""


def sample_greedy(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row.

    Parameters
    ----------
    logits
        [N, V], any float dtype.

    Returns
    -------
    int32 [N]; the lowest id where several tie, `INVALID_TOKEN` where a row holds NaN.
    """
    best, token = logits.max(dim=-1)
    return torch.where(best.isnan(), INVALID_TOKEN, token).to(torch.int32)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """Draw one token a row: temperature, then top-k, then top-p, then the inverse of the CDF.

    Top-p keeps the nucleus: the fewest of the likeliest tokens whose probabilities, renormalised
    over what top-k kept, sum to at least `top_p`, as far as float32 can tell. Of equally likely
    tokens the lower ids come first. A `top_p` of 1 keeps every token.

    Parameters
    ----------
    logits
        [N, V], any float dtype.
    temperature, top_p
        float32 [N]; a temperature of 0 takes the likeliest token.
    top_k
        int32 [N]; 0 keeps all.
    seed
        int64 [N].
    position
        int32 [N], the place of the chosen token in its sequence.

    Returns
    -------
    int32 [N]; `INVALID_TOKEN` where a row's logits are not numbers.
    """
    greedy = sample_greedy(logits)
    is_greedy = temperature == 0
    divisor = torch.where(is_greedy, 1.0, temperature)
    # The maximum is taken out before dividing: a tiny temperature must not overflow to infinity.
    logits = logits.float()
    scaled = (logits - logits.amax(-1, keepdim=True)) / divisor[:, None]
    sorted_logits, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    beyond_k = (rank >= top_k[:, None]) & (top_k[:, None] > 0)
    probability = sorted_logits.masked_fill(beyond_k, -torch.inf).softmax(-1, dtype=torch.float64)
    cumulative = probability.cumsum(-1)
    reach = torch.where(top_p < 1, top_p.double() * (1 - _SHORT_OF_TOP_P), torch.inf)
    # A token stays while the likelier ones together have not reached top_p: the first always does.
    is_kept = (cumulative - probability < reach[:, None]) & (probability > 0)
    furthest = (is_kept.sum(-1) - 1).clamp(min=0)
    threshold = uniform(seed, position) * cumulative.gather(-1, furthest[:, None]).squeeze(-1)
    # Tokens of probability 0 span no part of the CDF; the last with any is the furthest choice.
    chosen = torch.minimum((cumulative <= threshold[:, None]).sum(-1), furthest)
    drawn = order.gather(-1, chosen[:, None]).squeeze(-1).to(torch.int32)
    return torch.where(is_greedy | (greedy == INVALID_TOKEN), greedy, drawn)


def uniform(seed: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """A number in [0, 1) from each (seed, position): float64 [N].

    SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): the
    seed, mixed once so that neighbouring seeds do not share a stream, then the position-th output.
    """
    state = _mix(seed) + (position.to(torch.int64) + 1) * _signed(0x9E3779B97F4A7C15)
    return _shift_right(_mix(state), 11).to(torch.float64) * 2.0**-53


def _mix(state: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finalizer; int64 arithmetic wraps, as it must."""
    state = (state ^ _shift_right(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shift_right(state, 27)) * _signed(0x94D049BB133111EB)
    return state ^ _shift_right(state, 31)


def _shift_right(state: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift: torch's own carries the sign of an int64 along."""
    return (state >> bits) & (_MASK_64 >> bits)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
