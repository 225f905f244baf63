"""Weights from the safetensors files of a model directory, checked before they are read.

Only safetensors are read: a pickle can run any code. Every name and shape is checked against the
files' headers first, then the tensors go to the device one at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelError
from engine.memory import allocating
from engine.models.family import Family
from engine.models.files import read_json_object, refuse_lfs_pointer
from engine.models.share import WHOLE, Copied, Share
from engine.models.spec import DecoderSpec
from engine.models.weights import HEAD, HEAD_NAME, TOKEN_EMBEDDING, StoredPart, parameter_shapes

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"

# What wraps a model puts its own name before all of the model's.
_WRAPPERS = {
    "module.": "DataParallel or DistributedDataParallel",
    "_orig_mod.": "torch.compile",
    "_fsdp_wrapped_module.": "FullyShardedDataParallel",
}

_FLOAT_TYPES = ("F16", "BF16", "F32", "F64")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies, and what the header of its file says of it."""

    path: Path
    name: str
    shape: tuple[int, ...]
    type_name: str

    def __str__(self) -> str:
        return f"The tensor {self.name} in {self.path}"


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
) -> dict[str, Tensor]:
    """Read the parameters of a model.

    Parameters
    ----------
    stored
        What `read_headers` found.
    family, config
        What the parameters are called in the files, and which there are.
    device, dtype
        Of the tensors returned.
    share
        The part of each parameter that is read.

    Returns
    -------
    The parameters of `engine.models.weights.parameter_shapes`, contiguous. A tied checkpoint that
    stores a head of its own with other values than the token embedding gets a head too, as in
    transformers: what was stored is what was trained.

    Raises
    ------
    ModelError
        A tensor is missing, damaged, of a shape the config does not ask for, of a
        quantized type, or part of a model other than the config describes.
    ConfigError
        The device has too little memory for them.
    """
    part, shapes = share.spec(config), parameter_shapes(share.spec(config))
    # A tied checkpoint may store a head all the same.
    stored_shapes = {HEAD: parameter_shapes(replace(part, tied_head=False))[HEAD], **shapes}
    whole = parameter_shapes(replace(config, tied_head=False))
    chosen = _choose(stored, family, config)
    for one in chosen:
        shape = one.part.shape
        _check_header(one.tensor, shape[::-1] if one.part.is_transposed else shape)
    with allocating_weights(f"The weights in {_directory_of(stored)}", shapes, device, dtype):
        weights: dict[str, Tensor] = {}
        for path in sorted({one.tensor.path for one in chosen}):
            with _open(path) as file:
                for one in chosen:
                    if one.tensor.path == path:
                        name = one.parameter
                        if name not in weights:
                            # What no part of a file fills is zero.
                            shape = stored_shapes[name]
                            weights[name] = torch.zeros(shape, device=device, dtype=dtype)
                        cut = share.cut(config, name, whole[name])
                        for copied in share.copied(cut, one.part):
                            _read(file, one, copied, weights[name])
    if HEAD not in shapes and HEAD in weights:
        head = weights.pop(HEAD)
        if not torch.equal(head, share.take(config, HEAD, weights[TOKEN_EMBEDDING])):
            weights[HEAD] = head
    return weights


def allocating_weights(
    what: str, shapes: Mapping[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype
) -> AbstractContextManager[None]:
    """Surround what makes tensors of these `shapes`, as `engine.memory.allocating` does."""
    num_bytes = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
    type_name = str(dtype).removeprefix("torch.")
    remedy = "choose a smaller model, or a dtype of fewer bytes"
    return allocating(f"{what} as {type_name}", num_bytes, device, remedy)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A stored tensor, the parameter that it serves, and which part of it."""

    parameter: str
    part: StoredPart
    tensor: StoredTensor


def _choose(
    stored: Mapping[str, StoredTensor], family: Family, config: DecoderSpec
) -> list[_Choice]:
    """Which stored tensors serve each parameter."""
    parts = family.names.parts(config, parameter_shapes(config))
    _refuse_foreign_tensors(stored, family, {part.name for one in parts.values() for part in one})
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
        _Choice(parameter, part, found[part.name])
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


def _check_header(tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ModelError(
            f"{tensor} has the shape {list(tensor.shape)}; config.json asks for {list(shape)}."
        )
    if tensor.type_name not in _FLOAT_TYPES:
        raise ModelError(
            f"{tensor} has the type {tensor.type_name}; weights must be unquantized "
            "(F16, BF16, F32 or F64)."
        )


def _read(file: Any, chosen: _Choice, copied: Copied, parameter: Tensor) -> None:
    """Copy a tensor, or a part of it, into a parameter; what the file maps is never kept."""
    part, tensor, source = chosen.part, chosen.tensor, copied.source
    with _naming(tensor.path):
        if len(source) == 1 and source[0] == slice(0, part.shape[0]):
            loaded = file.get_tensor(tensor.name)
        else:
            if len(source) < len(part.shape):
                source = (*source, slice(None))
            loaded = file.get_slice(tensor.name)[source[::-1] if part.is_transposed else source]
        loaded = loaded.to(parameter.device)
    filled = parameter[copied.target]
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
    with _open(path) as file, _naming(path):
        tensors = []
        for name in file.keys():  # noqa: SIM118  (a safetensors file is no dict)
            header = file.get_slice(name)
            tensors.append(StoredTensor(path, name, tuple(header.get_shape()), header.get_dtype()))
        return tensors


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    from safetensors import safe_open

    with _naming(path):
        opened = safe_open(str(path), framework="pt", device="cpu")
    with opened as file:
        yield file


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn what safetensors raises into a sentence that names the file."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        refuse_lfs_pointer(path)
        raise ModelError(
            f"{path} is damaged or is no safetensors file ({error}); fetch or save it again."
        ) from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
