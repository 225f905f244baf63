"""Logits changed by what a request asks, before a token is chosen from them.

A row's words [V] say of each token how often it is in the output, and in the bits above that
whether the prompt holds it and whether it ends the request.
"""

from __future__ import annotations

import torch

IN_PROMPT = 1 << 29
ENDS = 1 << 30
TIMES = IN_PROMPT - 1
"""What of a word counts."""


def penalized(
    logits: torch.Tensor,
    words: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
    repetition: torch.Tensor,
) -> torch.Tensor:
    """Logits less the penalties of tokens that were there before.

    Parameters
    ----------
    logits
        float32 [N, V].
    words
        int32 [N, V].
    presence, frequency
        float32 [N], taken off once for a token of the output, and for each time that it is there.
    repetition
        float32 [N], divides positive logits of tokens of prompt and output, multiplies negative
        ones. It comes first.

    Returns
    -------
    float32 [N, V].
    """
    times = words & TIMES
    is_repeated = (words & (TIMES | IN_PROMPT)) > 0
    factor = repetition[:, None]
    repeated = torch.where(logits > 0, logits / factor, logits * factor)
    changed = torch.where(is_repeated, repeated, logits)
    taken = frequency[:, None] * times + presence[:, None] * (times > 0)
    # Where nothing is taken, infinite logits must stay what they are.
    return torch.where(times > 0, changed - taken, changed)


def without_ends(
    logits: torch.Tensor, words: torch.Tensor, is_too_short: torch.Tensor
) -> torch.Tensor:
    """Logits float32 [N, V] in which no token that ends a request, in a row bool [N], can come."""
    is_barred = is_too_short[:, None] & ((words & ENDS) > 0)
    return logits.masked_fill(is_barred, -torch.inf)


def above_min_p(
    logits: torch.Tensor, min_p: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """Logits of tokens at least `min_p` times as probable as the likeliest; the others cannot come.

    Parameters
    ----------
    logits
        float32 [N, V].
    min_p, temperature
        float32 [N]; probabilities are those at the temperature. A `min_p` of 0 keeps all.

    Returns
    -------
    float32 [N, V].
    """
    # Not of probabilities, which round to 0 far below the likeliest.
    reach = torch.where(temperature > 0, min_p, 0.0).log() * temperature
    below = logits - logits.amax(-1, keepdim=True)
    is_kept = (below >= reach[:, None]) | (min_p == 0)[:, None] | below.isnan()
    return logits.masked_fill(~is_kept, -torch.inf)
