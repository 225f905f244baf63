"""From logits to token ids, on the device, without a host synchronization.

Random numbers are counter-based: a row's draw depends on its seed and on the position of the
token being chosen, never on the step, the row or the batch. So from the same logits a request
samples the same tokens alone, in any batch, and after a preemption.
"""

from __future__ import annotations

import torch

from kernels.backend import uses_triton
from kernels.sampling.reference import INVALID_TOKEN, draw_tokens, sample_greedy

__all__ = ("INVALID_TOKEN", "sample", "sample_greedy", "uniform")

_MASK_64 = (1 << 64) - 1

_SORTED = 1 << 16
"""Tokens of the largest vocabulary that is sorted. The vocabulary decides and not the number of
rows, lest a draw depend on its neighbours."""


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
    number = uniform(seed, position)
    if not uses_triton(logits) or logits.shape[-1] <= _SORTED:
        return draw_tokens(logits, temperature, top_k, top_p, number)
    from kernels.sampling.draw import launch_draw

    return launch_draw(logits, temperature, top_k, top_p, number)


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
