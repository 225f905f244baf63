"""A decoder in plain torch, with a static cache and its decode step compiled, as gpt-fast has it.

Letters in shapes: B sequences, T tokens of each, S tokens that the cache holds, E hidden size, H
heads (G of keys and values), D their width.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class PlainDecoder:
    """GPT-2 and the families that are built like Llama, with weights as the checkpoint has them."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: str) -> None:
        from safetensors.torch import load_file

        config = json.loads((folder / "config.json").read_text())
        self.is_gpt2 = config["model_type"] == "gpt2"
        self.layers = config["n_layer" if self.is_gpt2 else "num_hidden_layers"]
        self.heads = config["n_head" if self.is_gpt2 else "num_attention_heads"]
        self.groups = self.heads if self.is_gpt2 else config["num_key_value_heads"]
        self.embed = config["n_embd" if self.is_gpt2 else "hidden_size"]
        self.width = config.get("head_dim") or self.embed // self.heads
        self.epsilon = config["layer_norm_epsilon" if self.is_gpt2 else "rms_norm_eps"]
        self.weights: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            for name, weight in load_file(file).items():
                short = name.removeprefix("transformer.").removeprefix("model.")
                is_conv = self.is_gpt2 and weight.dim() == 2 and short.startswith("h.")
                self.weights[short] = (weight.T if is_conv else weight).to(device, dtype)
        self.embedding = self.weights["wte.weight" if self.is_gpt2 else "embed_tokens.weight"]
        self.head = self.weights.get("lm_head.weight", self.embedding)
        self.waves: Tensor | None = None
        if not self.is_gpt2:
            # Half precision would turn positions that are far apart alike.
            precise = torch.promote_types(dtype, torch.float32)
            self.waves = _waves(config, self.width).to(device, precise)

    def cache(self, batch: int, tokens: int) -> Tensor:
        """An empty cache [layers, 2, B, G, S, D]."""
        shape = (self.layers, 2, batch, self.groups, tokens, self.width)
        return torch.zeros(shape, dtype=self.embedding.dtype, device=self.embedding.device)

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
        x = F.embedding(ids, self.embedding)
        if self.is_gpt2:
            x = x + F.embedding(positions, self.weights["wpe.weight"])
        turn = None if self.waves is None else positions[..., None] * self.waves
        for layer in range(self.layers):
            x = self._block(layer, x, turn, places, mask, cache[layer])
        return self._norm(x, "ln_f" if self.is_gpt2 else "norm")

    def _block(
        self,
        layer: int,
        x: Tensor,
        turn: Tensor | None,
        places: Tensor,
        mask: Tensor,
        cache: Tensor,
    ) -> Tensor:
        batch, tokens, _ = x.shape
        own = f"h.{layer}." if self.is_gpt2 else f"layers.{layer}."
        normed = self._norm(x, own + ("ln_1" if self.is_gpt2 else "input_layernorm"))
        if self.is_gpt2:
            q, k, v = self._map(normed, own + "attn.c_attn").chunk(3, -1)
        else:
            q, k, v = (self._map(normed, f"{own}self_attn.{name}_proj") for name in "qkv")
        q, k, v = (one.view(batch, tokens, -1, self.width).transpose(1, 2) for one in (q, k, v))
        if turn is not None:
            q = _turned(self._head_norm(q, own + "self_attn.q_norm"), turn)
            k = _turned(self._head_norm(k, own + "self_attn.k_norm"), turn)
        cache[0].index_copy_(2, places, k)
        cache[1].index_copy_(2, places, v)
        attended = F.scaled_dot_product_attention(
            q, cache[0], cache[1], attn_mask=mask, enable_gqa=self.groups != self.heads
        )
        attended = attended.transpose(1, 2).reshape(batch, tokens, -1)
        x = x + self._map(attended, own + ("attn.c_proj" if self.is_gpt2 else "self_attn.o_proj"))
        if self.is_gpt2:
            inner = self._map(self._norm(x, own + "ln_2"), own + "mlp.c_fc")
            return x + self._map(F.gelu(inner, approximate="tanh"), own + "mlp.c_proj")
        normed = self._norm(x, own + "post_attention_layernorm")
        gate, up = (self._map(normed, f"{own}mlp.{name}_proj") for name in ("gate", "up"))
        return x + self._map(F.silu(gate) * up, own + "mlp.down_proj")

    def _map(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[name + ".weight"], self.weights.get(name + ".bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[name + ".weight"], self.weights.get(name + ".bias")
        if self.is_gpt2:
            return F.layer_norm(x, (self.embed,), weight, bias, self.epsilon)
        return F.rms_norm(x, (self.embed,), weight, self.epsilon)

    def _head_norm(self, heads: Tensor, name: str) -> Tensor:
        weight = self.weights.get(name + ".weight")
        return heads if weight is None else F.rms_norm(heads, (self.width,), weight, self.epsilon)


class PlainGenerator:
    """Generates greedily from padded prompts, at most `batch` of at most `tokens`, new included.

    `settings` says whether the decode step is compiled.
    """

    def __init__(self, model: str, dtype: str, device: str, batch: int, tokens: int) -> None:
        self._model = PlainDecoder(Path(model), getattr(torch, dtype), device)
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
    def generate(
        self, prompts: list[list[int]], before: list[int], wanted: list[int]
    ) -> list[list[int]]:
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
        generated: list[list[int]] = torch.stack(found, 1).tolist()
        return generated


def _waves(config: dict[str, Any], width: int) -> Tensor:
    """Radians a position of each pair of a head, [D / 2]."""
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rotary.get("rope_theta") or config.get("rope_theta") or 10_000.0
    plain: Tensor = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    kind = rotary.get("rope_type", "default")
    if kind == "default":
        return plain
    if kind != "llama3":
        raise SystemExit(f"its rotary positions are of the kind {kind!r}; this has two others.")
    low, high = rotary["low_freq_factor"], rotary["high_freq_factor"]
    fit = rotary["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept: Tensor = ((fit - low) / (high - low)).clamp(0, 1)
    factor: float = rotary["factor"]
    return plain / factor * (1 - kept) + plain * kept


def _turned(heads: Tensor, turn: Tensor) -> Tensor:
    """Heads [B, H, T, D] turned by the angles of their positions [B, T, D / 2]."""
    cos, sin = turn.cos()[:, None], turn.sin()[:, None]
    first, second = heads.to(turn.dtype).chunk(2, -1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return turned.to(heads.dtype)
