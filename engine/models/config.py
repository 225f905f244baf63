"""What a GPT-2 is: its shape and options, read from the config.json beside its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.models.activations import activation_function
from engine.models.files import read_json_object

# Other names under which transformers reads and writes the same field.
_ALIASES: dict[str, tuple[str, ...]] = {
    "n_positions": ("max_position_embeddings", "n_ctx"),
    "n_embd": ("hidden_size",),
    "n_layer": ("num_hidden_layers",),
    "n_head": ("num_attention_heads",),
}

_LARGEST_SIZE = 2**31 - 1
"""Of any size that a config may claim: places in a tensor's dimension are counted in 32 bits."""

_DTYPE_NAMES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class GPT2Config:
    """The shape and options of one GPT-2.

    Attributes
    ----------
    vocab_size, max_positions, num_layers, num_heads, hidden_size, inner_size : int
        Rows of the token and the position embedding, blocks, attention heads, width of the
        residual stream, width of the feed-forward layer.
    activation : str
        Feed-forward activation, a name of `engine.models.activations`.
    layer_norm_epsilon : float
    tied_head : bool
        The output head is the token embedding.
    eos_token_ids : tuple[int, ...]
        Ids that end a sequence; those outside the vocabulary are left out.
    scale_by_head_dim, scale_by_layer : bool
        Parts of the attention scale, see `attention_scale`.
    dtype : str | None
        The type the checkpoint says it was written in: float64, float32, float16 or bfloat16.
    """

    vocab_size: int = 50257
    max_positions: int = 1024
    num_layers: int = 12
    num_heads: int = 12
    hidden_size: int = 768
    inner_size: int = 3072
    activation: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    tied_head: bool = True
    eos_token_ids: tuple[int, ...] = (50256,)
    scale_by_head_dim: bool = True
    scale_by_layer: bool = False
    dtype: str | None = None

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size",
            "max_positions",
            "num_layers",
            "num_heads",
            "hidden_size",
            "inner_size",
        )
        for name in sizes:
            size = getattr(self, name)
            if size < 1:
                raise ModelError(f"{name} is {_shown(size)}; it must be at least 1.")
            if size > _LARGEST_SIZE:
                raise ModelError(f"{name} is {_shown(size)}; it must be at most {_LARGEST_SIZE}.")
        if self.hidden_size % self.num_heads:
            raise ModelError(
                f"The hidden size {self.hidden_size} does not divide into {self.num_heads} heads; "
                "it must be a multiple of the number of heads."
            )
        if not (math.isfinite(self.layer_norm_epsilon) and self.layer_norm_epsilon > 0):
            raise ModelError(
                f"layer_norm_epsilon is {self.layer_norm_epsilon}; it must be a positive number."
            )
        activation_function(self.activation)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def num_kv_heads(self) -> int:
        """Heads of K and V: in GPT-2 one for each query head."""
        return self.num_heads

    def attention_scale(self, layer: int) -> float:
        """Factor on the scores q.k of `layer` (0-based) before the softmax."""
        scale = self.head_dim**-0.5 if self.scale_by_head_dim else 1.0
        return scale / (layer + 1) if self.scale_by_layer else scale

    @classmethod
    def from_json(
        cls, fields: Mapping[str, Any], generation: Mapping[str, Any] | None = None
    ) -> GPT2Config:
        """Read the fields of a config.json, with transformers' defaults for those it leaves out.

        Parameters
        ----------
        fields : the parsed config.json. Keys without effect on inference are ignored.
        generation : the parsed generation_config.json, whose end-of-sequence ids take precedence.

        Raises
        ------
        ModelError
            The model is no GPT-2, an option is not supported, or a value makes no sense.
        """
        _refuse_what_is_not_supported(fields)
        vocab_size = _integer(fields, "vocab_size", 50257)
        hidden_size = _integer(fields, "n_embd", 768)
        inner_size = _field(fields, "n_inner", None)
        return cls(
            vocab_size=vocab_size,
            max_positions=_integer(fields, "n_positions", 1024),
            num_layers=_integer(fields, "n_layer", 12),
            num_heads=_integer(fields, "n_head", 12),
            hidden_size=hidden_size,
            inner_size=4 * hidden_size if inner_size is None else _integer(fields, "n_inner", 0),
            activation=_text(fields, "activation_function", "gelu_new"),
            layer_norm_epsilon=_number(fields, "layer_norm_epsilon", 1e-5),
            tied_head=_flag(fields, "tie_word_embeddings", True),
            eos_token_ids=_eos_token_ids(fields, generation or {}, vocab_size),
            scale_by_head_dim=_flag(fields, "scale_attn_weights", True),
            scale_by_layer=_flag(fields, "scale_attn_by_inverse_layer_idx", False),
            dtype=_dtype_name(fields),
        )


def read_config(directory: Path) -> GPT2Config:
    """Read config.json, and generation_config.json where there is one, of a model directory.

    Raises
    ------
    ModelError
        A file is missing or is not a JSON object, or `GPT2Config.from_json` refuses it; the
        sentence names the file.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{directory} has no config.json; a model directory holds config.json and "
            "model.safetensors (or its shards), as save_pretrained writes them."
        )
    fields = read_json_object(path)
    generation_path = directory / "generation_config.json"
    generation = read_json_object(generation_path) if generation_path.is_file() else None
    try:
        return GPT2Config.from_json(fields, generation)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _refuse_what_is_not_supported(fields: Mapping[str, Any]) -> None:
    model_type = fields.get("model_type")
    if model_type is None:
        raise ModelError('It has no "model_type"; for this engine it must be "gpt2".')
    if model_type != "gpt2":
        raise ModelError(f'The model_type is {model_type!r}; this engine runs "gpt2".')
    if _flag(fields, "add_cross_attention", False):
        raise ModelError(
            "add_cross_attention is set; this engine runs decoder-only GPT-2, without an encoder."
        )
    if fields.get("quantization_config") is not None:
        raise ModelError(
            "It has a quantization_config; this engine runs float32, float16 and bfloat16 weights."
        )
    if fields.get("pruned_heads"):
        raise ModelError("It has pruned_heads; every layer must have all its heads.")
    code = fields.get("auto_map")
    if isinstance(code, Mapping) and any("Model" in str(name) for name in code):
        raise ModelError(
            "Its auto_map names model code of its own, which is never run; "
            "only the plain GPT-2 architecture is supported."
        )
    # The kernels accumulate scores and softmax in float32 and scale the float32 product, which is
    # what this option asks for: with it or without it the result is the same.
    _flag(fields, "reorder_and_upcast_attn", False)


def _field(fields: Mapping[str, Any], name: str, default: Any) -> Any:
    for key in (name, *_ALIASES.get(name, ())):
        if key in fields:
            return fields[key]
    return default


def _integer(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = _field(fields, name, default)
    if not _is_integer(value):
        raise ModelError(f"{name} is {value!r}; it must be an integer.")
    return int(value)


def _number(fields: Mapping[str, Any], name: str, default: float) -> float:
    value = _field(fields, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"{name} is {value!r}; it must be a number.")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = _field(fields, name, default)
    if not isinstance(value, bool):
        raise ModelError(f"{name} is {value!r}; it must be true or false.")
    return value


def _text(fields: Mapping[str, Any], name: str, default: str) -> str:
    value = _field(fields, name, default)
    if not isinstance(value, str):
        raise ModelError(f"{name} is {value!r}; it must be a string.")
    return value


def _shown(size: int) -> str:
    """A number of which Python may refuse to write all digits."""
    return str(size) if abs(size) < 10**20 else f"a number of {size.bit_length()} bits"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _eos_token_ids(
    fields: Mapping[str, Any], generation: Mapping[str, Any], vocab_size: int
) -> tuple[int, ...]:
    source = generation if generation.get("eos_token_id") is not None else fields
    value = source.get("eos_token_id", 50256)
    token_ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(_is_integer(token_id) for token_id in token_ids):
        raise ModelError(f"eos_token_id is {value!r}; it must be an integer or a list of them.")
    # An id that the model cannot produce cannot end anything: transformers writes 50256 for any
    # vocabulary, so this is common and not an error.
    return tuple(sorted({token_id for token_id in token_ids if 0 <= token_id < vocab_size}))


def _dtype_name(fields: Mapping[str, Any]) -> str | None:
    value = fields.get("dtype", fields.get("torch_dtype"))
    if value is None:
        return None
    name = value.removeprefix("torch.") if isinstance(value, str) else value
    if name not in _DTYPE_NAMES:
        raise ModelError(f"dtype is {value!r}; it must be one of {', '.join(_DTYPE_NAMES)}.")
    return str(name)
