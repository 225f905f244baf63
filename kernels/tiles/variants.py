"""The plain kernels for the heads of real models, described so that they compile without a GPU.

A variant is a kernel with the argument types, constants and alignments that a launch on the GPU
would specialise it to. The codegen check compiles each for sm_90, beside every kernel that the
engine itself launches for GPT-2, which it finds by launching them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernels.attention.append import append_rows
from kernels.attention.decode import decode_attention
from kernels.attention.decode_append import decode_attention_append
from kernels.attention.prefill import prefill_attention
from kernels.tiles.launch import Tile, append_tiles, decode_tile, fused_attention_tile, prefill_tile

BLOCK_SIZE = 64
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}

_APPEND_STRIDES = (
    "cache_stride_block",
    "cache_stride_head",
    "cache_stride_slot",
    "key_stride_row",
    "key_stride_head",
    "value_stride_row",
    "value_stride_head",
)
_ATTENTION_STRIDES = (
    "query_stride_row",
    "query_stride_head",
    "cache_stride_block",
    "cache_stride_head",
    "cache_stride_slot",
    "out_stride_row",
    "out_stride_head",
)


_FUSED_STRIDES = (
    "qkv_stride_row",
    "cache_stride_block",
    "cache_stride_head",
    "cache_stride_slot",
    "out_stride_row",
)


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Query heads, KV heads and head dimension of a model."""

    name: str
    query_heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.query_heads // self.kv_heads


HEAD_SHAPES = (
    HeadShape("gpt2", 12, 12, 64),
    HeadShape("llama-1b", 32, 8, 64),
    HeadShape("llama-8b", 32, 8, 128),
)


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """One compilation of one kernel.

    Attributes
    ----------
    kernel : Any
        The ``triton.jit`` function.
    signature : dict[str, str]
        Triton's type of each run-time argument.
    constants : dict[str, Any]
        The compile-time arguments.
    divisible : frozenset[str]
        Arguments known to be multiples of 16: aligned pointers and strides.
    family : str
        "attention", with a loop over keys and matrix products, or "append".
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    divisible: frozenset[str]
    num_warps: int
    num_stages: int
    dtype: str
    family: str


def kernel_variants() -> Iterator[KernelVariant]:
    """Every kernel for every dtype and head shape."""
    for shape in HEAD_SHAPES:
        for dtype in ELEMENT_BYTES:
            yield from _append_variants(shape, dtype)
            yield from _decode_variants(shape, dtype)
            yield from _fused_variants(shape, dtype)
            yield _prefill_variant(shape, dtype)


def _append_variants(shape: HeadShape, dtype: str) -> Iterator[KernelVariant]:
    """One common position, one a row, and rows named by `batch_idx`."""
    data = ("k_cache", "v_cache", "key", "value")
    for cut, tile in zip(
        ("", "-shared"), append_tiles(shape.kv_heads, shape.head_dim), strict=True
    ):
        for label in ("full", "identity", "generic"):
            constants: dict[str, Any] = {
                "H": shape.kv_heads,
                "D": shape.head_dim,
                "PDL": True,
                **tile.constants,
            }
            constants["COMMON"] = label == "full"
            signature = {name: f"*{dtype}" for name in data}
            signature |= {name: "*i32" for name in ("block_idx", "pos")}
            signature |= {name: "i32" for name in ("num_rows", *_APPEND_STRIDES)}
            if label == "generic":
                signature["batch_idx"] = "*i32"
            else:
                constants["batch_idx"] = None
            yield _variant(
                f"append-{label}{cut}",
                shape,
                dtype,
                append_rows,
                signature,
                constants,
                frozenset((*data, *_APPEND_STRIDES)),
                tile,
                "append",
            )


def _decode_variants(shape: HeadShape, dtype: str) -> Iterator[KernelVariant]:
    tile = decode_tile(ELEMENT_BYTES[dtype], shape.head_dim, shape.group)
    for label, serial in (("serial", True), ("parallel", False)):
        signature = _attention_signature(dtype)
        signature |= {
            "partials": f"*{dtype}" if serial else "*fp32",
            "counters": f"*{dtype}" if serial else "*i32",
        }
        constants = {
            "G": shape.group,
            "D": shape.head_dim,
            "PAGE": BLOCK_SIZE,
            "SERIAL": serial,
            **tile.constants,
        }
        divisible = _attention_divisible() | {"partials", "counters"}
        yield _variant(
            f"decode-{label}",
            shape,
            dtype,
            decode_attention,
            signature,
            constants,
            divisible,
            tile,
            "attention",
        )


def _fused_variants(shape: HeadShape, dtype: str) -> Iterator[KernelVariant]:
    tile = fused_attention_tile(ELEMENT_BYTES[dtype], shape.head_dim, shape.group)
    data = ("qkv", "k_cache", "v_cache", "out")
    for label, serial in (("serial", True), ("parallel", False)):
        signature = {name: f"*{dtype}" for name in data}
        signature |= {"block_tables": "*i32", "positions": "*i32", "is_running": "*i32"}
        signature |= {
            "partials": f"*{dtype}" if serial else "*fp32",
            "counters": f"*{dtype}" if serial else "*i32",
        }
        signature |= {"scale_log2": "fp32", "max_context": "i32", "table_stride": "i32"}
        signature |= {name: "i32" for name in _FUSED_STRIDES}
        constants = {
            "G": shape.group,
            "D": shape.head_dim,
            "KV_HEADS": shape.kv_heads,
            "PAGE": BLOCK_SIZE,
            "SERIAL": serial,
            "PDL": True,
            **tile.constants,
        }
        yield _variant(
            f"decode-append-{label}",
            shape,
            dtype,
            decode_attention_append,
            signature,
            constants,
            frozenset((*data, *_FUSED_STRIDES, "partials", "counters")),
            tile,
            "attention",
        )


def _prefill_variant(shape: HeadShape, dtype: str) -> KernelVariant:
    tile = prefill_tile(ELEMENT_BYTES[dtype], shape.head_dim, shape.group)
    signature = _attention_signature(dtype)
    signature |= {"query_start_loc": "*i32", "num_sequences": "i32"}
    constants = {"G": shape.group, "D": shape.head_dim, "PAGE": BLOCK_SIZE, **tile.constants}
    divisible = _attention_divisible()
    return _variant(
        "prefill",
        shape,
        dtype,
        prefill_attention,
        signature,
        constants,
        divisible,
        tile,
        "attention",
    )


def _attention_signature(dtype: str) -> dict[str, str]:
    signature = {name: f"*{dtype}" for name in ("query", "k_cache", "v_cache", "out")}
    signature |= {"block_tables": "*i32", "context_lens": "*i32"}
    signature |= {"scale_log2": "fp32", "max_context": "i32", "table_stride": "i32"}
    signature |= {name: "i32" for name in _ATTENTION_STRIDES}
    return signature


def _attention_divisible() -> frozenset[str]:
    return frozenset(("query", "k_cache", "v_cache", "out", *_ATTENTION_STRIDES))


def _variant(
    label: str,
    shape: HeadShape,
    dtype: str,
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    divisible: frozenset[str],
    tile: Tile,
    family: str,
) -> KernelVariant:
    return KernelVariant(
        name=f"{label}-{shape.name}-{dtype}",
        kernel=kernel,
        signature=signature,
        constants=constants,
        divisible=divisible,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        dtype=dtype,
        family=family,
    )
