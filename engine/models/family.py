"""A family of models: how its config.json is read, and what its checkpoints call the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.models.fields import Fields
from engine.models.spec import DecoderSpec
from engine.models.weights import WeightNames


@dataclass(frozen=True, slots=True)
class Family:
    """What has to be known to load a model of the family.

    Attributes
    ----------
    title
        Its name in sentences.
    read
        Makes a spec of the fields of a config.json, with transformers' defaults for those that it
        leaves out; raises `ModelError`.
    names
        Of the weights.
    """

    title: str
    read: Callable[[Fields], DecoderSpec]
    names: WeightNames
