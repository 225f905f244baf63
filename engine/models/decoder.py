"""A decoder, block by block, over a ragged batch of tokens.

Letters in shapes: T tokens of all sequences in a row, E hidden size, H_q and H_kv heads of queries
and of keys and values, D head dimension, F feed-forward size, V vocabulary. The model knows nothing
of sequences: positions come with the tokens, and `attend` is where tokens of one sequence meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import ModelError
from engine.models.activations import activation_function
from engine.models.head import Head, SplitHead
from engine.models.layers import (
    Attend,
    Attention,
    FeedForward,
    LayerNorm,
    Linear,
    Norm,
    NormedLinear,
    QuantizedLinear,
    RMSNorm,
    SplitLinear,
)
from engine.models.spec import DecoderSpec
from engine.models.weights import (
    HEAD,
    POSITION_EMBEDDING,
    TOKEN_EMBEDDING,
    cache_scales_of,
    is_linear,
    parameter_shapes,
    scales_of,
)
from engine.parallel.group import Group
from kernels.attention.rotation import HeadRotation
from kernels.linear.fp8 import FP8, GROUP, multiplies_rounded

# cuBLAS has fast kernels only for outputs whose rows are aligned.
_HEAD_ROWS = 64


@dataclass(frozen=True, slots=True)
class Block:
    """The parts of one transformer block, in the order they are used."""

    attention: Attention
    feed_forward: FeedForward

    def folded(self) -> Block:
        """The same with what `Decoder.fold_norms` folds, in place."""
        return Block(self.attention.folded(), self.feed_forward.folded())


class Decoder:
    """A decoder for inference.

    `forward` and `logits` launch device work only: they neither wait for the device, nor create
    tensors on the CPU, nor look at a value, so both can be captured in a CUDA graph.

    Parameters
    ----------
    config
        What the model is made of.
    weights
        Name to tensor, with the names and shapes of `parameter_shapes`, all of one device and one
        float dtype. A linear map of a block may be e4m3, with scales under the name `scales_of`,
        as `kernels.linear.fp8` has them. The model keeps the tensors; it copies none but the head,
        and that only where it needs padding.
    group
        The ranks that have a part of the model each, of which `config` and `weights` are this
        one's. None: the model is whole.
    rounds_rows
        Maps of eight bits round each row of what they read to eight bits, too, where
        `kernels.linear.fp8.multiplies_rounded`.

    Attributes
    ----------
    quantized
        Which maps of blocks are e4m3, in some block at least; such as "attention_in".
    cache_scales
        Of keys and values in a cache of eight bits, float32 [num_layers, 2, H_kv]; None where
        `weights` have none under the names `cache_scales_of`.

    Raises
    ------
    ModelError
        A parameter is missing, or has another shape, device or dtype.
    """

    def __init__(
        self,
        config: DecoderSpec,
        weights: Mapping[str, Tensor],
        group: Group | None = None,
        *,
        rounds_rows: bool = False,
    ) -> None:
        _check_weights(config, weights)
        self.config = config
        self.group = group
        self.num_bytes = sum(weight.nbytes for weight in weights.values())
        self.quantized = frozenset(
            name.split(".")[2] for name, weight in weights.items() if weight.dtype == FP8
        )
        self.device = weights[TOKEN_EMBEDDING].device
        self.dtype = weights[TOKEN_EMBEDDING].dtype
        self.head, self.token_embedding = _head_and_embedding(config, weights, group)
        self.position_embedding = weights.get(POSITION_EMBEDDING)  # [max_positions, E]
        # Rounded to the dtype, as in training.
        self._embedding_scale = torch.tensor(config.hidden_size**0.5, dtype=self.dtype).item()
        self._turns, self._local_turns = (
            None if one is None else one.table(config.max_positions, config.head_dim, self.device)
            for one in (config.rotary, config.local_rotary)
        )  # [max_positions, D] each
        self.blocks = tuple(
            _block(config, weights, layer, group, rounds_rows) for layer in range(config.num_layers)
        )
        self.final_norm = _norm(config, weights, "final_norm")
        self._next_norms = self._norms_behind_blocks()
        names = [cache_scales_of(layer) for layer in range(config.num_layers)]
        self.cache_scales: Tensor | None = None
        if all(name in weights for name in names):
            self.cache_scales = torch.stack([weights[name] for name in names])

    def forward(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, kept: Tensor | None = None
    ) -> Tensor:
        """Run the tokens through all blocks.

        Parameters
        ----------
        token_ids, positions
            [T] int32 or int64, on the model's device. Positions count from 0 within each sequence.
            Values are not checked.
        attend
            Called once per layer, in order; see `Attend`. The factor on its scores is
            `config.attention_scale(layer)`.
        kept
            [N] int32 or int64: which of the tokens' states are asked for. Of the others the last
            block computes what attention needs, and no more. None: all of them.

        Returns
        -------
        hidden
            [N, E], or [T, E], after the final norm, in the model's dtype.
        """
        x = F.embedding(token_ids, self.token_embedding)  # [T, E]
        if self.config.scaled_embedding:
            x = x * self._embedding_scale
        if self.position_embedding is not None:
            x = x + F.embedding(positions, self.position_embedding)
        turn = None if self._turns is None else HeadRotation(positions, self._turns)
        local = turn
        if self._local_turns is not None:
            local = HeadRotation(positions, self._local_turns)
        normed = self.blocks[0].attention.norm(x)
        for layer, block in enumerate(self.blocks):
            own = local if block.attention.is_local else turn
            attended = block.attention.attended(layer, normed, own, attend)
            if kept is not None and layer == self.config.num_layers - 1:
                x, attended = x.index_select(0, kept), attended.index_select(0, kept)
            x, normed = block.feed_forward.norm.after(x, block.attention.out(attended))
            x, normed = self._next_norms[layer].after(x, block.feed_forward(normed))
        return normed

    @property
    def turns(self) -> Tensor | None:
        """Cosines and sines of every position, see `Rotary.table`; None without rotary ones.

        Local layers may have others.
        """
        return self._turns

    def fold_norms(self) -> None:
        """Multiply the weights of RMS norms into the maps behind them, and pack gates; in place.

        The model computes what it did, but for rounding, and so do kernels that take such weights:
        one copy serves both. The tensors that the model was made of change. A tied head keeps the
        final norm's weight apart, as the embedding is no map behind it. Does nothing twice.
        """
        self.blocks = tuple(block.folded() for block in self.blocks)
        norm = self.final_norm
        if isinstance(norm, RMSNorm) and norm.weight is not None and not self.config.tied_head:
            self.head.weight.mul_(norm.weight)
            self.final_norm = replace(norm, weight=None)
        self._next_norms = self._norms_behind_blocks()

    def _norms_behind_blocks(self) -> tuple[Norm, ...]:
        """The norm of what each block leaves."""
        return (*(block.attention.norm for block in self.blocks[1:]), self.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token after each hidden state: [N, E] -> [N, V], in the model's dtype.

        Rows are contiguous, but may lie further apart than V.
        """
        return self.head.logits(hidden)


def _head_and_embedding(
    config: DecoderSpec, weights: Mapping[str, Tensor], group: Group | None
) -> tuple[Head | SplitHead, Tensor]:
    """The head and the token embedding [V, E]; where they are tied, views of one copy."""
    embedding = weights[TOKEN_EMBEDDING]
    vocab_size, scored = config.vocab_size, config.num_scored
    if group is None:
        head = _pad_rows(embedding if config.tied_head else weights[HEAD], _HEAD_ROWS)
        return Head(head, vocab_size), head[:vocab_size] if config.tied_head else embedding
    first = group.rank * scored
    if not config.tied_head:
        return SplitHead(weights[HEAD], vocab_size, first, group), embedding
    every = _pad_rows(embedding, group.size * scored)
    split = SplitHead(every[first : first + scored], vocab_size, first, group)
    return split, every[:vocab_size]


def _block(
    config: DecoderSpec,
    weights: Mapping[str, Tensor],
    layer: int,
    group: Group | None,
    rounds_rows: bool,
) -> Block:
    block = f"blocks.{layer}."
    linear = partial(_linear, weights, rounds_rows)
    outwards = partial(_outwards, config, weights, linear, group)
    return Block(
        Attention(
            _norm(config, weights, block + "attention_norm"),
            linear(block + "attention_in"),
            outwards(block + "attention_out"),
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            _head_norm(config, weights, block) if config.qk_norm else None,
            config.norm_epsilon,
            is_local=layer not in config.global_layers,
        ),
        FeedForward(
            _norm(config, weights, block + "feed_forward_norm"),
            linear(block + "feed_forward_in"),
            outwards(block + "feed_forward_out"),
            activation_function(config.activation),
            config.is_gated,
        ),
    )


def _outwards(
    config: DecoderSpec,
    weights: Mapping[str, Tensor],
    linear: Callable[[str, Group | None], Linear],
    group: Group | None,
    name: str,
) -> Linear:
    """A map back to the residual stream, with the norm behind it where there is one."""
    made = linear(name, group)
    if not config.output_norms:
        return made
    return NormedLinear(made.weight, made.bias, made, _norm(config, weights, name + "_norm"))


def _head_norm(config: DecoderSpec, weights: Mapping[str, Tensor], block: str) -> Tensor:
    """The norms' weights, a row for each head of queries and keys."""
    queries, keys = weights[block + "query_norm.weight"], weights[block + "key_norm.weight"]
    rows = (queries.expand(config.num_heads, -1), keys.expand(config.num_kv_heads, -1))
    return torch.cat(rows)


def _norm(config: DecoderSpec, weights: Mapping[str, Tensor], name: str) -> Norm:
    if config.norm == "rms":
        return RMSNorm(weights[name + ".weight"], config.norm_epsilon)
    return LayerNorm(weights[name + ".weight"], weights[name + ".bias"], config.norm_epsilon)


def _linear(
    weights: Mapping[str, Tensor], rounds_rows: bool, name: str, group: Group | None = None
) -> Linear:
    weight, bias = weights[name + ".weight"], weights.get(name + ".bias")
    if weight.dtype == FP8:
        scales = weights[scales_of(name + ".weight")]
        rounds_rows &= multiplies_rounded(weights[TOKEN_EMBEDDING], weight, scales)
        return QuantizedLinear(weight, bias, scales, group, rounds_rows)
    return Linear(weight, bias) if group is None else SplitLinear(weight, bias, group)


def _pad_rows(weight: Tensor, multiple: int) -> Tensor:
    """The weight [V, E] with rows of zeros below, up to a multiple of that many."""
    missing = -weight.shape[0] % multiple
    return F.pad(weight, (0, 0, 0, missing)) if missing else weight


def _check_weights(config: DecoderSpec, weights: Mapping[str, Tensor]) -> None:
    shapes = parameter_shapes(config)
    missing = [name for name in shapes if name not in weights]
    if missing:
        raise ModelError(f"The weights lack {', '.join(missing[:4])}, which this decoder needs.")
    first = weights[TOKEN_EMBEDDING]
    for name, shape in shapes.items():
        weight = weights[name]
        if tuple(weight.shape) != shape:
            raise ModelError(f"{name} is {list(weight.shape)}; the config asks for {list(shape)}.")
        if weight.dtype == FP8 and is_linear(name):
            _check_scales(weights, name, shape)
        elif weight.device != first.device or weight.dtype != first.dtype:
            raise ModelError(
                f"{name} is {weight.dtype} on {weight.device}; like {TOKEN_EMBEDDING} it must be "
                f"{first.dtype} on {first.device}."
            )
    if not first.dtype.is_floating_point or first.dtype == FP8:
        raise ModelError(f"The weights are {first.dtype}; they must be a float dtype.")


def _check_scales(weights: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> None:
    rows, columns = shape
    scales, device = weights.get(scales_of(name)), weights[name].device
    if scales is None:
        raise ModelError(f"{name} is {FP8}; its scales, {scales_of(name)}, must be there, too.")
    possible = [(1, rows), *([] if columns % GROUP else [(columns // GROUP, rows)])]
    if tuple(scales.shape) not in possible or scales.dtype != torch.float32:
        wanted = " or ".join(str(list(one)) for one in possible)
        raise ModelError(
            f"{scales_of(name)} is {list(scales.shape)} of {scales.dtype}; it must be {wanted} of "
            f"{torch.float32}."
        )
    if not device == scales.device == weights[TOKEN_EMBEDDING].device:
        raise ModelError(
            f"{name} is on {device} and its scales on {scales.device}; both must be on "
            f"{weights[TOKEN_EMBEDDING].device}, where {TOKEN_EMBEDDING} is."
        )
