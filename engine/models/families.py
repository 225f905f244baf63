"""The families of models that the engine runs, and which of them a config.json speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.models.family import Family
from engine.models.fields import Fields
from engine.models.files import read_json_object
from engine.models.gemma import GEMMA3
from engine.models.gpt2 import GPT2
from engine.models.llama import LLAMA
from engine.models.mistral import MISTRAL
from engine.models.quantization import read_quantization
from engine.models.qwen import QWEN2, QWEN3
from engine.models.spec import DecoderSpec

FAMILIES: dict[str, Family] = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma3_text": GEMMA3,
}
"""By the model_type in config.json."""

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_OTHER_SENSES = ("vision_config", "audio_config", "text_config")


def read_config(directory: Path) -> DecoderSpec:
    """Read config.json, and generation_config.json where there is one, of a model directory.

    Raises
    ------
    ModelError
        A file is missing or is not a JSON object, or `spec_of` refuses it; the sentence names the
        file.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{directory} has no config.json; a model directory holds config.json and "
            "model.safetensors (or its shards), as save_pretrained writes them."
        )
    values = read_json_object(path)
    generation_path = directory / "generation_config.json"
    generation = read_json_object(generation_path) if generation_path.is_file() else None
    try:
        return spec_of(values, generation)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def spec_of(values: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> DecoderSpec:
    """The spec of a parsed config.json. Keys without effect on inference are ignored.

    Parameters
    ----------
    values
        The parsed config.json.
    generation
        The parsed generation_config.json, whose end-of-sequence ids take precedence.

    Raises
    ------
    ModelError
        The engine runs no such family, an option is not supported, or a value makes no sense.
    """
    fields = Fields(values, generation)
    model_type = fields.get("model_type")
    known = ", ".join(f'"{name}"' for name in FAMILIES)
    if model_type is None:
        raise ModelError(f'It has no "model_type"; for this engine it must be one of {known}.')
    _refuse_other_kinds(fields, known)
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ModelError(f"The model_type is {model_type!r}; this engine runs {known}.")
    family = FAMILIES[model_type]
    quantization = read_quantization(fields)
    if quantization is not None and family.names.are_linears_transposed:
        raise ModelError(
            f"It has a quantization_config; of a {family.title} this engine runs float32, float16 "
            'and bfloat16 weights, which quantization="fp8" rounds when they are loaded.'
        )
    code = fields.get("auto_map")
    if isinstance(code, Mapping) and any("Model" in str(name) for name in code):
        raise ModelError(
            "Its auto_map names model code of its own, which is never run; "
            f"only the plain {family.title} architecture is supported."
        )
    return replace(family.read(fields), quantization=quantization)


def _refuse_other_kinds(fields: Fields, known: str) -> None:
    """Refuse what no family is, by what it is rather than by its name."""
    model_type = fields.get("model_type")
    for name in _EXPERTS:
        if fields.get(name) not in (None, 0, 1):
            raise ModelError(
                f"The model_type is {model_type!r} with {name} {fields.get(name)!r}, a mixture of "
                f"experts; this engine runs dense models: {known}."
            )
    for name in _OTHER_SENSES:
        if fields.get(name) is not None:
            raise ModelError(
                f"The model_type is {model_type!r} with a {name}, a model of more than text; this "
                f"engine runs models of text alone: {known}."
            )
