"""Reading the fields of a config.json: each of its own kind, or refused in a sentence."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from engine.errors import ModelError

_DTYPE_NAMES = ("float64", "float32", "float16", "bfloat16")
_LAYER_KINDS = ("full_attention", "sliding_attention")


class Fields:
    """The fields of a parsed config.json, and the end-of-sequence ids beside it.

    A field whose value is null counts as given, as transformers has it, unless it is asked for with
    `or_none`.

    Parameters
    ----------
    values
        The parsed config.json, or an object inside it.
    generation
        The parsed generation_config.json, whose end-of-sequence ids take precedence.
    """

    def __init__(
        self, values: Mapping[str, Any], generation: Mapping[str, Any] | None = None
    ) -> None:
        self._values = values
        self._generation = generation or {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None, *, also: tuple[str, ...] = ()) -> Any:
        """The value under `name`, or under the first of the names in `also` that is there."""
        for key in (name, *also):
            if key in self._values:
                return self._values[key]
        return default

    def integer(self, name: str, default: int, *, also: tuple[str, ...] = ()) -> int:
        """A whole number."""
        value = self.get(name, default, also=also)
        if not _is_integer(value):
            raise ModelError(f"{name} is {value!r}; it must be an integer.")
        return int(value)

    def integer_or_none(self, name: str, default: int | None = None) -> int | None:
        """A whole number, or null."""
        return None if self.get(name, default) is None else self.integer(name, default or 0)

    def number(self, name: str, default: float | None = None) -> float:
        """A number; one that is too large for a float is infinite."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{name} is {value!r}; it must be a number.")
        try:
            return float(value)
        except OverflowError:
            return math.inf

    def positive(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.number(name, default)
        if not (math.isfinite(value) and value > 0):
            raise ModelError(f"{name} is {value}; it must be a positive number.")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{name} is {value!r}; it must be true or false.")
        return value

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise ModelError(f"{name} is {value!r}; it must be a string.")
        return value

    def nested(self, name: str) -> Fields | None:
        """The object under `name`; None where there is none, or an empty one."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ModelError(f"{name} is {value!r}; it must be an object, or null.")
        return Fields(value) if value else None

    def global_layers(self, num_layers: int, default: Collection[int]) -> Collection[int]:
        """Which layers (0-based) attend to all tokens, as layer_types says where it is given."""
        kinds = self.get("layer_types")
        if kinds is None:
            return default
        if not isinstance(kinds, list) or not all(kind in _LAYER_KINDS for kind in kinds):
            raise ModelError(
                f"layer_types is {kinds!r}; every layer must be "
                f"{' or '.join(map(repr, _LAYER_KINDS))}."
            )
        if len(kinds) != num_layers:
            raise ModelError(
                f"layer_types names {len(kinds)} layers; it must name num_hidden_layers, "
                f"{num_layers}."
            )
        return frozenset(layer for layer, kind in enumerate(kinds) if kind == _LAYER_KINDS[0])

    def dtype(self) -> str | None:
        """The name of the type that the checkpoint was written in."""
        value = self.get("dtype", also=("torch_dtype",))
        if value is None:
            return None
        name = value.removeprefix("torch.") if isinstance(value, str) else value
        if name not in _DTYPE_NAMES:
            raise ModelError(f"dtype is {value!r}; it must be one of {', '.join(_DTYPE_NAMES)}.")
        return str(name)

    def eos_token_ids(self, vocab_size: int, default: int | None) -> tuple[int, ...]:
        """Ids that end a sequence, ascending."""
        value = self._generation.get("eos_token_id")
        if value is None:
            value = self.get("eos_token_id", default)
        token_ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(_is_integer(token_id) for token_id in token_ids):
            raise ModelError(f"eos_token_id is {value!r}; it must be an integer or a list of them.")
        # An id that the model cannot produce cannot end anything: transformers writes 50256 for a
        # GPT-2 of any vocabulary, so this is common and not an error.
        return tuple(sorted({token_id for token_id in token_ids if 0 <= token_id < vocab_size}))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
