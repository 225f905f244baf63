"""Whether rungs yield the same tokens, on requests that visit every corner of a host path.

In full precision they must, token for token. Fused kernels run in half precision alone, where
rounding may part two sequences: there it is proved, for each that parts, that the two tokens were
as good as tied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from asv_bench.errors import MeasurementFailed
from asv_bench.studies.ladder.model import GPT2, seeded_model
from asv_bench.studies.ladder.rung_build import build_rung
from asv_bench.studies.ladder.rungs import RUNGS, Rung
from asv_bench.workloads.drive import EngineFace
from asv_bench.workloads.named import BLOCK_SIZE as WORKLOAD_BLOCK_SIZE
from engine import EngineConfig, SamplingParams

BLOCK_SIZE = 16
NEW_TOKENS = 36
SHARED_LENGTH = 21
BATCH_SIZE = 5
LENGTHS = (1, 2, 15, 16, 17, 31, 33, 47)
"""Prompts around block boundaries and away from them; all cross two boundaries as they decode."""

_MAX_LENGTH = max(LENGTHS) + NEW_TOKENS
_HEAD_START = 3
_PLAIN_GRAPH = 8


def check_config(model: str, device: str, dtype: str, block_size: int = BLOCK_SIZE) -> EngineConfig:
    """What the check runs on: a small batch, so that requests join and leave, and a prefix cache.

    Prompts' blocks are shared, the partly filled last one too, and copied when they are appended
    to.
    """
    blocks_each = -(-_MAX_LENGTH // block_size) + 1
    return EngineConfig(
        model=model,
        device=device,
        dtype=dtype,  # type: ignore[arg-type]
        block_size=block_size,
        max_batch_size=BATCH_SIZE,
        max_model_len=_MAX_LENGTH,
        num_kv_blocks=blocks_each * (BATCH_SIZE + len(check_prompts(2))),
        prefix_cache=True,
    )


def check_prompts(vocab_size: int) -> list[list[int]]:
    """The prompts; the last three begin with the first, which ends within a block."""
    random = np.random.default_rng(5)

    def draw(length: int) -> list[int]:
        return [int(token) for token in random.integers(0, vocab_size, length)]

    shared = draw(SHARED_LENGTH)
    longer = [shared + draw(length) for length in (1, 2, BLOCK_SIZE)]
    return [shared, *(draw(length) for length in LENGTHS), *longer]


def run_check(engine: EngineFace, vocab_size: int) -> list[list[int]]:
    """The tokens that an engine generates for each of the prompts, greedily."""
    prompts = check_prompts(vocab_size)
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    tokens: dict[int, list[int]] = {}
    # The first prompt is in the cache, and has decoded on, when those that share it come.
    order = [0, *range(len(prompts) - 3, len(prompts)), *range(1, len(prompts) - 3)]
    ids: dict[int, int] = {}
    for place in order:
        ids[place] = engine.submit(prompts[place], params)
        tokens[ids[place]] = []
        if place == 0:
            while len(tokens[ids[0]]) < _HEAD_START:
                _collect(engine, tokens)
    while engine.has_unfinished:
        _collect(engine, tokens)
    return [tokens[ids[place]] for place in range(len(prompts))]


def check_rung(rung: Rung, model: str, device: str) -> list[list[int]]:
    """A rung's tokens in full precision; checks its metadata at the end.

    Raises
    ------
    MeasurementFailed
        If the rung left a request short.
    IntegrityError
        If its metadata is not sound.
    """
    return _tokens(rung, check_config(model, device, "float32"))


def check_fused(rung: Rung, model: str, device: str) -> int:
    """How many requests part from the plain graph's tokens in half precision, each at a near tie.

    The model must be a built-in one with seeded weights.

    Raises
    ------
    MeasurementFailed
        If one parts where the tokens are not tied.
    """
    # Blocks as in every workload: what the fused kernels were tuned and tested for.
    config = check_config(model, device, "float16", WORKLOAD_BLOCK_SIZE)
    fused, plain = _tokens(rung, config), _tokens(RUNGS[_PLAIN_GRAPH], config)
    half = seeded_model(model, device=device, dtype="float16", seed=config.seed)
    exact = half.in_float32()
    parted = 0
    prompts = check_prompts(half.sizes.vocab_size)
    for prompt, ours, theirs in zip(prompts, fused, plain, strict=True):
        if ours == theirs:
            continue
        parted += 1
        first = next(i for i in range(NEW_TOKENS) if ours[i] != theirs[i])
        require_near_tie(half, exact, prompt + theirs[:first], (ours[first], theirs[first]), rung)
    return parted


def require_near_tie(
    model: GPT2, exact: GPT2, known: Sequence[int], tokens: tuple[int, int], rung: Rung
) -> None:
    """Raise MeasurementFailed unless two tokens after `known` are closer than rounding errs.

    `exact` has the same weights as `model`, in float32.
    """
    truth = _last_scores(exact, known)
    bound = 2 * float((_last_scores(model, known) - truth).abs().max())
    behind = float(truth.max() - truth[list(tokens)].min())
    if behind > bound:
        raise MeasurementFailed(
            f"rung {rung.label} generated token {tokens[0]} where the rung before generated "
            f"{tokens[1]}: one of them is {behind:.3g} behind the best score, and rounding "
            f"explains {bound:.3g}."
        )


def _tokens(rung: Rung, config: EngineConfig) -> list[list[int]]:
    engine: Any = build_rung(rung, replace(config))
    tokens = run_check(engine, engine.model_config.vocab_size)
    engine.check_integrity()
    short = [index for index, ids in enumerate(tokens) if len(ids) != NEW_TOKENS]
    if short:
        raise MeasurementFailed(
            f"rung {rung.label} generated {len(tokens[short[0]])} of {NEW_TOKENS} tokens for "
            f"prompt {short[0]} of the check."
        )
    return tokens


def _collect(engine: EngineFace, tokens: dict[int, list[int]]) -> None:
    for event in engine.step():
        if event.token_id is not None:
            tokens[event.request_id].append(event.token_id)


def _last_scores(model: GPT2, token_ids: Sequence[int]) -> Tensor:
    """Scores after a sequence, float32 [V], computed all at once."""

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (one.transpose(0, 1) for one in (query, key, value))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return attended.transpose(0, 1)

    ids = torch.tensor(list(token_ids), device=model.device)
    positions = torch.arange(len(ids), device=model.device)
    with torch.inference_mode():
        return model.logits(model.forward(ids, positions, attend)[-1:])[0].float()
