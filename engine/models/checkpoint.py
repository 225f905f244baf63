"""Weights from the safetensors files of a model directory, checked before they are read.

Only safetensors are read: a pickle can run any code. Every name and shape is checked against the
files' headers first, then the tensors go to the device one at a time.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from engine.errors import ModelError
from engine.memory import allocating
from engine.models.family import Family
from engine.models.files import (
    FLOAT_TYPES,
    StoredTensor,
    naming,
    open_safetensors,
    read_json_object,
)
from engine.models.scales import (
    copied_scales,
    keep_scales,
    read_cache_scales,
    read_scales,
    require_whole_blocks,
    scales_beside,
)
from engine.models.share import WHOLE, Copied, Share
from engine.models.spec import DecoderSpec
from engine.models.weights import (
    HEAD,
    HEAD_NAME,
    TOKEN_EMBEDDING,
    StoredPart,
    is_linear,
    kept_weights,
    parameter_shapes,
)
from kernels.linear.fp8 import FP8, dequantized

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"

# What wraps a model puts its own name before all of the model's.
_WRAPPERS = {
    "module.": "DataParallel or DistributedDataParallel",
    "_orig_mod.": "torch.compile",
    "_fsdp_wrapped_module.": "FullyShardedDataParallel",
}

Form: TypeAlias = Literal["float", "stored", "fp8"]
"""How `load_weights` leaves the linear maps of blocks."""


def read_headers(directory: Path, family: Family) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint, by its name without the prefix; no tensor itself is read.

    Parameters
    ----------
    directory
        Holds model.safetensors, or model.safetensors.index.json and its shards.
    family
        Whose prefix the names may have.

    Raises
    ------
    ModelError
        A file is missing or damaged, holds no tensor, or names all of them after a wrapper of the
        model.
    """
    single, index = directory / _SINGLE_FILE, directory / _INDEX_FILE
    if single.is_file():
        stored = {tensor.name: tensor for tensor in _tensors_of(single)}
    elif index.is_file():
        stored = _read_index(index)
    elif any(directory.glob("*.bin")) or any(directory.glob("*.pt")):
        raise ModelError(
            f"{directory} holds weights as a pickle only; this engine reads safetensors. Convert "
            "them with transformers: save_pretrained(..., safe_serialization=True)."
        )
    else:
        raise ModelError(
            f"{directory} has no weights: neither {_SINGLE_FILE} nor {_INDEX_FILE} with its shards "
            "is there, and only safetensors are read."
        )
    if not stored:
        raise ModelError(f"The weights in {directory} hold no tensor at all; save them again.")
    # The prefix is missing where the model was saved without its head.
    plain = {name.removeprefix(family.names.prefix): one for name, one in stored.items()}
    _refuse_wrapped_names(directory, list(stored), [name for name in plain if name != HEAD_NAME])
    return plain


def load_weights(
    stored: Mapping[str, StoredTensor],
    family: Family,
    config: DecoderSpec,
    *,
    device: torch.device,
    dtype: torch.dtype,
    share: Share = WHOLE,
    form: Form = "float",
) -> dict[str, Tensor]:
    """Read the parameters of a model.

    Parameters
    ----------
    stored
        What `read_headers` found.
    family, config
        What the parameters are called in the files, and which there are.
    device, dtype
        Of the tensors returned that are not kept in eight bits.
    share
        The part of each parameter that is read.
    form
        Of the linear maps of blocks: "float" multiplies stored e4m3 with its scales, "stored" keeps
        it, with its scales under the names of `scales_of`, and "fp8" rounds all others to e4m3,
        too.

    Returns
    -------
    The parameters of `engine.models.weights.parameter_shapes`, contiguous, and where a quantized
    checkpoint has them the scales of its KV cache, under the names of `cache_scales_of`. A tied
    checkpoint that stores a head of its own with other values than the token embedding gets a head
    too, as in transformers: what was stored is what was trained.

    Raises
    ------
    ModelError
        A tensor is missing, damaged, of a shape the config does not ask for, of a type that its
        quantization does not speak of, or part of a model other than the config describes.
    ConfigError
        The device has too little memory for them, or ranks would share a block's scale.
    """
    part, shapes = share.spec(config), parameter_shapes(share.spec(config))
    # A tied checkpoint may store a head all the same.
    stored_shapes = {HEAD: parameter_shapes(replace(part, tied_head=False))[HEAD], **shapes}
    whole = parameter_shapes(replace(config, tied_head=False))
    chosen = _choose(stored, family, config)
    for one in chosen:
        shape = one.part.shape
        _check_header(one.tensor, shape[::-1] if one.part.is_transposed else shape, one.scales)
    in_fp8 = set() if form == "float" else _kept_in_fp8(chosen)
    unread = Counter(one.parameter for one in chosen)
    eight = set(filter(is_linear, shapes)) if form == "fp8" else in_fp8
    what = f"The weights in {_directory_of(stored)}"
    with allocating_weights(what, shapes, device, dtype, eight):
        scales = _read_scales(chosen, config, share)
        weights: dict[str, Tensor] = {}
        for path in sorted({one.tensor.path for one in chosen}):
            with open_safetensors(path) as file:
                for one in chosen:
                    if one.tensor.path == path:
                        name = one.parameter
                        if name not in weights:
                            # What no part of a file fills is zero.
                            shape = stored_shapes[name]
                            kind = FP8 if name in in_fp8 else dtype
                            weights[name] = torch.zeros(shape, device=device, dtype=kind)
                        cut = share.cut(config, name, whole[name])
                        for copied in share.copied(cut, one.part):
                            of_copied = copied_scales(scales.get(one.part.name), copied)
                            _read(file, one, copied, weights[name], of_copied)
                            if name in in_fp8 and of_copied is not None:
                                keep_scales(weights, name, copied, of_copied)
                        unread[name] -= 1
                        if name in eight and not unread[name]:
                            weights |= kept_weights([(name, weights[name])], True)
        weights |= read_cache_scales(stored, family, config, share, device)
    if HEAD not in shapes and HEAD in weights:
        head = weights.pop(HEAD)
        if not torch.equal(head, share.take(config, HEAD, weights[TOKEN_EMBEDDING])):
            weights[HEAD] = head
    return weights


def allocating_weights(
    what: str,
    shapes: Mapping[str, tuple[int, ...]],
    device: torch.device,
    dtype: torch.dtype,
    in_fp8: Container[str] = (),
) -> AbstractContextManager[None]:
    """Surround what makes tensors of these `shapes`, as `engine.memory.allocating` does.

    Those named in `in_fp8` are of eight bits, with a scale for each of their rows.
    """
    num_bytes, has_fp8 = 0, False
    for name, shape in shapes.items():
        size = math.prod(shape)
        num_bytes += size + 4 * shape[0] if name in in_fp8 else size * dtype.itemsize
        has_fp8 |= name in in_fp8
    type_name = str(dtype).removeprefix("torch.") + " and fp8" * has_fp8
    remedy = "choose a smaller model, or a dtype of fewer bytes"
    return allocating(f"{what} as {type_name}", num_bytes, device, remedy)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A stored tensor, the parameter that it serves, which part of it, and the scales beside it."""

    parameter: str
    part: StoredPart
    tensor: StoredTensor
    scales: StoredTensor | None


def _choose(
    stored: Mapping[str, StoredTensor], family: Family, config: DecoderSpec
) -> list[_Choice]:
    """Which stored tensors serve each parameter."""
    parts = family.names.parts(config, parameter_shapes(config))
    known = {part.name for one in parts.values() for part in one}
    if config.quantization is not None:
        linears = [part.name for name, one in parts.items() if is_linear(name) for part in one]
        known.update(*map(config.quantization.names_beside, linears))
        for layer in range(config.num_layers):
            known.update(*family.names.cache_scale_names(layer))
    _refuse_foreign_tensors(stored, family, known)
    found = dict(stored)
    if config.tied_head and HEAD_NAME in found:
        # The two may differ, and either may be the one that was kept.
        (embedding,) = parts[TOKEN_EMBEDDING]
        found.setdefault(embedding.name, found[HEAD_NAME])
        parts[HEAD] = (replace(embedding, name=HEAD_NAME),)
    missing = [part.name for one in parts.values() for part in one if part.name not in found]
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ModelError(
            f"The weights in {_directory_of(stored)} lack the tensor {missing[0]}{others}, which "
            f"the {family.title} that config.json describes needs."
        )
    return [
        _Choice(parameter, part, found[part.name], scales_beside(found, config, parameter, part))
        for parameter, one in parts.items()
        for part in one
    ]


def _refuse_foreign_tensors(
    stored: Mapping[str, StoredTensor], family: Family, known: set[str]
) -> None:
    """Refuse tensors that belong to the family but not to the model of this config."""
    names = family.names
    for name, tensor in stored.items():
        is_buffer = re.fullmatch(names.buffers, name) is not None
        if names.is_of_backbone(name) and name not in known and not is_buffer:
            raise ModelError(
                f"{tensor} belongs to no part of the {family.title} that config.json describes; "
                "config.json and weights must come from the same model."
            )


def _kept_in_fp8(chosen: Sequence[_Choice]) -> set[str]:
    """The parameters of which all parts are stored as e4m3."""
    in_floats = {one.parameter for one in chosen if one.scales is None}
    return {one.parameter for one in chosen} - in_floats


def _read_scales(chosen: Sequence[_Choice], config: DecoderSpec, share: Share) -> dict[str, Tensor]:
    """Scales [G, rows] of stored parts, by the names of these."""
    in_blocks = config.quantization is not None and config.quantization.in_blocks
    scales = {}
    for one in chosen:
        if one.scales is not None:
            scales[one.part.name] = read_scales(one.scales, one.part, in_blocks)
            if in_blocks:
                require_whole_blocks(one.tensor, one.parameter, one.part, share)
    return scales


def _check_header(
    tensor: StoredTensor, shape: tuple[int, ...], scales: StoredTensor | None
) -> None:
    if tensor.shape != shape:
        raise ModelError(
            f"{tensor} has the shape {list(tensor.shape)}; config.json asks for {list(shape)}."
        )
    if tensor.type_name not in FLOAT_TYPES and scales is None:
        raise ModelError(
            f"{tensor} has the type {tensor.type_name}; weights must be unquantized "
            "(F16, BF16, F32 or F64), or F8_E4M3 where config.json says how."
        )


def _read(
    file: Any, chosen: _Choice, copied: Copied, parameter: Tensor, scales: Tensor | None
) -> None:
    """Copy a tensor, or a part of it, into a parameter; what the file maps is never kept.

    The `scales` are those of what is copied, where it is stored as e4m3.
    """
    part, tensor, source = chosen.part, chosen.tensor, copied.source
    with naming(tensor.path):
        if len(source) == 1 and source[0] == slice(0, part.shape[0]):
            loaded = file.get_tensor(tensor.name)
        else:
            if len(source) < len(part.shape):
                source = (*source, slice(None))
            loaded = file.get_slice(tensor.name)[source[::-1] if part.is_transposed else source]
        loaded = loaded.to(parameter.device)
    filled = parameter[copied.target]
    if filled.dtype == FP8:
        filled.copy_(loaded)
        # Its only values that are not finite have all bits but the sign set.
        if (filled.view(torch.uint8) & 0x7F == 0x7F).any():
            raise ModelError(f"{tensor} holds values that are not finite.")
        return
    if scales is not None:
        loaded = dequantized(loaded, scales.to(loaded.device), parameter.dtype)
    if part.offset:
        # The sum is rounded once, when it is copied.
        loaded = loaded.to(torch.promote_types(loaded.dtype, torch.float32)) + part.offset
    filled.copy_(loaded.t() if part.is_transposed else loaded)
    # An infinity or a NaN anywhere shows in the smallest or the largest element.
    if not torch.stack(torch.aminmax(filled)).isfinite().all():
        raise ModelError(f"{tensor} holds values that are not finite in {filled.dtype}.")


def _refuse_wrapped_names(directory: Path, whole: list[str], of_backbone: list[str]) -> None:
    """Refuse names that all begin as a wrapper's do; the backbone may have been wrapped alone."""
    for prefix, wrapper in _WRAPPERS.items():
        for names in (whole, of_backbone):
            if names and all(name.startswith(prefix) for name in names):
                raise ModelError(
                    f"The names of the tensors in {directory} begin with {prefix!r}, "
                    f"so they were saved from a model wrapped by {wrapper}: save the model inside "
                    "it, or take that beginning off the names."
                )


def _directory_of(stored: Mapping[str, StoredTensor]) -> Path:
    return next(iter(stored.values())).path.parent


def _read_index(index: Path) -> dict[str, StoredTensor]:
    shard_of = read_json_object(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise ModelError(f"{index} must have a weight_map from tensor names to file names.")
    beside = {path.name for path in index.parent.iterdir() if path.is_file()}
    in_shard: dict[str, dict[str, StoredTensor]] = {}
    for shard in shard_of.values():
        # A shard lies beside its index: a name with a path in it would read some other file.
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelError(f"{index} names {shard!r} as a shard; it must be a plain file name.")
        if shard in in_shard:
            continue
        path = index.with_name(shard)
        if shard not in beside:
            raise ModelError(f"{index} names the shard {shard}, which is not there.")
        in_shard[shard] = {tensor.name: tensor for tensor in _tensors_of(path)}
    stored = {}
    for name, shard in shard_of.items():
        if name not in in_shard[shard]:
            raise ModelError(
                f"{index} places the tensor {name} in {shard}, which does not hold it."
            )
        stored[name] = in_shard[shard][name]
    return stored


def _tensors_of(path: Path) -> list[StoredTensor]:
    with open_safetensors(path) as file, naming(path):
        tensors = []
        for name in file.keys():  # noqa: SIM118  (a safetensors file is no dict)
            header = file.get_slice(name)
            tensors.append(StoredTensor(path, name, tuple(header.get_shape()), header.get_dtype()))
        return tensors
