"""The parameters of a decoder: their names and shapes here, and their names in checkpoints.

Linear weights are [out, in]. Maps of one input lie in one parameter: queries, keys and values in
`attention_in`, and the gate before the map that it gates in `feed_forward_in`. The weight of a map
of a block may be e4m3, with scales under a name of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.models.spec import DecoderSpec
from kernels.linear.fp8 import FP8, quantize

TOKEN_EMBEDDING = "token_embedding.weight"
POSITION_EMBEDDING = "position_embedding.weight"
HEAD = "head.weight"
HEAD_NAME = "lm_head.weight"
"""The head in checkpoints of every family, without a prefix."""

Shape = tuple[int, ...]


def is_linear(name: str) -> bool:
    """Whether a parameter is the weight of a linear map of a block: one that may be quantized."""
    *block, part, kind = name.split(".")
    return bool(block) and kind == "weight" and not part.endswith("_norm")


def scales_of(name: str) -> str:
    """The name of the scales of such a weight, where it is quantized."""
    return name.removesuffix("weight") + "scales"


def cache_scales_of(layer: int) -> str:
    """The name of the scales [2, H_kv] of a layer's keys and values, where a checkpoint has any."""
    return f"blocks.{layer}.cache_scales"


def parameter_shapes(config: DecoderSpec) -> dict[str, Shape]:
    """Name and shape of every parameter; one of a block is called `blocks.LAYER.PART.KIND`."""
    embed, inner, heads = config.hidden_size, config.inner_size, config.num_heads
    attended = heads * config.head_dim
    qkv = attended + 2 * config.num_kv_heads * config.head_dim
    has_feed_forward_bias = config.feed_forward_bias
    shapes: dict[str, Shape] = {TOKEN_EMBEDDING: (config.vocab_size, embed)}
    if config.rotary is None:
        shapes[POSITION_EMBEDDING] = (config.max_positions, embed)
    for layer in range(config.num_layers):
        block = f"blocks.{layer}."
        shapes |= _norm(config, block + "attention_norm")
        shapes |= _linear(block + "attention_in", qkv, embed, config.attention_in_bias)
        if config.qk_norm:
            shapes[block + "query_norm.weight"] = (config.head_dim,)
            shapes[block + "key_norm.weight"] = (config.head_dim,)
        shapes |= _linear(block + "attention_out", embed, attended, config.attention_out_bias)
        if config.output_norms:
            shapes |= _norm(config, block + "attention_out_norm")
        shapes |= _norm(config, block + "feed_forward_norm")
        mapped = 2 * inner if config.is_gated else inner
        shapes |= _linear(block + "feed_forward_in", mapped, embed, has_feed_forward_bias)
        shapes |= _linear(block + "feed_forward_out", embed, inner, has_feed_forward_bias)
        if config.output_norms:
            shapes |= _norm(config, block + "feed_forward_out_norm")
    shapes |= _norm(config, "final_norm")
    if not config.tied_head:
        shapes[HEAD] = (config.num_scored, embed)
    return shapes


def kept_weights(made: Iterable[tuple[str, Tensor]], quantized: bool) -> dict[str, Tensor]:
    """Parameters by name; where `quantized`, maps of blocks as e4m3 beside their scales.

    Each is rounded before the next is made.
    """
    weights: dict[str, Tensor] = {}
    for name, weight in made:
        if quantized and is_linear(name) and weight.dtype != FP8:
            weights[name], weights[scales_of(name)] = quantize(weight)
        else:
            weights[name] = weight
    return weights


@dataclass(frozen=True, slots=True)
class StoredPart:
    """What a checkpoint holds of a parameter: rows from `first` on, under a name of its own.

    `shape` is that of these rows as the parameter has them; transposed in the file where
    `is_transposed`. What is stored is less by `offset`.
    """

    name: str
    shape: Shape
    first: int
    is_transposed: bool
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class WeightNames:
    """What the checkpoints of a family call the parameters, `weight` and `bias` left out.

    Attributes
    ----------
    outside
        Of each part outside the blocks but the head, which is `HEAD_NAME`.
    block
        Before the names of a block's parts, with {} for its number.
    inside
        Of each part of a block; several for one that is stored as several, in the order of its
        rows.
    prefix
        Before all names but the head's, in checkpoints that were not saved without.
    are_linears_transposed
        Whether linear weights of blocks are stored as [in, out].
    norm_offset
        How much less than the weights of norms is stored of them.
    buffers
        Regular expression of what checkpoints hold besides in blocks, without meaning here.
    """

    outside: Mapping[str, str]
    block: str
    inside: Mapping[str, tuple[str, ...]]
    prefix: str
    are_linears_transposed: bool = False
    norm_offset: float = 0.0
    buffers: str = ""

    def parts(
        self, config: DecoderSpec, shapes: Mapping[str, Shape]
    ) -> dict[str, tuple[StoredPart, ...]]:
        """What is stored of each of the parameters in `shapes`."""
        return {name: tuple(self._parts(config, name, shape)) for name, shape in shapes.items()}

    def cache_scale_names(self, layer: int) -> list[tuple[str, ...]]:
        """What checkpoints call the scale of a layer's keys, and that of its values.

        Empty where queries, keys and values are stored as one.
        """
        maps = self._stored_names(f"blocks.{layer}.attention_in.weight")
        if len(maps) == 1:
            return []
        _, keys, values = (name.removesuffix(".weight") for name in maps)
        return [_scale_names(keys, "k_scale"), _scale_names(values, "v_scale")]

    def stored_name(self, name: str) -> str:
        """What a checkpoint calls a parameter that it stores as one."""
        (stored,) = self._stored_names(name)
        return stored

    def is_of_backbone(self, stored: str) -> bool:
        """Whether a stored name, without the prefix, begins as that of a parameter does."""
        roots = {name.split(".")[0] for name in (self.block, *self.outside.values())}
        return stored.split(".")[0] in roots

    def _parts(self, config: DecoderSpec, name: str, shape: Shape) -> Iterator[StoredPart]:
        names = self._stored_names(name)
        is_transposed = is_linear(name) and self.are_linears_transposed
        offset = self.norm_offset if name.endswith("norm.weight") else 0.0
        first = 0
        for stored, rows in zip(names, _rows(config, name, shape, len(names)), strict=True):
            yield StoredPart(stored, (rows, *shape[1:]), first, is_transposed, offset)
            first += rows

    def _stored_names(self, name: str) -> list[str]:
        *block, part, kind = name.split(".")
        if name == HEAD:
            return [HEAD_NAME]
        if not block:
            return [f"{self.outside[part]}.{kind}"]
        return [f"{self.block.format(block[1])}{stored}.{kind}" for stored in self.inside[part]]


def _scale_names(linear: str, scale: str) -> tuple[str, ...]:
    """Those of compressed-tensors, of ModelOpt, and of older versions of compressed-tensors."""
    attention, _, _ = linear.rpartition(".")
    return f"{attention}.{scale}", f"{linear}.{scale}", f"{linear}.output_scale"


def _rows(config: DecoderSpec, name: str, shape: Shape, num_parts: int) -> list[int]:
    """Rows of each of the parts that a parameter is stored as."""
    if num_parts == 1:
        return [shape[0]]
    if ".attention_in." in name:
        keys = config.num_kv_heads * config.head_dim
        return [config.num_heads * config.head_dim, keys, keys]
    return [shape[0] // num_parts] * num_parts


def _linear(name: str, rows: int, columns: int, has_bias: bool) -> dict[str, Shape]:
    weight: dict[str, Shape] = {name + ".weight": (rows, columns)}
    return weight | {name + ".bias": (rows,)} if has_bias else weight


def _norm(config: DecoderSpec, name: str) -> dict[str, Shape]:
    width: Shape = (config.hidden_size,)
    weight = {name + ".weight": width}
    return weight | {name + ".bias": width} if config.norm == "layer" else weight
