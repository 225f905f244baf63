"""Kernels of paged-KV decoding: append to the cache, attend over it.

The three operations are imported on first use (PEP 562): ``import kernels`` itself imports
neither torch nor Triton. That matters beyond start-up time. transformers probes for a package of
this name (Hugging Face's ``kernels``) and, finding no version it knows, imports it to look for
one; so this module stays cheap to import and defines no ``__version__``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from kernels.attention.operations import (
        kv_append,
        paged_attention_decode,
        paged_attention_prefill,
    )

__all__ = [
    "KernelArgumentError",
    "kv_append",
    "paged_attention_decode",
    "paged_attention_prefill",
]

_OPERATIONS = frozenset({"kv_append", "paged_attention_decode", "paged_attention_prefill"})


def __getattr__(name: str) -> Any:
    if name in _OPERATIONS:
        operation = getattr(import_module("kernels.attention.operations"), name)
        globals()[name] = operation
        return operation
    raise AttributeError(f"module 'kernels' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | _OPERATIONS)
