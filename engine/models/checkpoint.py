"""Weights from the safetensors files of a model directory, checked before they are read.

Only safetensors are read: a pickle can run any code. Every name and shape is checked against the
files' headers first, then the tensors go to the device one at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelError
from engine.memory import allocating
from engine.models.files import read_json_object, refuse_lfs_pointer

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"

# save_pretrained of a bare GPT2Model writes names without it.
_PREFIX = "transformer."
_HEAD = "lm_head.weight"
_TOKEN_EMBEDDING = "wte.weight"

# Causal masks, which early checkpoints carry along.
_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
_BACKBONE = re.compile(r"(h|ln_f|wte|wpe)\.")

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


def read_headers(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint, by its name in the files; no tensor itself is read.

    Parameters
    ----------
    directory : holds model.safetensors, or model.safetensors.index.json and its shards.

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
    _refuse_wrapped_names(stored)
    return stored


def load_weights(
    stored: Mapping[str, StoredTensor],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    is_stored_transposed: Callable[[str], bool],
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Read the parameters of a model.

    Parameters
    ----------
    stored : what `read_headers` found.
    shapes : name and shape of each parameter as the model uses it. Without `lm_head.weight` the
        head is tied.
    is_stored_transposed : whether the file holds the parameter of this name as [in, out].
    device, dtype : of the tensors returned.

    Returns
    -------
    The parameters named in `shapes`, contiguous. A tied checkpoint that stores a head of its own
    with other values than the token embedding gets a `lm_head.weight` too, as in transformers:
    what was stored is what was trained.

    Raises
    ------
    ModelError
        A tensor is missing, damaged, of a shape the config does not ask for, of a
        quantized type, or part of a model other than the config describes.
    ConfigError
        The device has too little memory for them.
    """
    chosen = _choose(stored, shapes)
    for name, tensor in chosen.items():
        shape = shapes[_TOKEN_EMBEDDING if name == _HEAD else name]
        _check_header(tensor, shape[::-1] if is_stored_transposed(name) else shape)

    weights = {}
    with allocating_weights(f"The weights in {_directory_of(stored)}", shapes, device, dtype):
        for path in sorted({tensor.path for tensor in chosen.values()}):
            with _open(path) as file:
                for name, tensor in chosen.items():
                    if tensor.path == path:
                        transposed = is_stored_transposed(name)
                        weights[name] = _read(file, tensor, transposed, device, dtype)
    if _HEAD not in shapes and _HEAD in weights:
        head = weights.pop(_HEAD)
        if not torch.equal(head, weights[_TOKEN_EMBEDDING]):
            weights[_HEAD] = head
    return weights


def allocating_weights(
    what: str, shapes: Mapping[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype
) -> AbstractContextManager[None]:
    """Surround what makes tensors of these `shapes`, as `engine.memory.allocating` does."""
    num_bytes = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
    type_name = str(dtype).removeprefix("torch.")
    remedy = "choose a smaller model, or a dtype of fewer bytes"
    return allocating(f"{what} as {type_name}", num_bytes, device, remedy)


def _choose(
    stored: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, StoredTensor]:
    """Which stored tensor serves each parameter."""
    plain = {name.removeprefix(_PREFIX): tensor for name, tensor in stored.items()}
    for name, tensor in plain.items():
        if _BACKBONE.match(name) and name not in shapes and not _BUFFER.fullmatch(name):
            raise ModelError(
                f"{tensor} belongs to no part of the GPT-2 that config.json describes; "
                "config.json and weights must come from the same model."
            )
    is_tied = _HEAD not in shapes
    if is_tied and _HEAD in plain:
        # The two may differ, and either may be the one that was kept.
        plain.setdefault(_TOKEN_EMBEDDING, plain[_HEAD])
    missing = [name for name in shapes if name not in plain]
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ModelError(
            f"The weights in {_directory_of(stored)} lack the tensor {missing[0]}{others}, which "
            "the GPT-2 that config.json describes needs."
        )
    return {name: plain[name] for name in (*shapes, _HEAD) if name in plain}


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


def _read(
    file: Any, tensor: StoredTensor, transposed: bool, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Copy one tensor to the device; what the file maps is never kept."""
    with _naming(tensor.path):
        loaded = file.get_tensor(tensor.name).to(device)
    weight = torch.empty(
        loaded.shape[::-1] if transposed else loaded.shape, device=device, dtype=dtype
    )
    weight.copy_(loaded.t() if transposed else loaded)
    # An infinity or a NaN anywhere shows in the smallest or the largest element.
    if not torch.stack(torch.aminmax(weight)).isfinite().all():
        raise ModelError(f"{tensor} holds values that are not finite in {dtype}.")
    return weight


def _refuse_wrapped_names(stored: Mapping[str, StoredTensor]) -> None:
    # The backbone may have been wrapped alone.
    of_backbone = [name.removeprefix(_PREFIX) for name in stored if name != _HEAD]
    for prefix, wrapper in _WRAPPERS.items():
        for names in (stored, of_backbone):
            if names and all(name.startswith(prefix) for name in names):
                raise ModelError(
                    f"The names of the tensors in {_directory_of(stored)} begin with {prefix!r}, "
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
