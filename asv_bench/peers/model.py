"""A model that every engine loads from disk, and the same in double precision beside their tokens.

Each is made by a process of its own, `python -m asv_bench.peers.model`, which ends with its memory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asv_bench.errors import BenchError
from asv_bench.measure.processes import run_apart
from asv_bench.memory import read_bandwidth
from asv_bench.output.record import write_json
from asv_bench.peers.lives.life import Demand, Ids, PeerTask
from asv_bench.subjects.subject_file import SUBJECT
from asv_bench.workloads.named import Workload

if TYPE_CHECKING:
    from torch import Tensor

    from asv_bench.peers.lives.plain_decoder import PlainDecoder
    from engine.models.spec import DecoderSpec

WARMUPS = 2
"""On a workload: the first compiles, the second records what it replays."""
WINDOWS = 3
_MOST_TOKENS = {"cuda": 8192, "cpu": 256}
"""Of an engine on a workload that are compared, from the beginning of every request on."""


def put_on_disk(
    model: str,
    dtype_name: str,
    device_name: str,
    folder: str,
    workloads: Mapping[str, Sequence[Mapping[str, Any]]],
    options: Mapping[str, Any] | None = None,  # of the engines
) -> dict[str, Any]:
    """Write a built-in model, or find any other, and a task for each file of `workloads`.

    A task is all of its workloads, as `asdict` has them. The answer has the model's `dtype` and, by
    workload, `floors_ms`: how long reading the bytes of a decode step takes; None on the CPU.
    """
    import torch

    from engine.models.random_weights import random_weights
    from engine.models.registry import RANDOM_PREFIX, default_dtype, find_directory, model_spec

    device = torch.device(device_name)
    is_random = model.startswith(RANDOM_PREFIX)
    place = Path(folder) if is_random else find_directory(model)
    spec = model_spec(model)
    dtype = default_dtype(spec, device) if dtype_name == "auto" else getattr(torch, dtype_name)
    word = str(dtype).removeprefix("torch.")
    if is_random:
        spec.require_plain("files for other engines")
        _write(spec, random_weights(spec, seed=0, device=device, dtype=dtype), word, place)
    bandwidth = read_bandwidth(device_name)
    floors: dict[str, float | None] = {}
    options = options or {}
    for file, told in workloads.items():
        of_task = msgspec.convert(told, list[Workload])
        for one in of_task:
            floor = one.floor_ms(spec, word, bandwidth, dict(options))
            floors[one.name] = floor and floor / options.get("tensor_parallel_size", 1)
        # Of each number the largest; None, which limits nothing, where any workload has it.
        settings = [one.engine_settings() for one in of_task]
        values = {key: [one[key] for one in settings] for key in settings[0]}
        task = PeerTask(
            model=str(place),
            dtype=word,
            device=device_name,
            demands={
                one.name: Demand(
                    one.prompts(spec.vocab_size), [new for _, new in one.requests], one.steps
                )
                for one in of_task
            },
            batch=max(one.batch_size for one in of_task),
            max_length=max(one.max_length for one in of_task),
            engine={key: None if None in of_all else max(of_all) for key, of_all in values.items()},
            options=dict(options),
            warmups=WARMUPS,
            windows=WINDOWS,
        )
        write_json(Path(file), asdict(task))
    return {"dtype": word, "floors_ms": floors}


def _write(spec: DecoderSpec, weights: Mapping[str, Tensor], dtype: str, folder: Path) -> None:
    """The files of a model: config.json, model.safetensors, and a tokenizer that no run asks."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    from engine.models.families import FAMILIES
    from engine.models.weights import HEAD_NAME

    names = FAMILIES[spec.family].names
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    stored = {}
    for name, parts in names.parts(spec, shapes).items():
        for part in parts:
            rows = weights[name][part.first : part.first + part.shape[0]]
            prefix = "" if part.name == HEAD_NAME else names.prefix
            stored[prefix + part.name] = (rows.T if part.is_transposed else rows).cpu().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {**_config(spec), "dtype": dtype, "torch_dtype": dtype})
    # Some engines read the ids that end a sequence from here, or from the tokenizer alone.
    write_json(folder / "generation_config.json", {"eos_token_id": list(spec.eos_token_ids)})
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    # Some load a tokenizer though prompts are ids: it has a word for each.
    words = {f"t{number}": number for number in range(spec.vocab_size)}
    Tokenizer(WordLevel(words, unk_token="t0")).save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "t0", "unk_token": "t0"},
    )


def _config(spec: DecoderSpec) -> dict[str, Any]:
    """The config.json by which transformers and every engine know a spec."""
    config = {
        "model_type": spec.family,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tied_head,
        "bos_token_id": None,
        "eos_token_id": next(iter(spec.eos_token_ids), None),
    }
    if spec.rotary is None:
        return config | {
            "architectures": ["GPT2LMHeadModel"],
            "n_positions": spec.max_positions,
            "n_embd": spec.hidden_size,
            "n_layer": spec.num_layers,
            "n_head": spec.num_heads,
            "n_inner": spec.inner_size,
            "activation_function": spec.activation,
            "layer_norm_epsilon": spec.norm_epsilon,
            "scale_attn_weights": spec.scale_by_head_dim,
            "scale_attn_by_inverse_layer_idx": spec.scale_by_layer,
        }
    # Rotary settings in both spellings that transformers has had. Of built-in models those that
    # stretch waves do it as Llama 3.
    kind: dict[str, Any] = {"rope_type": "default"}
    if spec.rotary.scaling is not None:
        kind = {"rope_type": "llama3", **asdict(spec.rotary.scaling)}
        kind["original_max_position_embeddings"] = kind.pop("original_positions")
    return config | {
        "architectures": [f"{spec.family.capitalize()}ForCausalLM"],
        "max_position_embeddings": spec.max_positions,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.inner_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": spec.activation,
        "rms_norm_eps": spec.norm_epsilon,
        "attention_bias": spec.attention_out_bias,
        "rope_theta": spec.rotary.theta,
        "rope_scaling": kind if spec.rotary.scaling else None,
        "rope_parameters": {**kind, "rope_theta": spec.rotary.theta},
    }


def likelihoods(
    model: str, dtype: str, device: str, asked: Iterable[tuple[Ids, Ids]], seed: int = 0
) -> list[dict[str, Any]]:
    """How likely tokens are: of each that is asked for, prompts and new ids of each, in order.

    Of `tokens`, each after the very ones before it, `argmax` is the share that are likeliest.
    `largest_gap` is by how much the score of one was below the highest at most. The model computes
    in double precision, with weights of `dtype`.
    """
    import torch

    from asv_bench.peers.lives.plain_decoder import PlainDecoder

    try:
        with torch.inference_mode():
            stored = getattr(torch, dtype)
            decoder = PlainDecoder(model, stored, device, seed=seed, dtype=torch.float64)
            return [_likelihood(decoder, *one) for one in asked]
    except torch.OutOfMemoryError:
        raise BenchError(
            f"{device} has too little memory for {model} and for one of its matrices in double "
            f"precision; check a smaller model, with --model, or on a GPU with more memory."
        ) from None


def score(prompts: Ids, generated: Ids, **of_model: Any) -> dict[str, Any]:
    """The same of what a run of kvtrail's engine generated."""
    return likelihoods(asked=[(prompts, generated)], **of_model)[0]


def _likelihood(model: PlainDecoder, prompts: Ids, generated: Ids) -> dict[str, Any]:
    import torch
    import torch.nn.functional as F

    device = model.embedding.device
    requests = zip(map(tuple, prompts), map(tuple, generated), strict=True)
    distinct = list(dict.fromkeys(requests))
    most = max(1, _MOST_TOKENS[device.type] // len(distinct))
    gaps = []
    for prompt, new in distinct[: _MOST_TOKENS[device.type]]:
        ids = torch.tensor([[*prompt, *new[:most]]], device=device)
        places = torch.arange(ids.shape[1], device=device)
        mask = (places <= places[:, None])[None, None]
        hidden = model.hidden(ids, places[None], places, mask, model.cache(1, ids.shape[1]))
        scores = F.linear(hidden[0, len(prompt) - 1 : -1], model.head.double())
        gaps.append(scores.amax(-1) - scores.gather(-1, ids[0, len(prompt) :, None])[:, 0])
    gap = torch.cat(gaps)
    share = float((gap == 0).double().mean())
    return {"tokens": len(gap), "argmax": share, "largest_gap": float(gap.max())}


_APART = {one.__name__: one for one in (put_on_disk, likelihoods, score)}


def apart(failing: str, function: Callable[..., Any], **arguments: Any) -> Any:
    """What a function of `_APART` gives in a process of its own, see `run_apart`."""
    words = sys.executable, "-m", __name__, function.__name__
    return run_apart(words, failing, given=json.dumps(arguments))


def main() -> None:
    """Call a function as $KVTRAIL_RESULT says, where it leaves what it gives, or a sentence."""
    if root := os.environ.get(SUBJECT):
        sys.path.insert(0, root)  # the engine beside the ruler, whatever that of a commit is
    from engine.errors import KvtrailError

    file, function = Path(os.environ["KVTRAIL_RESULT"]), _APART[sys.argv[1]]
    try:
        write_json(file, function(**json.loads(file.read_text())))
    except (BenchError, KvtrailError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
