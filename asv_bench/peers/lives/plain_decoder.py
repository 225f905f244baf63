"""A decoder in plain torch, with a static cache and its decode step compiled, as gpt-fast has it.

It reads checkpoints as kvtrail's engine does, and computes nothing with it.

Letters in shapes: B sequences, T tokens of each, S tokens that the cache holds, E hidden size, H
heads (G of keys and values), D their width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.activations import activation_function
from engine.models.checkpoint import load_weights, read_headers
from engine.models.families import FAMILIES, read_config
from engine.models.random_weights import random_weights
from engine.models.registry import RANDOM_PREFIX, find_directory, random_config
from engine.models.weights import HEAD, POSITION_EMBEDDING, TOKEN_EMBEDDING

Ids = list[list[int]]


class PlainDecoder:
    """A model of any family that kvtrail's engine knows, by a name that it takes.

    It computes in `dtype`; matrices of another type are cast where they are used, one by one.
    """

    def __init__(
        self, model: str, stored: torch.dtype, device: str, *, seed: int = 0, dtype: Any = None
    ) -> None:
        on, self.dtype = torch.device(device), dtype or stored
        if model.startswith(RANDOM_PREFIX):
            self.spec = spec = random_config(model)
            weights = random_weights(spec, seed=seed, device=on, dtype=stored)
        else:
            folder = find_directory(model)
            self.spec = spec = read_config(folder)
            family = FAMILIES[spec.family]
            headers = read_headers(folder, family)
            weights = load_weights(headers, family, spec, device=on, dtype=stored)
        self.weights = {
            name: one.to(self.dtype) if one.ndim == 1 else one for name, one in weights.items()
        }
        self.embedding = self.weights[TOKEN_EMBEDDING]
        self.head = self.weights.get(HEAD, self.embedding)
        self.activation = activation_function(spec.activation)
        self.waves: Tensor | None = None
        if spec.rotary is not None:
            # Half precision would turn positions that are far apart alike.
            precise = torch.promote_types(self.dtype, torch.float32)
            self.waves = spec.rotary.frequencies(spec.head_dim, on).to(precise)

    def cache(self, batch: int, tokens: int) -> Tensor:
        """An empty cache [layers, 2, B, G, S, D]."""
        self.spec.up_to(tokens).require_plain("a decoder in plain torch")
        shape = (self.spec.num_layers, 2, batch, self.spec.num_kv_heads, tokens, self.spec.head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.embedding.device)

    def next_ids(self, *inputs: Tensor) -> Tensor:
        """Likeliest next ids [B] after the last of `ids`; arguments as `hidden` takes them."""
        return F.linear(self.hidden(*inputs)[:, -1], self.head).argmax(-1)

    def hidden(
        self, ids: Tensor, positions: Tensor, places: Tensor, mask: Tensor, cache: Tensor
    ) -> Tensor:
        """What the head is given [B, T, E] of `ids` [B, T].

        `positions` [B, T] count from each sequence's own beginning; `places` [T] are those in the
        cache; `mask` [B, 1, T, S] says what may be attended to.
        """
        spec = self.spec
        x = F.embedding(ids, self.embedding).to(self.dtype)
        if self.waves is None:
            x = x + F.embedding(positions, self.weights[POSITION_EMBEDDING]).to(self.dtype)
        turn = None if self.waves is None else positions[..., None] * self.waves
        groups = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        for layer in range(spec.num_layers):
            own = f"blocks.{layer}."
            heads = self._map(self._norm(x, own + "attention_norm"), own + "attention_in")
            heads = heads.unflatten(-1, (-1, spec.head_dim)).transpose(1, 2)  # [B, H + 2 G, T, D]
            q, k, v = heads.split(groups, dim=1)
            if spec.qk_norm:
                q, k = self._norm(q, own + "query_norm"), self._norm(k, own + "key_norm")
            if turn is not None:
                q, k = _turned(q, turn), _turned(k, turn)
            cache[layer, 0].index_copy_(2, places, k)
            cache[layer, 1].index_copy_(2, places, v)
            attended = F.scaled_dot_product_attention(
                q,
                cache[layer, 0],
                cache[layer, 1],
                attn_mask=mask,
                scale=spec.attention_scale(layer),
                enable_gqa=spec.group > 1,
            )
            x = x + self._map(attended.transpose(1, 2).flatten(2), own + "attention_out")
            inner = self._map(self._norm(x, own + "feed_forward_norm"), own + "feed_forward_in")
            gate, gated = inner.chunk(2, -1) if spec.is_gated else (inner, 1.0)
            x = x + self._map(self.activation(gate) * gated, own + "feed_forward_out")
        return self._norm(x, "final_norm")

    def _map(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[name + ".weight"].to(self.dtype)
        return F.linear(x, weight, self.weights.get(name + ".bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, epsilon = self.weights[name + ".weight"], self.spec.norm_epsilon
        if self.spec.norm == "rms":
            return F.rms_norm(x, weight.shape, weight, epsilon)
        return F.layer_norm(x, weight.shape, weight, self.weights[name + ".bias"], epsilon)


class PlainGenerator:
    """Generates greedily from padded prompts, at most `batch` of at most `tokens`, new included.

    `settings` says whether the decode step is compiled.
    """

    def __init__(self, model: str, dtype: str, device: str, batch: int, tokens: int) -> None:
        self._model = PlainDecoder(model, getattr(torch, dtype), device)
        self._cache = self._model.cache(batch, tokens)
        self._device = device
        self._step: Any = self._model.next_ids
        self.settings = "not compiled: on a CPU that takes longer than it saves"
        if device != "cpu":
            self._step = torch.compile(
                self._model.next_ids, mode="reduce-overhead", fullgraph=True, dynamic=False
            )
            self.settings = "decode step compiled with CUDA graphs, prefill not"

    @torch.inference_mode()
    def generate(self, prompts: Ids, before: list[int], wanted: list[int]) -> Ids:
        """New ids, as many as the longest request needs, of each prompt with padding `before`."""
        device, longest, new_tokens = self._device, len(prompts[0]), max(wanted)
        padding = torch.tensor(before, device=device)
        cache = self._cache[:, :, : len(prompts), :, : longest + new_tokens]
        columns = torch.arange(cache.shape[4], device=device)
        is_own = columns >= padding[:, None]  # [B, S]
        rows = columns[:longest]
        mask = is_own[:, None, None] & (columns <= rows[:, None])
        # A row of padding attends to itself, lest its softmax be of nothing.
        mask |= (columns == rows[:, None])[None, None]
        positions = (rows - padding[:, None]).clamp(min=0)
        ids = torch.tensor(prompts, device=device)
        last = self._model.next_ids(ids, positions, rows, mask, cache)
        found = [last]
        place = torch.tensor([longest], device=device)
        for _ in range(new_tokens - 1):
            mask = (is_own & (columns <= place))[:, None, None]
            last = self._step(last[:, None], place - padding[:, None], place, mask, cache).clone()
            found.append(last)
            place = place + 1
        generated: Ids = torch.stack(found, 1).tolist()
        return generated


def _turned(heads: Tensor, turn: Tensor) -> Tensor:
    """Heads [B, H, T, D] turned by the angles of their positions [B, T, D / 2]."""
    cos, sin = turn.cos()[:, None], turn.sin()[:, None]
    first, second = heads.to(turn.dtype).chunk(2, -1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return turned.to(heads.dtype)
