"""Rotary positions: by how much each pair of a head is turned at each position.

Pair i of a head of D numbers is (i, i + D / 2). At position p it is turned by p * frequency[i].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from engine.errors import ModelError
from engine.models.fields import Fields


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All frequencies divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3:
    """Long waves stretched by `factor`, short ones left alone, those in between mixed of both.

    A wave is short if more than `high_freq_factor` of it fit into `original_positions`, and long if
    fewer than `low_freq_factor` do.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class Yarn:
    """As `Llama3`, but mixed by the pair's number, between waves of which `beta_fast` and
    `beta_slow` fit into `original_positions`; cosines and sines are multiplied by
    `attention_factor`.

    `is_truncated` rounds the bounds outwards to whole pairs.
    """

    factor: float
    original_positions: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    is_truncated: bool


Scaling: TypeAlias = LinearScaling | Llama3 | Yarn


@dataclass(frozen=True, slots=True)
class Rotary:
    """The longest wave, in positions over 2 pi, and how the waves are stretched."""

    theta: float
    scaling: Scaling | None = None

    def frequencies(self, head_dim: int, device: torch.device) -> Tensor:
        """Radians a position for each pair, float32 [D / 2]."""
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        plain = 1.0 / self.theta**exponent
        scaling = self.scaling
        if scaling is None:
            return plain
        if isinstance(scaling, LinearScaling):
            return plain / scaling.factor
        if isinstance(scaling, Llama3):
            kept = _kept_by_wavelength(plain, scaling)
        else:
            kept = 1.0 - _ramp_by_pair(head_dim, self.theta, scaling).to(device)
        return plain / scaling.factor * (1.0 - kept) + plain * kept

    def table(self, num_positions: int, head_dim: int, device: torch.device) -> Tensor:
        """Cosines and, behind them, sines of every position, float32 [P, D]."""
        positions = torch.arange(num_positions, dtype=torch.float32, device=device)
        angles = positions[:, None] * self.frequencies(head_dim, device)
        table = torch.cat((angles.cos(), angles.sin()), dim=1)
        return table * self.scaling.attention_factor if isinstance(self.scaling, Yarn) else table


def read_rotary(fields: Fields, max_positions: int, default_theta: float) -> Rotary:
    """The rotary settings of a config.json, in either of the spellings that transformers had.

    They are one object `rope_parameters`; before, `rope_theta` stood beside an object
    `rope_scaling`, whose kind was called `type` at first.

    Raises
    ------
    ModelError
        The kind is not known, a setting is missing or makes no sense.
    """
    settings = fields.nested("rope_scaling") or fields.nested("rope_parameters") or Fields({})
    for whole in (fields, settings):
        if whole.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise ModelError(
                f"partial_rotary_factor is {whole.get('partial_rotary_factor')!r}; this engine "
                "turns whole heads, so it must be 1."
            )
    named = fields if settings.get("rope_theta") is None else settings
    theta = named.positive("rope_theta", default_theta)
    if theta <= 1:
        raise ModelError(f"rope_theta is {theta}; it must be above 1.")
    original = fields.integer_or_none("original_max_position_embeddings")
    if original is None:
        original = settings.integer("original_max_position_embeddings", max_positions)
    if original < 1:
        raise ModelError(f"original_max_position_embeddings is {original}; it must be at least 1.")
    return Rotary(theta, _read_scaling(settings, max_positions, original))


def _read_scaling(settings: Fields, max_positions: int, original: int) -> Scaling | None:
    kind = settings.get("rope_type", "default", also=("type",))
    if any(name in settings for name in ("full_attention", "sliding_attention")):
        raise ModelError(
            "Its rotary positions differ between layers; this engine has one kind for all layers."
        )
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(settings.positive("factor"))
    if kind == "llama3":
        low, high = settings.positive("low_freq_factor"), settings.positive("high_freq_factor")
        if low >= high:
            raise ModelError(
                f"high_freq_factor is {high}; it must be above low_freq_factor, {low}."
            )
        return Llama3(settings.positive("factor"), low, high, original)
    if kind == "yarn":
        return _read_yarn(settings, max_positions, original)
    raise ModelError(
        f"Its rotary positions are of the kind {kind!r}; this engine has 'default', 'linear', "
        "'llama3' and 'yarn'."
    )


def _read_yarn(settings: Fields, max_positions: int, original: int) -> Yarn:
    if settings.get("factor") is None:
        factor = max_positions / original
    else:
        factor = settings.positive("factor")
    if settings.get("attention_factor") is not None:
        attention_factor = settings.positive("attention_factor")
    elif settings.get("mscale") and settings.get("mscale_all_dim"):
        attention_factor = _attention_factor(factor, settings.positive("mscale"))
        attention_factor /= _attention_factor(factor, settings.positive("mscale_all_dim"))
    else:
        attention_factor = _attention_factor(factor, 1.0)
    return Yarn(
        factor=factor,
        original_positions=original,
        attention_factor=attention_factor,
        beta_fast=settings.positive("beta_fast") if settings.get("beta_fast") else 32.0,
        beta_slow=settings.positive("beta_slow") if settings.get("beta_slow") else 1.0,
        is_truncated=settings.flag("truncate", True),
    )


def _attention_factor(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _kept_by_wavelength(plain: Tensor, scaling: Llama3) -> Tensor:
    """How much of each frequency stays as it is, 0 to 1."""
    waves = scaling.original_positions * plain / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    return ((waves - scaling.low_freq_factor) / span).clamp(0, 1)


def _ramp_by_pair(head_dim: int, theta: float, scaling: Yarn) -> Tensor:
    """How much of each frequency is stretched, 0 to 1, float32 [D / 2]."""

    def pair_of(waves: float) -> float:
        """The pair of which so many waves fit into the original positions."""
        length = scaling.original_positions / (waves * 2 * math.pi)
        return head_dim * math.log(length) / (2 * math.log(theta))

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step, not a division by 0
    pairs = torch.arange(head_dim // 2, dtype=torch.float32)
    return ((pairs - low) / (high - low)).clamp(0, 1)
