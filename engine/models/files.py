"""Reading the files of a model directory: JSON, and the tensors of safetensors files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

FLOAT_TYPES = ("F16", "BF16", "F32", "F64")
"""Of unquantized tensors, as the headers of safetensors files name them."""

_LFS_BEGINNING = b"version https://git-lfs.github.com/spec/"


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file that must hold an object; a ModelError names the file otherwise."""
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        refuse_lfs_pointer(path)
        raise ModelError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{path} must hold a JSON object, not a {type(parsed).__name__}.")
    return parsed


def refuse_lfs_pointer(path: Path) -> None:
    """Raise a ModelError if `path` is a Git LFS pointer, which a clone without LFS has in place of
    a large file; the sentence says how to get the file itself."""
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS_BEGINNING)) == _LFS_BEGINNING
    except OSError:
        return
    if is_pointer:
        raise ModelError(
            f"{path} is a Git LFS pointer, not the file that it stands for: run `git lfs pull` "
            "where it was cloned, or fetch the file itself."
        )


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies, and what the header of its file says of it."""

    path: Path
    name: str
    shape: tuple[int, ...]
    type_name: str

    def __str__(self) -> str:
        return f"The tensor {self.name} in {self.path}"

    def read(self) -> Tensor:
        """All of it, on the CPU."""
        with open_safetensors(self.path) as file, naming(self.path):
            tensor: Tensor = file.get_tensor(self.name)
        return tensor


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """A safetensors file, closed behind the block; a ModelError names it if it is none."""
    from safetensors import safe_open

    with naming(path):
        opened = safe_open(str(path), framework="pt", device="cpu")
    with opened as file:
        yield file


@contextmanager
def naming(path: Path) -> Iterator[None]:
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
