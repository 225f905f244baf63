"""All that the ladder takes from the engine it runs on, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asv_bench.subjects.engine_parts import engine_part
from engine import Engine, EngineConfig, IntegrityError, SamplingParams, TokenEvent
from kernels import kv_append, paged_attention_decode, paged_attention_prefill
from kernels.backend import interpreting

if TYPE_CHECKING:
    from engine.models.gpt2 import GPT2
    from engine.models.random_weights import random_weights
    from engine.models.registry import load_model
    from engine.running.device import device_scope, resolve_device, resolve_dtype
    from engine.running.sampler import sample_greedy
    from engine.transport.staging import StagingBuffers
else:
    GPT2 = engine_part("GPT2")
    StagingBuffers = engine_part("StagingBuffers")
    device_scope = engine_part("device_scope")
    load_model = engine_part("load_model")
    random_weights = engine_part("random_weights")
    resolve_device = engine_part("resolve_device")
    resolve_dtype = engine_part("resolve_dtype")
    sample_greedy = engine_part("sample_greedy")

__all__ = [
    "GPT2",
    "Engine",
    "EngineConfig",
    "IntegrityError",
    "SamplingParams",
    "StagingBuffers",
    "TokenEvent",
    "device_scope",
    "interpreting",
    "kv_append",
    "load_model",
    "paged_attention_decode",
    "paged_attention_prefill",
    "random_weights",
    "resolve_device",
    "resolve_dtype",
    "sample_greedy",
]
