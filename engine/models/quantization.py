"""Checkpoints whose linear maps are stored as e4m3, and what their config.json says of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelError
from engine.models.fields import Fields
from kernels.linear.fp8 import GROUP

_KNOWN = (
    'quant_method "fp8" with or without weight_block_size [128, 128], or "compressed-tensors" '
    'with the format "float-quantized"'
)
_STRATEGIES = ("tensor", "channel", "block")
_OF_ACTIVATIONS = ("input_scale", "output_scale", "q_scale", "k_scale", "v_scale")
"""Scales by which activations were to be rounded, which this engine leaves as they are."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How weights are stored.

    Attributes
    ----------
    scale_names
        What may stand in place of `weight` in the name of its scales: the number that a weight's
        e4m3 is multiplied by.
    in_blocks
        A scale is one of `GROUP` rows by `GROUP` columns, rather than of a row or of the whole map.
    """

    scale_names: tuple[str, ...]
    in_blocks: bool

    def names_beside(self, weight: str) -> list[str]:
        """The tensors that a checkpoint may have besides the one called `weight`."""
        root = weight.removesuffix("weight")
        return [root + name for name in (*self.scale_names, *_OF_ACTIVATIONS)]

    def scale_shapes(self, rows: int, columns: int) -> list[tuple[int, ...]]:
        """The shapes that the scales of a weight [rows, columns] may have."""
        if self.in_blocks:
            return [(-(-rows // GROUP), -(-columns // GROUP))]
        return [(rows, 1), (rows,), (1,), (), (1, 1)]


def read_quantization(fields: Fields) -> Quantization | None:
    """What the quantization_config of a config.json says; None where there is none.

    Raises
    ------
    ModelError
        It is of a kind that the engine does not run.
    """
    if fields.get("quantization_config") is None:
        return None
    told = fields.nested("quantization_config") or Fields({})
    method = told.get("quant_method")
    if method == "fp8":
        return _fp8(told)
    if method == "compressed-tensors":
        return _compressed_tensors(told)
    raise ModelError(
        f"It has a quantization_config of quant_method {method!r}; this engine runs float32, "
        f"float16 and bfloat16 weights, and e4m3 ones of {_KNOWN}."
    )


def _fp8(told: Fields) -> Quantization:
    fmt = told.get("fmt", "e4m3")
    if fmt not in ("e4m3", "float8_e4m3fn"):
        raise ModelError(f'Its quantization_config has the fmt {fmt!r}; it must be "e4m3".')
    block = told.get("weight_block_size")
    _require_blocks(block)
    return Quantization(("weight_scale_inv", "weight_scale"), block is not None)


def _compressed_tensors(told: Fields) -> Quantization:
    fmt = told.get("format")
    if fmt != "float-quantized":
        raise ModelError(
            f"Its quantization_config has the format {fmt!r}; this engine runs {_KNOWN}."
        )
    groups = told.get("config_groups")
    groups = groups if isinstance(groups, Mapping) else {}
    schemes = [_weights_of(group) for group in groups.values()]
    if not schemes:
        raise ModelError("Its quantization_config must have config_groups, with weights in each.")
    for scheme in schemes:
        kind = (scheme.get("type"), scheme.get("num_bits"), scheme.get("symmetric", True))
        if kind != ("float", 8, True):
            raise ModelError(
                "Its quantization_config has weights of type {!r}, num_bits {!r} and symmetric "
                '{!r}; they must be of type "float", num_bits 8 and symmetric.'.format(*kind)
            )
        if scheme.get("strategy") not in _STRATEGIES:
            raise ModelError(
                f"Its quantization_config has weights of the strategy {scheme.get('strategy')!r}; "
                f"it must be one of {', '.join(_STRATEGIES)}."
            )
    strategies = {scheme["strategy"] for scheme in schemes}
    if "block" in strategies:
        if len(strategies) > 1:
            raise ModelError(
                "Its quantization_config has some weights in blocks and others not; all must be "
                "scaled by blocks, or by rows or maps."
            )
        for scheme in schemes:
            _require_blocks(scheme.get("block_structure"))
    return Quantization(("weight_scale",), "block" in strategies)


def _weights_of(group: Any) -> Mapping[str, Any]:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    return weights if isinstance(weights, Mapping) else {}


def _require_blocks(block: Any) -> None:
    if block is not None and block != [GROUP, GROUP]:
        raise ModelError(
            f"Its quantization_config has weights in blocks of {block!r}; they must be "
            f"{[GROUP, GROUP]}."
        )
