"""Parts of a model on several ranks are together the model; ranks run as threads here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import decoder_checkpoints
import gpt2_checkpoints
import pytest
import torch
from gpt2_checkpoints import dense_causal_attention
from safetensors.torch import load_file, save_file
from threaded_ranks import on_ranks

from engine import ConfigError
from engine.models.checkpoint import load_weights, read_headers
from engine.models.decoder import Decoder
from engine.models.families import FAMILIES, read_config
from engine.models.random_weights import random_weights
from engine.models.registry import random_config
from engine.models.share import Share
from engine.models.spec import DecoderSpec
from engine.models.weights import HEAD, TOKEN_EMBEDDING, parameter_shapes
from engine.parallel.group import Group

CPU = torch.device("cpu")
LLAMA = replace(random_config("random:llama-tiny"), vocab_size=500)
SPECS = {
    "gpt2": replace(random_config("random:gpt2-tiny"), vocab_size=500),
    "llama": LLAMA,
    "llama with biases": replace(
        LLAMA, attention_in_bias=True, attention_out_bias=True, feed_forward_bias=True
    ),
    "llama with a head of its own": replace(LLAMA, tied_head=False),
    "llama with one head of keys": replace(LLAMA, num_kv_heads=1),
    "qwen3": replace(random_config("random:qwen3-tiny"), vocab_size=500),
    "gemma3_text": replace(random_config("random:gemma-tiny"), vocab_size=500, sliding_window=9),
}
TOKENS = torch.arange(40) * 37 % 500


def _weights(spec: DecoderSpec, share: Share) -> dict[str, torch.Tensor]:
    return random_weights(spec, seed=3, device=CPU, dtype=torch.float32, share=share)


def _run(model: Decoder) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode():
        hidden = model.forward(TOKENS, torch.arange(len(TOKENS)), dense_causal_attention(model))
        return model.logits(hidden), model.head.likeliest(hidden)


@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", SPECS)
def test_every_rank_computes_what_the_whole_model_computes(name, ranks, is_folded):
    spec = SPECS[name]

    def on_rank(group: Group):
        share = Share(group.rank, ranks)
        model = Decoder(share.spec(spec), _weights(spec, share), group)
        if is_folded:
            model.fold_norms()
        return _run(model)

    logits, likeliest = _run(Decoder(spec, _weights(spec, Share())))
    for found in on_ranks(ranks, on_rank):
        torch.testing.assert_close(found[0], logits, rtol=1e-4, atol=1e-3)
        assert torch.equal(found[1], likeliest)


@pytest.mark.parametrize("name", SPECS)
def test_the_parts_of_all_ranks_take_little_more_than_the_whole(name):
    """Embeddings, norms and heads of keys that ranks share are all that there is more than once."""
    spec = SPECS[name]
    whole = parameter_shapes(spec)
    parts = [parameter_shapes(Share(rank, 2).spec(spec)) for rank in range(2)]
    for parameter, shape in whole.items():
        count = sum(torch.Size(one[parameter]).numel() for one in parts)
        is_map = parameter.startswith("blocks.") and len(shape) == 2
        if is_map and spec.num_kv_heads > 1:
            assert count == torch.Size(shape).numel(), parameter
        else:
            assert count <= 2 * torch.Size(shape).numel(), parameter


@pytest.mark.parametrize(
    ("scores", "likeliest"),
    [
        ([[0.0, 3.0, 1.0], [2.0, 3.0, -1.0]], 1),  # of equals the lower id
        ([[0.0, 3.0, 1.0], [2.0, 4.0, -1.0]], 129),
        ([[0.0, 3.0, 1.0], [2.0, float("nan"), 0.0]], -1),
        ([[float("-inf")] * 3, [float("-inf")] * 3], 0),
    ],
)
def test_the_likeliest_token_is_found_among_all_ranks(scores, likeliest):
    """Tokens 0 to 2 and 128 to 130 of a vocabulary of 131 have these scores."""
    spec = replace(SPECS["llama"], vocab_size=131, tied_head=False)

    def on_rank(group: Group):
        share = Share(group.rank, 2)
        model = Decoder(share.spec(spec), _weights(spec, share), group)
        model.head.weight.fill_(9.0)  # of padding, which must not count
        model.head.weight[: len(model.head.tokens)] = -8.0
        for place, score in enumerate(scores[group.rank]):
            model.head.weight[place] = score
        if likeliest == 0:
            model.head.weight.fill_(float("-inf"))
        state = torch.zeros(1, spec.hidden_size)
        state[0, 0] = 1.0
        model.head.weight[:, 1:] = 0.0
        return model.head.likeliest(state).tolist()

    assert on_ranks(2, on_rank) == [[likeliest]] * 2


CHECKPOINTS = {
    "gpt2": (gpt2_checkpoints.save_reference, ()),
    "llama": (decoder_checkpoints.save_reference, ("llama",)),
    "qwen2": (decoder_checkpoints.save_reference, ("qwen2",)),
    "qwen3": (decoder_checkpoints.save_reference, ("qwen3",)),
}


def _load(folder: Path, share: Share) -> dict[str, torch.Tensor]:
    spec = read_config(folder)
    family = FAMILIES[spec.family]
    headers = read_headers(folder, family)
    return load_weights(headers, family, spec, device=CPU, dtype=torch.float32, share=share)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_rank_reads_its_part_of_a_checkpoint(name, tied, ranks, tmp_path):
    save, names = CHECKPOINTS[name]
    save(tmp_path, *names, shard="60KB", tie_word_embeddings=tied)
    spec, whole = read_config(tmp_path), _load(tmp_path, Share())
    for rank in range(ranks):
        share = Share(rank, ranks)
        read = _load(tmp_path, share)
        assert {name: tuple(one.shape) for name, one in read.items()} == parameter_shapes(
            share.spec(spec)
        )
        for parameter, one in read.items():
            assert torch.equal(one, share.take(spec, parameter, whole[parameter])), parameter


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_rank_of_a_tied_checkpoint_reads_the_head_that_is_stored_as_well(is_equal, tmp_path):
    decoder_checkpoints.save_reference(tmp_path, "llama", tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    head = tensors["model.embed_tokens.weight"].clone()
    if not is_equal:
        head += 1.0
    save_file({**tensors, "lm_head.weight": head}, file)
    for rank in range(2):
        read = _load(tmp_path, Share(rank, 2))
        assert (HEAD in read) != is_equal
        if not is_equal:
            rows = read[TOKEN_EMBEDDING][rank * 128 : (rank + 1) * 128]
            assert torch.equal(read[HEAD][: len(rows)], rows + 1.0)
            assert not read[HEAD][len(rows) :].any()


@pytest.mark.parametrize(
    ("name", "ranks", "words"),
    [
        ("gpt2", 3, "4 heads of queries, 4 of keys and values and 512 .* use 1, 2 or 4"),
        ("llama", 8, "4 heads of queries, 2 of keys and values and 256 .* use 1, 2 or 4"),
    ],
)
def test_a_model_is_not_cut_within_a_head(name, ranks, words):
    with pytest.raises(ConfigError, match=f"tensor_parallel_size is {ranks}, but .* {words}"):
        Share(0, ranks).spec(SPECS[name])
