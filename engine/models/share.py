"""Which part of a model each of several ranks holds.

Maps from the residual stream are cut by what they make: queries, keys and values by heads, the
first map of the feed-forward layer by features, the head by tokens. Maps back to it are cut by what
they read: the sum of what the ranks make is what the whole map makes, so that rank 0 alone has
their biases. Norms and embeddings are whole on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.models.spec import DecoderSpec
from engine.models.weights import HEAD, Shape, StoredPart
from kernels.tiles.tile import HEAD_PART

_OUTWARDS = ("attention_out", "feed_forward_out")
"""Maps back to the residual stream."""


class Cut(NamedTuple):
    """The parts of a parameter that a rank holds, one after another: from and up to which places
    of dimension `axis`."""

    axis: int
    runs: tuple[tuple[int, int], ...]


class Copied(NamedTuple):
    """What of a stored part goes where in a rank's parameter."""

    source: tuple[slice, ...]
    target: tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """The part of rank `rank`, from 0 on, of `ranks`."""

    rank: int = 0
    ranks: int = 1

    def spec(self, whole: DecoderSpec) -> DecoderSpec:
        """What one rank's part is made of.

        Raises
        ------
        ConfigError
            The ranks cannot have equal parts of this model.
        """
        if self.ranks == 1:
            return whole
        _require_equal_parts(whole, self.ranks)
        per_rank = -(-whole.vocab_size // self.ranks)
        return replace(
            whole,
            num_heads=whole.num_heads // self.ranks,
            num_kv_heads=max(1, whole.num_kv_heads // self.ranks),
            inner_size=whole.inner_size // self.ranks,
            # So that fused kernels need no copy of it.
            head_tokens=-(-per_rank // HEAD_PART) * HEAD_PART,
        )

    def first_token(self, part: DecoderSpec) -> int:
        """The first of the tokens that this rank scores; `part` is its spec."""
        return self.rank * part.num_scored

    def cut(self, whole: DecoderSpec, name: str, shape: Shape) -> Cut:
        """Which part of a parameter of the whole model, of that shape, this rank holds."""
        everything = Cut(0, ((0, shape[0]),))
        if self.ranks == 1:
            return everything
        part = self.spec(whole)
        *_, layer_part, kind = name.split(".")
        if layer_part in _OUTWARDS:
            if kind == "bias":
                return everything if self.rank == 0 else Cut(0, ())
            width = shape[1] // self.ranks
            return Cut(1, ((self.rank * width, (self.rank + 1) * width),))
        if layer_part == "feed_forward_in":
            first, count = self.rank * part.inner_size, part.inner_size
            firsts = (first, whole.inner_size + first) if whole.is_gated else (first,)
            return Cut(0, tuple((start, start + count) for start in firsts))
        if layer_part == "attention_in":
            return self._heads(whole, part)
        if name == HEAD:
            first = min(self.first_token(part), whole.vocab_size)
            return Cut(0, ((first, min(first + part.num_scored, whole.vocab_size)),))
        return everything

    def cuts_columns(self, name: str) -> bool:
        """Whether the ranks share the columns of a parameter, rather than its rows."""
        *_, layer_part, kind = name.split(".")
        return self.ranks > 1 and layer_part in _OUTWARDS and kind == "weight"

    def take(self, whole: DecoderSpec, name: str, parameter: Tensor) -> Tensor:
        """This rank's part of a whole parameter; a copy, where it is not all of it."""
        cut = self.cut(whole, name, tuple(parameter.shape))
        if cut.runs == ((0, parameter.shape[cut.axis]),):
            taken = parameter
        else:
            parts = [parameter.narrow(cut.axis, start, end - start) for start, end in cut.runs]
            taken = torch.cat(parts, cut.axis) if parts else torch.zeros_like(parameter)
        missing = self.spec(whole).num_scored - len(taken) if name == HEAD else 0
        return torch.cat((taken, taken.new_zeros(missing, *taken.shape[1:]))) if missing else taken

    def copied(self, cut: Cut, part: StoredPart) -> list[Copied]:
        """What a stored part brings to a parameter that is cut so."""
        rows = part.shape[0]
        if cut.axis == 1:
            ((start, end),) = cut.runs
            target = (slice(part.first, part.first + rows), slice(None))
            return [Copied((slice(None), slice(start, end)), target)]
        copied = []
        placed = accumulate((end - start for start, end in cut.runs), initial=0)
        for (start, end), at in zip(cut.runs, placed, strict=False):
            low, high = max(start, part.first), min(end, part.first + rows)
            if low < high:
                source = slice(low - part.first, high - part.first)
                copied.append(Copied((source,), (slice(at + low - start, at + high - start),)))
        return copied

    def _heads(self, whole: DecoderSpec, part: DecoderSpec) -> Cut:
        """Rows of queries, keys and values; ranks beyond the heads of keys share them."""
        dim = whole.head_dim
        keys = self.rank * whole.num_kv_heads // self.ranks
        firsts = (
            (self.rank * part.num_heads, part.num_heads),
            (whole.num_heads + keys, part.num_kv_heads),
            (whole.num_heads + whole.num_kv_heads + keys, part.num_kv_heads),
        )
        return Cut(0, tuple((first * dim, (first + count) * dim) for first, count in firsts))


WHOLE = Share()
"""All of a model."""


def possible_ranks(whole: DecoderSpec) -> list[int]:
    """Over how many ranks the model can be spread."""
    return [ranks for ranks in range(1, whole.num_heads + 1) if _divides(whole, ranks)]


def _divides(whole: DecoderSpec, ranks: int) -> bool:
    keys = whole.num_kv_heads
    shares_keys = keys % ranks == 0 or ranks % keys == 0
    return whole.num_heads % ranks == whole.inner_size % ranks == 0 and shares_keys


def _require_equal_parts(whole: DecoderSpec, ranks: int) -> None:
    if _divides(whole, ranks):
        return
    *few, most = possible_ranks(whole)
    right = f"{', '.join(map(str, few))} or {most}" if few else str(most)
    raise ConfigError(
        f"tensor_parallel_size is {ranks}, but the model has {whole.num_heads} heads of queries, "
        f"{whole.num_kv_heads} of keys and values and {whole.inner_size} feed-forward features, "
        f"which {ranks} ranks cannot have equal parts of: use {right}."
    )
