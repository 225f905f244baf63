"""The torch reference of drawing tokens: it sorts the vocabulary."""

from __future__ import annotations

import torch

INVALID_TOKEN = -1
"""Drawn in place of a token where a row's logits are not numbers."""

SHORT_OF_TOP_P = 1e-6
"""A sum that falls short of `top_p` by no larger part than this has reached it: float32, which
logits and `top_p` come in, rounds by less, and .5 + .3 must reach .8."""


def sample_greedy(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row of logits [N, V].

    Returns int32 [N]; the lowest id where several tie, `INVALID_TOKEN` where a row holds NaN.
    """
    best, token = logits.max(dim=-1)
    return torch.where(best.isnan(), INVALID_TOKEN, token).to(torch.int32)


def draw_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    number: torch.Tensor,
) -> torch.Tensor:
    """Draw one token a row: temperature, then top-k, then top-p, then the inverse of the CDF.

    Tokens are ordered by likelihood, and equally likely ones by id.

    Parameters
    ----------
    logits
        [N, V], any float dtype.
    temperature, top_p
        float32 [N]; a temperature of 0 takes the likeliest token.
    top_k
        int32 [N]; 0 keeps all.
    number
        float64 [N], in [0, 1): which part of the kept probability comes before the token.

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
    reach = torch.where(top_p < 1, top_p.double() * (1 - SHORT_OF_TOP_P), torch.inf)
    # A token stays while the likelier ones together have not reached top_p: the first always does.
    is_kept = (cumulative - probability < reach[:, None]) & (probability > 0)
    furthest = (is_kept.sum(-1) - 1).clamp(min=0)
    threshold = number * cumulative.gather(-1, furthest[:, None]).squeeze(-1)
    # Tokens of probability 0 span no part of the CDF; the last with any is the furthest choice.
    chosen = torch.minimum((cumulative <= threshold[:, None]).sum(-1), furthest)
    drawn = order.gather(-1, chosen[:, None]).squeeze(-1).to(torch.int32)
    return torch.where(is_greedy | (greedy == INVALID_TOKEN), greedy, drawn)
