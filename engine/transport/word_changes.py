"""Changes to words of the device, listed in the host's memory, which the device reads itself.

A list is a few kilobytes, for which a copy would be but one call more. What a list costs the host
counts where a batch begins, as the device waits for it then and no call is in any cache: so lists
are filled up to one of a few sizes, whose tensors are made once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine.transport.mapped_memory import mapped_memory

MOST_WORDS = 8192
"""Changes in one list; more go in several."""

NUM_LISTS = 8

_LEAST_POWER = 6


class _ChangeList:
    """Room for a list, guarded by the event of its last use."""

    def __init__(self, device: torch.device) -> None:
        offsets, offsets_read = mapped_memory((MOST_WORDS,), torch.int64, device)
        words, words_read = mapped_memory((MOST_WORDS,), torch.int32, device)
        self._offsets, self._words = offsets.numpy(), words.numpy()
        # The first 2 to the power of i of both, by i.
        self._read = [
            (offsets_read[: 1 << power], words_read[: 1 << power])
            for power in range(MOST_WORDS.bit_length())
        ]
        self._last_use = torch.cuda.Event() if device.type == "cuda" else None

    def send(
        self,
        target: torch.Tensor,
        offsets: npt.NDArray[np.int64],
        words: npt.NDArray[np.int32],
    ) -> None:
        """Put `words` at `offsets` of `target`, at least one and at most `MOST_WORDS`."""
        count = len(offsets)
        power = max(_LEAST_POWER, (count - 1).bit_length())
        if self._last_use is not None:
            self._last_use.synchronize()
        self._offsets[:count] = offsets
        self._words[:count] = words
        # What fills the list up says the last change again.
        self._offsets[count : 1 << power] = offsets[-1]
        self._words[count : 1 << power] = words[-1]
        target.scatter_(0, *self._read[power])
        if self._last_use is not None:
            self._last_use.record()


class WordChanges:
    """Lists used in turn, for changes on the current stream.

    Parameters
    ----------
    target
        int32 [W], the words to change.
    """

    def __init__(self, target: torch.Tensor) -> None:
        self._target = target
        self._lists = [_ChangeList(target.device) for _ in range(NUM_LISTS)]
        self._next = 0

    def send(self, offsets: npt.NDArray[np.int64], words: npt.NDArray[np.int32]) -> None:
        """Put `words` [N] at `offsets` [N] of the target, in stream order.

        An offset that comes twice must come with the same word: their order is open.
        """
        for start in range(0, len(offsets), MOST_WORDS):
            end = start + MOST_WORDS
            self._lists[self._next].send(self._target, offsets[start:end], words[start:end])
            self._next = (self._next + 1) % NUM_LISTS
