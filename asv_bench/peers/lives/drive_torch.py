"""A decoder in plain torch, with a static cache and its decode step compiled, as gpt-fast has it.

Letters in shapes: B sequences, T tokens of each, S tokens that the cache holds, E hidden size, H
heads (G of keys and values), D their width.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from asv_bench.peers.lives.life import PeerTask


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
            loaded = load_file(file)
            for name, weight in loaded.items():
                short = name.removeprefix("transformer.").removeprefix("model.")
                is_conv = self.is_gpt2 and weight.dim() == 2 and short.startswith("h.")
                self.weights[short] = (weight.T if is_conv else weight).to(device, dtype)
        embedding = self.weights["wte.weight" if self.is_gpt2 else "embed_tokens.weight"]
        self.embedding = embedding
        self.head = self.weights.get("lm_head.weight", embedding)
        waves = None if self.is_gpt2 else _waves(config, self.width)
        # Half precision would turn positions that are far apart alike.
        self.waves = (
            None if waves is None else waves.to(device, torch.promote_types(dtype, torch.float32))
        )

    def forward(
        self, ids: Tensor, positions: Tensor, places: Tensor, mask: Tensor, cache: Tensor
    ) -> Tensor:
        """Likeliest next ids [B] after the last of `ids` [B, T].

        `positions` [B, T] count from each sequence's own beginning; `places` [T] are those in the
        cache [layers, 2, B, G, S, D]; `mask` [B, 1, T, S] says what may be attended to.
        """
        hidden = self.hidden(ids, positions, places, mask, cache)
        return F.linear(hidden[:, -1], self.head).argmax(-1)

    def hidden(
        self, ids: Tensor, positions: Tensor, places: Tensor, mask: Tensor, cache: Tensor
    ) -> Tensor:
        """What the head is given [B, T, E]; arguments as `forward` takes them."""
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
        if not self.is_gpt2:
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
        weight = self.weights[name + ".weight"]
        if self.is_gpt2:
            return F.layer_norm(
                x, (self.embed,), weight, self.weights[name + ".bias"], self.epsilon
            )
        return F.rms_norm(x, (self.embed,), weight, self.epsilon)

    def _head_norm(self, heads: Tensor, name: str) -> Tensor:
        weight = self.weights.get(name + ".weight")
        return heads if weight is None else F.rms_norm(heads, (self.width,), weight, self.epsilon)


class PlainTorch:
    """See `drivers.Driver`. Prompts of a batch are padded on the left to the longest."""

    packages = ("safetensors",)
    unreported = 0
    choices: ClassVar[dict[str, str]] = {}

    def __init__(self, label: str, task: PeerTask) -> None:
        self._task = task
        self._dtype = getattr(torch, task.dtype)
        self._model = PlainDecoder(Path(task.model), self._dtype, task.device)
        self._step: Any = self._model.forward
        self.settings = "not compiled: on a CPU that takes longer than it saves"
        if task.device != "cpu":
            self._step = torch.compile(
                self._model.forward, mode="reduce-overhead", fullgraph=True, dynamic=False
            )
            self.settings = "decode step compiled with CUDA graphs, prefill not"
        shape = (self._model.layers, 2, task.batch, self._model.groups)
        self._cache = torch.zeros(
            (*shape, task.max_length, self._model.width), dtype=self._dtype, device=task.device
        )

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        """See `drivers.Driver`; a batch runs until its longest request is over."""
        ids: list[list[int]] = []
        for first in range(0, len(prompts), self._task.batch):
            batch = slice(first, first + self._task.batch)
            generated = self._generate(prompts[batch], max(new_tokens[batch]))
            ids += [row[:count] for row, count in zip(generated, new_tokens[batch], strict=True)]
        return ids

    def _generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        device, longest = self._task.device, max(map(len, prompts))
        padding = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
        padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        cache = self._cache[:, :, : len(prompts), :, : longest + new_tokens]
        columns = torch.arange(cache.shape[4], device=device)
        is_own = columns >= padding[:, None]  # [B, S]
        rows = columns[:longest]
        mask = is_own[:, None, None] & (columns <= rows[:, None])
        # A row of padding attends to itself, lest its softmax be of nothing.
        mask |= (columns == rows[:, None])[None, None]
        positions = (rows - padding[:, None]).clamp(min=0)
        last = self._model.forward(
            torch.tensor(padded, device=device), positions, rows, mask, cache
        )
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
    plain = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    kind = rotary.get("rope_type", "default")
    if kind == "default":
        return torch.as_tensor(plain)
    if kind != "llama3":
        raise SystemExit(f"its rotary positions are of the kind {kind!r}; this has two others.")
    low, high = rotary["low_freq_factor"], rotary["high_freq_factor"]
    fit = rotary["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept = ((fit - low) / (high - low)).clamp(0, 1)
    waves: Tensor = plain / rotary["factor"] * (1 - kept) + plain * kept
    return waves


def _turned(heads: Tensor, turn: Tensor | None) -> Tensor:
    """Heads [B, H, T, D] turned by the angles of their positions [B, T, D / 2]."""
    assert turn is not None
    cos, sin = turn.cos()[:, None], turn.sin()[:, None]
    first, second = heads.to(turn.dtype).chunk(2, -1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return turned.to(heads.dtype)
