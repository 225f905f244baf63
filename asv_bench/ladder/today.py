"""All that the ladder takes from today's tree, in one place."""

from __future__ import annotations

from engine import Engine, EngineConfig, IntegrityError, SamplingParams, TokenEvent
from engine.device import device_scope, resolve_device, resolve_dtype
from engine.gpt2 import GPT2
from engine.models import load_model
from engine.random_weights import random_weights
from engine.sampler import sample_greedy
from engine.staging import StagingBuffers
from kernels import kv_append, paged_attention_decode, paged_attention_prefill
from kernels.backend import interpreting

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
