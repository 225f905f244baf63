"""GPT-2: layer norms, learned positions, biases everywhere, as many heads of keys as of queries."""

from __future__ import annotations

from engine.errors import ModelError
from engine.models.family import Family
from engine.models.fields import Fields
from engine.models.spec import DecoderSpec, split_heads
from engine.models.weights import WeightNames


def gpt2(
    *,
    vocab_size: int = 50257,
    max_positions: int = 1024,
    num_layers: int = 12,
    num_heads: int = 12,
    hidden_size: int = 768,
    inner_size: int = 3072,
    activation: str = "gelu_new",
    norm_epsilon: float = 1e-5,
    tied_head: bool = True,
    eos_token_ids: tuple[int, ...] = (50256,),
    scale_by_head_dim: bool = True,
    scale_by_layer: bool = False,
    dtype: str | None = None,
) -> DecoderSpec:
    """The spec of a GPT-2; by default of the smallest that was published."""
    return DecoderSpec(
        family="gpt2",
        vocab_size=vocab_size,
        max_positions=max_positions,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=split_heads(hidden_size, num_heads),
        hidden_size=hidden_size,
        inner_size=inner_size,
        norm="layer",
        norm_epsilon=norm_epsilon,
        activation=activation,
        attention_in_bias=True,
        attention_out_bias=True,
        feed_forward_bias=True,
        tied_head=tied_head,
        eos_token_ids=eos_token_ids,
        scale_by_head_dim=scale_by_head_dim,
        scale_by_layer=scale_by_layer,
        dtype=dtype,
    )


def _read(fields: Fields) -> DecoderSpec:
    if fields.flag("add_cross_attention", False):
        raise ModelError(
            "add_cross_attention is set; this engine runs decoder-only GPT-2, without an encoder."
        )
    if fields.get("pruned_heads"):
        raise ModelError("It has pruned_heads; every layer must have all its heads.")
    # The kernels accumulate scores and softmax in float32 and scale the float32 product, which is
    # what this option asks for: with it or without it the result is the same.
    fields.flag("reorder_and_upcast_attn", False)
    vocab_size = fields.integer("vocab_size", 50257)
    hidden_size = fields.integer("n_embd", 768, also=("hidden_size",))
    inner_size = fields.integer_or_none("n_inner")
    return gpt2(
        vocab_size=vocab_size,
        max_positions=fields.integer(
            "n_positions", 1024, also=("max_position_embeddings", "n_ctx")
        ),
        num_layers=fields.integer("n_layer", 12, also=("num_hidden_layers",)),
        num_heads=fields.integer("n_head", 12, also=("num_attention_heads",)),
        hidden_size=hidden_size,
        inner_size=4 * hidden_size if inner_size is None else inner_size,
        activation=fields.text("activation_function", "gelu_new"),
        norm_epsilon=fields.number("layer_norm_epsilon", 1e-5),
        tied_head=fields.flag("tie_word_embeddings", True),
        eos_token_ids=fields.eos_token_ids(vocab_size, 50256),
        scale_by_head_dim=fields.flag("scale_attn_weights", True),
        scale_by_layer=fields.flag("scale_attn_by_inverse_layer_idx", False),
        dtype=fields.dtype(),
    )


GPT2 = Family(
    title="GPT-2",
    read=_read,
    names=WeightNames(
        outside={"token_embedding": "wte", "position_embedding": "wpe", "final_norm": "ln_f"},
        block="h.{}.",
        inside={
            "attention_norm": ("ln_1",),
            "attention_in": ("attn.c_attn",),
            "attention_out": ("attn.c_proj",),
            "feed_forward_norm": ("ln_2",),
            "feed_forward_in": ("mlp.c_fc",),
            "feed_forward_out": ("mlp.c_proj",),
        },
        prefix="transformer.",
        are_linears_transposed=True,  # its linear layers are `Conv1D`
        buffers=r"h\.\d+\.attn\.(bias|masked_bias)",  # causal masks of early checkpoints
    ),
)
