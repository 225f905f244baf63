"""A built-in model on disk in Hugging Face's format, so that every engine loads the same weights.

Run as `python -m asv_bench.peers.checkpoint MODEL DTYPE DEVICE FOLDER RECORD`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asv_bench.errors import BenchError, MeasurementFailed
from asv_bench.memory.bandwidth import read_bandwidth
from asv_bench.memory.floor import describe, step_bytes
from asv_bench.output.record import write_json
from asv_bench.process.run_apart import last_words, run_apart

if TYPE_CHECKING:
    from torch import Tensor

    from engine.models.rotary import Rotary
    from engine.models.spec import DecoderSpec

_NAMES_OF_GPT2 = {
    "n_positions": "max_positions",
    "n_embd": "hidden_size",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "n_inner": "inner_size",
    "activation_function": "activation",
    "layer_norm_epsilon": "norm_epsilon",
    "scale_attn_weights": "scale_by_head_dim",
    "scale_attn_by_inverse_layer_idx": "scale_by_layer",
}
_NAMES_LIKE_LLAMA = {
    "max_position_embeddings": "max_positions",
    "hidden_size": "hidden_size",
    "intermediate_size": "inner_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "hidden_act": "activation",
    "rms_norm_eps": "norm_epsilon",
    "attention_bias": "attention_out_bias",
}
"""Of a config.json, and of a spec."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model in a folder of Hugging Face's format, and the type in which every engine runs it.

    `sizes` decide how many bytes a step reads, by the names of `memory.floor.ModelConfig`: those of
    the weights, and of each token that it attends to. `bytes_per_second` is the read bandwidth of
    the device; None on the CPU.
    """

    folder: str
    dtype: str
    sizes: dict[str, int]
    step_bytes_alone: float
    step_bytes_per_token: float
    bytes_per_second: float | None

    def floor_ms(self, batch: int, mean_context: float) -> float | None:
        """Milliseconds that reading the bytes of a decode step takes; None on the CPU."""
        if self.bytes_per_second is None:
            return None
        read = self.step_bytes_alone + batch * mean_context * self.step_bytes_per_token
        return 1e3 * read / self.bytes_per_second


def write_checkpoint(model: str, dtype_name: str, device_name: str, folder: Path) -> Checkpoint:
    """Put a built-in model on disk, or find the folder of any other.

    Random weights are drawn on the device. MeasurementFailed if the model has parts that its
    family's config.json does not name.
    """
    import torch

    from engine.models.families import read_config
    from engine.models.random_weights import random_weights
    from engine.models.registry import RANDOM_PREFIX, default_dtype, find_directory, random_config

    device = torch.device(device_name)
    is_random = model.startswith(RANDOM_PREFIX)
    folder = folder if is_random else find_directory(model)
    spec = random_config(model) if is_random else read_config(folder)
    dtype = default_dtype(spec, device) if dtype_name == "auto" else getattr(torch, dtype_name)
    word = str(dtype).removeprefix("torch.")
    if is_random:
        _write(spec, random_weights(spec, seed=0, device=device, dtype=dtype), word, folder)
    alone = step_bytes(spec, dtype=word, batch_size=0, mean_context=0)
    a_token = step_bytes(spec, dtype=word, batch_size=1, mean_context=1) - alone
    bandwidth = read_bandwidth(device_name)
    per_second = None if bandwidth is None else bandwidth.bytes_per_second
    return Checkpoint(str(folder), word, describe(spec), alone, a_token, per_second)


def _write(spec: DecoderSpec, weights: Mapping[str, Tensor], dtype: str, folder: Path) -> None:
    """The files of a model: config.json, model.safetensors, and a tokenizer that no run asks."""
    from safetensors.torch import save_file

    from engine.models.families import FAMILIES
    from engine.models.weights import HEAD_NAME

    names = FAMILIES[spec.family].names
    stored = {}
    for name, parts in names.parts(spec, {k: tuple(v.shape) for k, v in weights.items()}).items():
        for part in parts:
            rows = weights[name][part.first : part.first + part.shape[0]]
            prefix = "" if part.name == HEAD_NAME else names.prefix
            stored[prefix + part.name] = (rows.T if part.is_transposed else rows).cpu().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {**_config(spec), "dtype": dtype, "torch_dtype": dtype})
    # Some engines read the ids that end a sequence from here, or from the tokenizer alone.
    write_json(folder / "generation_config.json", {"eos_token_id": list(spec.eos_token_ids)})
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(spec.vocab_size, folder)


def _config(spec: DecoderSpec) -> dict[str, Any]:
    """The config.json by which transformers and every engine know a spec."""
    names = _NAMES_LIKE_LLAMA if spec.rotary else _NAMES_OF_GPT2
    family = f"{spec.family.capitalize()}ForCausalLM" if spec.rotary else "GPT2LMHeadModel"
    return {
        "architectures": [family],
        "model_type": spec.family,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tied_head,
        "bos_token_id": None,
        "eos_token_id": next(iter(spec.eos_token_ids), None),
        **{name: getattr(spec, ours) for name, ours in names.items()},
        **(_rotary(spec.rotary) if spec.rotary else {}),
    }


def _rotary(rotary: Rotary) -> dict[str, Any]:
    """Rotary settings in both spellings that transformers has had."""
    from engine.models.rotary import Llama3

    kind: dict[str, Any] = {"rope_type": "default"}
    if isinstance(rotary.scaling, Llama3):
        kind = {
            "rope_type": "llama3",
            "factor": rotary.scaling.factor,
            "low_freq_factor": rotary.scaling.low_freq_factor,
            "high_freq_factor": rotary.scaling.high_freq_factor,
            "original_max_position_embeddings": rotary.scaling.original_positions,
        }
    elif rotary.scaling is not None:
        raise MeasurementFailed(f"no built-in model has rotary positions such as {rotary.scaling}.")
    return {
        "rope_theta": rotary.theta,
        "rope_scaling": kind if rotary.scaling else None,
        "rope_parameters": {**kind, "rope_theta": rotary.theta},
    }


def _write_tokenizer(vocab_size: int, folder: Path) -> None:
    """A word for each id: some engines load a tokenizer though prompts are ids."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {f"t{number}": number for number in range(vocab_size)}
    Tokenizer(WordLevel(words, unk_token="t0")).save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "t0", "unk_token": "t0"},
    )


def checkpoint_in(folder: Path, model: str, dtype: str, device: str) -> Checkpoint:
    """The model in a folder that every engine can read, this one where it is written.

    A process of its own does it. MeasurementFailed if there is no such model.
    """
    told = folder.with_suffix(".json")
    words = (sys.executable, "-m", "asv_bench.peers.checkpoint")
    done = run_apart([*words, model, dtype, device, str(folder), str(told)])
    if done.returncode:
        raise MeasurementFailed(f"{model} cannot be put on disk: {last_words(done.stderr)}")
    return Checkpoint(**json.loads(told.read_text()))


def main(model: str, dtype: str, device: str, folder: str, told: str) -> None:
    """Write a checkpoint and what it is; failures are sentences."""
    from engine.errors import KvtrailError

    try:
        checkpoint = write_checkpoint(model, dtype, device, Path(folder))
    except (BenchError, KvtrailError) as error:
        sys.exit(f"error: {error}")
    write_json(Path(told), asdict(checkpoint))


if __name__ == "__main__":
    main(*sys.argv[1:])
