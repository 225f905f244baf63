"""GPT-2, block by block, over a ragged batch of tokens.

Letters in shapes: T tokens of all sequences in a row, E hidden size, H heads, D head dimension,
F feed-forward size, V vocabulary. The model knows nothing of sequences: positions come with the
tokens, and `attend` is where tokens of one sequence meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import ModelError
from engine.models.activations import Activation, activation_function, gelu_tanh
from engine.models.config import GPT2Config
from kernels.linear.norm import add_layer_norm

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q [T, H, D], k [T, H, D], v [T, H, D]) -> [T, H, D]: stores k and v of the tokens
and attends with q. The arguments are strided views of one tensor, contiguous in D only."""


# cuBLAS has fast kernels only for outputs whose rows are aligned.
_HEAD_ROWS = 64


def parameter_shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter as the model uses it: linear weights are [out, in].

    The names are those of a checkpoint, without the `transformer.` before them. An untied head
    adds `lm_head.weight`.
    """
    embed, inner = config.hidden_size, config.inner_size
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config.vocab_size, embed),
        "wpe.weight": (config.max_positions, embed),
    }
    for layer in range(config.num_layers):
        block = f"h.{layer}."
        shapes |= {
            block + "ln_1.weight": (embed,),
            block + "ln_1.bias": (embed,),
            block + "attn.c_attn.weight": (3 * embed, embed),
            block + "attn.c_attn.bias": (3 * embed,),
            block + "attn.c_proj.weight": (embed, embed),
            block + "attn.c_proj.bias": (embed,),
            block + "ln_2.weight": (embed,),
            block + "ln_2.bias": (embed,),
            block + "mlp.c_fc.weight": (inner, embed),
            block + "mlp.c_fc.bias": (inner,),
            block + "mlp.c_proj.weight": (embed, inner),
            block + "mlp.c_proj.bias": (embed,),
        }
    shapes |= {"ln_f.weight": (embed,), "ln_f.bias": (embed,)}
    if not config.tied_head:
        shapes["lm_head.weight"] = (config.vocab_size, embed)
    return shapes


def is_stored_transposed(name: str) -> bool:
    """Whether checkpoints hold this parameter as [in, out]: GPT-2's linear layers are `Conv1D`."""
    return name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Weight and bias [E] of one layer norm."""

    weight: Tensor
    bias: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise x [T, E] over E."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)

    def after(self, x: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """x + change, and that normalised, all [T, E]."""
        return add_layer_norm(x, change, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True, slots=True)
class Linear:
    """Weight [out, in], contiguous, and bias [out]."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [T, in] to [T, out]."""
        return F.linear(x, self.weight, self.bias)

    def activated(self, x: Tensor, activation: Activation) -> Tensor:
        """The activation of the mapped x."""
        if activation is gelu_tanh and x.is_cuda:
            # cuBLAS applies it to what it stores. On the CPU the same function has another GELU.
            return torch._addmm_activation(self.bias, x, self.weight.t(), use_gelu=True)
        return activation(self(x))


@dataclass(frozen=True, slots=True)
class Block:
    """The parameters of one transformer block, in the order they are used."""

    ln_1: LayerNorm
    attention_in: Linear  # E -> 3 E: q, k and v side by side
    attention_out: Linear  # E -> E
    ln_2: LayerNorm
    feed_forward_in: Linear  # E -> F
    feed_forward_out: Linear  # F -> E


class GPT2:
    """GPT-2 for inference.

    `forward` and `logits` launch device work only: they neither wait for the device, nor create
    tensors on the CPU, nor look at a value, so both can be captured in a CUDA graph.

    Parameters
    ----------
    config : GPT2Config
    weights : name to tensor, with the names and shapes of `parameter_shapes`, all of one device
        and one float dtype. The model keeps the tensors; it copies none but the head, and that
        only where it needs padding.

    Raises
    ------
    ModelError
        A parameter is missing, or has another shape, device or dtype.
    """

    def __init__(self, config: GPT2Config, weights: Mapping[str, Tensor]) -> None:
        _check_weights(config, weights)
        self.config = config
        self.device = weights["wte.weight"].device
        self.dtype = weights["wte.weight"].dtype
        head = weights["wte.weight" if config.tied_head else "lm_head.weight"]
        self.head = _pad_rows(head, _HEAD_ROWS)  # [V rounded up, E]
        # A tied embedding is a view of the head, so that one copy serves both.
        self.token_embedding = (
            self.head[: config.vocab_size] if config.tied_head else weights["wte.weight"]
        )  # [V, E]
        self.position_embedding = weights["wpe.weight"]  # [max_positions, E]
        self.blocks = tuple(_block(config, weights, layer) for layer in range(config.num_layers))
        self.final_norm = _layer_norm(config, weights, "ln_f")
        self._next_norm = (*(block.ln_1 for block in self.blocks[1:]), self.final_norm)
        self.activation = activation_function(config.activation)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run the tokens through all blocks.

        Parameters
        ----------
        token_ids, positions : [T] int32 or int64, on the model's device. Positions count from 0
            within each sequence. Values are not checked.
        attend : called once per layer, in order; see `Attend`. The factor on its scores is
            `config.attention_scale(layer)`.

        Returns
        -------
        hidden : [T, E] after the final layer norm, in the model's dtype.
        """
        x = F.embedding(token_ids, self.token_embedding)  # [T, E]
        x = x + F.embedding(positions, self.position_embedding)
        normed = self.blocks[0].ln_1(x)
        for layer, block in enumerate(self.blocks):
            x, normed = block.ln_2.after(x, self._attention(block, layer, normed, attend))
            x, normed = self._next_norm[layer].after(x, self._feed_forward(block, normed))
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token after each hidden state: [N, E] -> [N, V], in the model's dtype.

        Rows are contiguous, but may lie further apart than V.
        """
        return F.linear(hidden, self.head)[:, : self.config.vocab_size]

    def _attention(self, block: Block, layer: int, x: Tensor, attend: Attend) -> Tensor:
        heads, head_dim = self.config.num_heads, self.config.head_dim
        qkv = block.attention_in(x)  # [T, 3 E]
        q, k, v = qkv.view(-1, 3, heads, head_dim).unbind(1)  # [T, H, D] each
        attended = attend(layer, q, k, v)  # [T, H, D]
        return block.attention_out(attended.reshape(-1, heads * head_dim))  # [T, E]

    def _feed_forward(self, block: Block, x: Tensor) -> Tensor:
        inner = block.feed_forward_in.activated(x, self.activation)  # [T, F]
        return block.feed_forward_out(inner)  # [T, E]


def _block(config: GPT2Config, weights: Mapping[str, Tensor], layer: int) -> Block:
    block = f"h.{layer}."
    return Block(
        ln_1=_layer_norm(config, weights, block + "ln_1"),
        attention_in=_linear(weights, block + "attn.c_attn"),
        attention_out=_linear(weights, block + "attn.c_proj"),
        ln_2=_layer_norm(config, weights, block + "ln_2"),
        feed_forward_in=_linear(weights, block + "mlp.c_fc"),
        feed_forward_out=_linear(weights, block + "mlp.c_proj"),
    )


def _layer_norm(config: GPT2Config, weights: Mapping[str, Tensor], name: str) -> LayerNorm:
    return LayerNorm(weights[name + ".weight"], weights[name + ".bias"], config.layer_norm_epsilon)


def _linear(weights: Mapping[str, Tensor], name: str) -> Linear:
    return Linear(weights[name + ".weight"], weights[name + ".bias"])


def _pad_rows(weight: Tensor, multiple: int) -> Tensor:
    """The weight [V, E] with rows of zeros below, up to a multiple of that many."""
    missing = -weight.shape[0] % multiple
    return F.pad(weight, (0, 0, 0, missing)) if missing else weight


def _check_weights(config: GPT2Config, weights: Mapping[str, Tensor]) -> None:
    shapes = parameter_shapes(config)
    missing = [name for name in shapes if name not in weights]
    if missing:
        raise ModelError(f"The weights lack {', '.join(missing[:4])}, which this GPT-2 needs.")
    first = weights["wte.weight"]
    for name, shape in shapes.items():
        weight = weights[name]
        if tuple(weight.shape) != shape:
            raise ModelError(f"{name} is {list(weight.shape)}; the config asks for {list(shape)}.")
        if weight.device != first.device or weight.dtype != first.dtype:
            raise ModelError(
                f"{name} is {weight.dtype} on {weight.device}; like wte.weight it must be "
                f"{first.dtype} on {first.device}."
            )
    if not first.dtype.is_floating_point:
        raise ModelError(f"The weights are {first.dtype}; they must be a float dtype.")
