"""Seeded weights for a decoder of any shape, for which greedy decoding is worth watching.

A model as transformers initialises it repeats one token for ever: its blocks add next to nothing
to the residual stream, so the tied head finds the token that went in. Here every block adds about
as much as all before it, scores are sharp enough for attention to pick out single tokens, and
biases and norms are off their neutral values, so that each parameter can be seen in the output.

The numbers depend on seed, parameter name and shape alone. Those of a GPT-2 are drawn on the CPU:
uniform ones, since these need no logarithm or cosine that one processor rounds differently from the
next. Those of other families are drawn where they stay, in their own type, which is fast for models
of any size but the same on devices of one kind only.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from engine.models.gpt2 import GPT2
from engine.models.share import WHOLE, Share
from engine.models.spec import DecoderSpec
from engine.models.weights import (
    HEAD,
    POSITION_EMBEDDING,
    TOKEN_EMBEDDING,
    kept_weights,
    parameter_shapes,
)

# Standard deviations as gains: 1 keeps the size of what passes through a linear map. With a tied
# head a large token embedding would make every token its own best successor; with soft scores the
# output settles into a short cycle; both were seen, and these values keep clear of them.
_TOKEN_GAIN = 0.5
_POSITION_GAIN = 1.0
_ATTENTION_IN_GAIN = 2.0
_FEED_FORWARD_OUT_GAIN = 1.5
_OUTPUT_NORM_GAIN = 4.0
_LOGIT_DEVIATION = 4.0
_OFFSET = 0.1

# Numbers that are drawn and rounded together. Even, as a generator makes two of them at a time, and
# so few that torch rounds them in the thread that asks, beside the threads of other parameters.
_PIECE = 1 << 14
_DRAWERS = 2
"""Threads that draw; more of them wait for each other's turn in the interpreter."""


def random_weights(
    config: DecoderSpec,
    *,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    share: Share = WHOLE,
    quantize: bool = False,
) -> dict[str, Tensor]:
    """Weights for `Decoder`, with the names and shapes of `parameter_shapes`, or a `share` of them.

    The numbers are those of the whole model, of which the device holds one parameter at a time.
    Those of a GPT-2 are made in float32 and rounded to `dtype` at the end, by a few threads side
    by side. With `quantize`, the linear maps of blocks are rounded to e4m3 as they are made.
    """
    if config.family != "gpt2":
        return kept_weights(_drawn_in_place(config, seed, device, dtype, share), quantize)
    shapes = parameter_shapes(config)

    def draw(name: str) -> Tensor:
        return share.take(config, name, _draw(name, shapes[name], seed, dtype))

    with ThreadPoolExecutor(min(_DRAWERS, len(os.sched_getaffinity(0)))) as pool:
        # Sent off by this thread, whose current device and stream are the caller's.
        drawn = zip(shapes, pool.map(draw, shapes), strict=True)
        return kept_weights(((name, weight.to(device)) for name, weight in drawn), quantize)


def _drawn_in_place(
    config: DecoderSpec, seed: int, device: torch.device, dtype: torch.dtype, share: Share
) -> Iterator[tuple[str, Tensor]]:
    """The parameters, each from a generator of its own on the device."""
    generator = torch.Generator(device)
    for name, shape in parameter_shapes(config).items():
        generator.manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        center, deviation = _distribution(name, shape)
        half_width = deviation * math.sqrt(3.0)
        weight = torch.empty(shape, device=device, dtype=dtype)
        weight.uniform_(center - half_width, center + half_width, generator=generator)
        yield name, share.take(config, name, weight)


def _draw(name: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    """The values of one parameter, on the CPU."""
    # By the name in checkpoints, so that the numbers stay what they have been.
    key = zlib.crc32(GPT2.names.stored_name(name).encode())
    entropy = np.random.SeedSequence([seed % 2**64, key])
    generator = np.random.Generator(np.random.SFC64(entropy))
    center, deviation = _distribution(name, shape)
    half_width = deviation * math.sqrt(3.0)
    weight = torch.empty(shape, dtype=dtype)
    pieces = weight.view(-1).split(_PIECE)
    scratch = np.empty(len(pieces[0]), dtype=np.float32)
    for piece in pieces:
        numbers = scratch[: len(piece)]
        generator.random(dtype=np.float32, out=numbers)
        numbers *= np.float32(2.0 * half_width)
        numbers += np.float32(center - half_width)
        piece.copy_(torch.from_numpy(numbers))
    return weight


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a parameter."""
    if name == "final_norm.weight":  # its output times the head has the deviation of the logits
        return _LOGIT_DEVIATION / _TOKEN_GAIN, _OFFSET
    if name.endswith(("query_norm.weight", "key_norm.weight")):  # scores as sharp as without them
        return _ATTENTION_IN_GAIN, _OFFSET
    if name.endswith("_out_norm.weight"):  # beside which a scaled token embedding is small
        return _OUTPUT_NORM_GAIN, _OFFSET
    if len(shape) == 1:
        return (1.0 if name.endswith("_norm.weight") else 0.0), _OFFSET
    deviation = shape[-1] ** -0.5
    if name in (TOKEN_EMBEDDING, HEAD):
        deviation *= _TOKEN_GAIN
    elif name == POSITION_EMBEDDING:
        deviation *= _POSITION_GAIN
    elif name.endswith("attention_in.weight"):
        deviation *= _ATTENTION_IN_GAIN
    elif name.endswith("feed_forward_out.weight"):
        deviation *= _FEED_FORWARD_OUT_GAIN
    return 0.0, deviation
