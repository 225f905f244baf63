"""How an engine comes to be: its ranks, its model, its limits, and the loop that runs them."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.decoder import Decoder
from engine.models.registry import load_model, model_spec
from engine.models.share import WHOLE, Share
from engine.models.spec import DecoderSpec
from engine.parallel.ranks import Ranks
from engine.running.step_loop import StepLoop
from engine.running.threads import set_threads
from engine.text.tokenizer import Tokenizer
from engine.worker.device import (
    device_scope,
    require_eight_bits,
    resolve_device,
    resolve_devices,
    resolve_dtype,
)
from engine.worker.room import allocating_worker, room_for_blocks


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine runs, and within which limits.

    The model is this rank's part of it, and `model_config` that of the whole.
    """

    device: torch.device
    model: Decoder
    model_config: DecoderSpec
    tokenizer: Tokenizer | None
    max_model_len: int
    decode_mode: str
    num_kv_blocks: int
    loop: StepLoop
    ranks: Ranks | None


def build(config: EngineConfig) -> Parts:
    """Load the model, start the ranks, and allocate what both need.

    Raises
    ------
    ModelError, DeviceError, ConfigError
        When the model cannot be loaded, the device is not there, or an option does not fit them.
    """
    device = resolve_device(config.device)
    if config.kv_cache_dtype == "fp8":
        require_eight_bits(device)
    if device.type == "cpu":
        set_threads(config.threads, config.tensor_parallel_size)
    with device_scope(device):
        if config.tensor_parallel_size == 1:
            return _built(config, device, None)
        ranks = _started_ranks(config, device)
        try:
            return _built(config, device, ranks)
        except BaseException:
            ranks.end()
            raise


def _built(config: EngineConfig, device: torch.device, ranks: Ranks | None) -> Parts:
    share, group = (WHOLE, None) if ranks is None else (ranks.share, ranks.group)
    loaded = load_model(
        config.model,
        device=device,
        dtype=resolve_dtype(config.dtype),
        seed=config.seed,
        share=share,
        group=group,
        quantization=config.quantization,
        max_model_len=config.max_model_len,
    )
    model, length = loaded.model, _longest_sequence(config, loaded.config)
    mode = _decode_mode(config, device)
    uses_graphs = mode == "graph"
    blocks = config.num_kv_blocks or room_for_blocks(config, model, length, uses_graphs=uses_graphs)
    if ranks is not None:
        # Of every rank the cache is as large.
        blocks = min(blocks, *ranks.rooms())
    with allocating_worker(config, model, length, blocks, uses_graphs=uses_graphs):
        loop = StepLoop(
            config,
            model,
            max_model_len=length,
            num_kv_blocks=blocks,
            use_graphs=uses_graphs,
            ranks=ranks,
        )
    return Parts(device, model, loaded.config, loaded.tokenizer, length, mode, blocks, loop, ranks)


def _started_ranks(config: EngineConfig, device: torch.device) -> Ranks:
    """The other ranks, which begin to load their parts of the model."""
    spec = model_spec(os.fspath(config.model))
    share = Share(0, config.tensor_parallel_size)
    # Refused before any process starts where the model does not divide.
    share.spec(spec)
    return Ranks(
        config,
        resolve_devices(device, share.ranks),
        max_model_len=_longest_sequence(config, spec),
        uses_graphs=_decode_mode(config, device) == "graph",
    )


def _longest_sequence(config: EngineConfig, model: DecoderSpec) -> int:
    wanted = config.max_model_len
    if wanted is not None and wanted > model.max_positions:
        raise ConfigError(
            f"max_model_len is {wanted}, but {config.model} has positions for "
            f"{model.max_positions}."
        )
    return wanted or model.max_positions


def _decode_mode(config: EngineConfig, device: torch.device) -> str:
    if config.decode == "auto":
        return "graph" if device.type == "cuda" else "eager"
    if config.decode == "graph" and device.type != "cuda":
        raise ConfigError(
            "decode is 'graph', but CUDA graphs need a CUDA device: use 'auto' or 'eager'."
        )
    return config.decode
