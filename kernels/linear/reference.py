"""What the fused kernels must compute, in float64 and from unfolded weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.linear.epilogue import NO_ACTIVATION, activate


def reference_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    gain: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
    epsilon: float = 0.0,
    activation: int = NO_ACTIVATION,
    is_gated: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """residual + activation(norm(x) W^T + b), whichever parts are given.

    Parameters
    ----------
    x, weight, bias
        [rows, K], [N, K], [N].
    gain, shift, epsilon
        Of the norm before, [K] each: an RMS norm without a shift.
    activation
        As `kernels.linear.epilogue` has it.
    is_gated
        The activation of the first half of the features times the second, [rows, N / 2].
    residual
        [rows, N].

    Returns
    -------
    float64 [rows, N]
    """
    exact = x.double()
    if gain is not None and shift is None:
        exact = F.rms_norm(exact, exact.shape[1:], gain.double(), epsilon)
    elif gain is not None and shift is not None:
        exact = F.layer_norm(exact, exact.shape[1:], gain.double(), shift.double(), epsilon)
    exact = F.linear(exact, weight.double(), None if bias is None else bias.double())
    if is_gated:
        own, other = exact.chunk(2, dim=1)
        exact = activate(own, activation) * other
    else:
        exact = activate(exact, activation)
    return exact if residual is None else exact + residual.double()


def reference_statistics(x: torch.Tensor, tiles: int) -> torch.Tensor:
    """Sum and sum of squared differences from the mean, of each tile of columns.

    x [rows, K] -> float64 [rows, 2, tiles].
    """
    cut = x.double().view(x.shape[0], tiles, -1)
    centred = cut - cut.mean(dim=2, keepdim=True)
    return torch.stack([cut.sum(dim=2), centred.square().sum(dim=2)], dim=1)


def reference_best_of_tiles(
    logits: torch.Tensor, tiles: int, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest logit of each tile and the lowest token that has it; NaN where a tile holds one.

    logits [rows, V], V at most tiles * block -> maxima [rows, tiles], tokens int32 [rows, tiles].
    """
    padding = tiles * block - logits.shape[1]
    cut = F.pad(logits, (0, padding), value=-torch.inf).view(-1, tiles, block)
    # torch's max takes a NaN for the largest, and the first of equals.
    best, place = cut.max(dim=2)
    first = torch.arange(tiles, device=logits.device) * block
    return best, (place + first).to(torch.int32)


def reference_finish(
    tile_max: torch.Tensor,
    tile_token: torch.Tensor,
    last_token: torch.Tensor,
    position: torch.Tensor,
    remaining: torch.Tensor,
    known_len: torch.Tensor,
    known_tail: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each row's token, and last token, position and budget after the step; all int32 [rows]."""
    best = tile_max.max(dim=1, keepdim=True).values
    nowhere = torch.iinfo(torch.int32).max
    token = torch.where(tile_max == best, tile_token, nowhere).min(dim=1).values
    token = torch.where(tile_max.isnan().any(dim=1), -1, token)
    is_running = remaining > 0
    known_left = known_len - (position + 1)
    is_sampling = is_running & (known_left <= 0)
    column = (known_tail.shape[1] - known_left).clamp(0, known_tail.shape[1] - 1)
    known = known_tail.gather(1, column[:, None].to(torch.int64)).squeeze(1)
    fed = torch.where(is_sampling, token.clamp(min=0), torch.where(is_running, known, last_token))
    return token, fed, position + is_running.int(), remaining - is_sampling.int()
