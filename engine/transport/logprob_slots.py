"""Logprobs on their way back to the host, beside the tokens that they are of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.requests.params import MOST_LOGPROBS
from engine.requests.request import TokenLogprobs
from engine.transport.mapped_memory import mapped_memory
from engine.transport.token_slots import NUM_SLOTS


class LogprobSlots:
    """Slots of a token's logprob and those of the likeliest, as `TokenSlots` has them of tokens."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        shape = (NUM_SLOTS, num_rows, 1 + MOST_LOGPROBS)
        host_ids, self._ids = mapped_memory(shape, torch.int32, device)
        host_logprobs, self._logprobs = mapped_memory(shape, torch.float32, device)
        self._host_ids, self._host_logprobs = host_ids.numpy(), host_logprobs.numpy()

    def write(
        self,
        logits: torch.Tensor,
        tokens: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        num_top: int,
    ) -> None:
        """The tokens' logprobs int32 [M] of logits float32 [M, V], and the `num_top` likeliest."""
        total = logits.logsumexp(-1, keepdim=True)
        own = logits.gather(1, tokens.clamp(min=0)[:, None].to(torch.int64))
        best, ids = logits.topk(min(num_top, logits.shape[-1]), dim=-1)
        logprobs = torch.cat([own, best], 1) - total
        ids = torch.cat([tokens[:, None], ids.to(torch.int32)], 1)
        slots, width = positions.remainder(NUM_SLOTS).to(torch.int64), ids.shape[1]
        self._ids[:, :, :width].index_put_((slots, rows), ids)
        self._logprobs[:, :, :width].index_put_((slots, rows), logprobs)

    def read(
        self,
        rows: npt.NDArray[np.intp],
        positions: npt.NDArray[np.int32],
        asked: Sequence[int | None],
    ) -> list[TokenLogprobs | None]:
        """Those of the tokens at `positions` [M] of `rows` [M], as many of each as were asked."""
        slots = positions % NUM_SLOTS
        ids = self._host_ids[slots, rows].tolist()
        logprobs = self._host_logprobs[slots, rows].tolist()
        return [
            None
            if count is None
            else TokenLogprobs(own[0], tuple(zip(some[1 : count + 1], own[1:], strict=False)))
            for some, own, count in zip(ids, logprobs, asked, strict=True)
        ]
