"""The output head: scores of every token after a state, and the likeliest token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.parallel.group import Group, lowest_best
from kernels.sampling.reference import INVALID_TOKEN, sample_greedy


@dataclass(frozen=True, slots=True)
class Head:
    """A head `weight` [V rounded up, E]."""

    weight: Tensor
    vocab_size: int

    @property
    def tokens(self) -> range:
        """The tokens that it scores."""
        return range(self.vocab_size)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [N, V] after each hidden state [N, E]."""
        return F.linear(hidden, self.weight)[:, : self.vocab_size]

    def likeliest(self, hidden: Tensor) -> Tensor:
        """As `sample_greedy` of the logits."""
        return sample_greedy(self.logits(hidden))


@dataclass(frozen=True, slots=True)
class SplitHead:
    """A head whose tokens are spread over ranks, this one's from `first` on.

    `weight` [tokens of a rank, E] has rows of zeros for tokens beyond the vocabulary.
    """

    weight: Tensor
    vocab_size: int
    first: int
    group: Group

    @property
    def tokens(self) -> range:
        """The tokens that this rank scores."""
        first = min(self.first, self.vocab_size)
        return range(first, min(first + len(self.weight), self.vocab_size))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [N, V] after each hidden state [N, E], on every rank."""
        parts = self.group.all_gather(F.linear(hidden, self.weight))
        return parts.transpose(0, 1).flatten(1)[:, : self.vocab_size]

    def likeliest(self, hidden: Tensor) -> Tensor:
        """As `sample_greedy` of the logits; each rank tells the others no more than its best."""
        scores = F.linear(hidden, self.weight)
        scores[:, len(self.tokens) :] = -torch.inf
        best, place = scores.max(1)
        maxima, tokens = self.group.best(best, place + self.tokens.start)
        # The lowest id among equals; where no rank has any but -inf, the first rank's.
        return torch.where(maxima.isnan().any(1), INVALID_TOKEN, lowest_best(maxima, tokens)[1])
