"""Reading safetensors checkpoints, and refusing what is damaged or does not fit."""

from __future__ import annotations

import json
import random
import time
import tracemalloc

import pytest
import torch
from gpt2_checkpoints import TINY, logits_of, make_reference, save_reference
from safetensors.torch import load_file, save_file

from engine.errors import ModelError
from engine.models.registry import load_model

CPU = torch.device("cpu")
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
C_ATTN = "transformer.h.1.attn.c_attn.weight"


def _load(directory, dtype=torch.float32):
    return load_model(str(directory), device=CPU, dtype=dtype)


def _edit(directory, change):
    """Rewrite model.safetensors after `change` has had its way with the dict of tensors."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def _refusal(directory):
    with pytest.raises(ModelError) as caught:
        _load(directory)
    return str(caught.value)


def _assert_reads_as(directory, reference):
    token_ids = torch.arange(60) * 7 % TINY["vocab_size"]
    with torch.no_grad():
        theirs = reference(token_ids[None]).logits[0]
    ours = logits_of(_load(directory).model, token_ids)
    assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["5GB", "60KB"])
def test_single_and_sharded_tied_and_untied(shard, tied, tmp_path):
    reference = save_reference(tmp_path, shard=shard, tie_word_embeddings=tied)
    shards = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert (shards == ["model.safetensors"]) if shard == "5GB" else (len(shards) > 3)
    _assert_reads_as(tmp_path, reference)
    model = _load(tmp_path).model
    assert (model.head.weight.data_ptr() == model.token_embedding.data_ptr()) == tied


def test_names_without_prefix(tmp_path):
    reference = make_reference()
    reference.transformer.save_pretrained(tmp_path)
    assert "h.0.ln_1.weight" in load_file(tmp_path / "model.safetensors")
    _assert_reads_as(tmp_path, reference)


def test_old_mask_buffers_and_other_heads_are_ignored(tmp_path):
    reference = save_reference(tmp_path)
    extra = {
        "transformer.h.0.attn.bias": torch.ones(1, 1, 96, 96, dtype=torch.uint8),
        "transformer.h.2.attn.masked_bias": torch.tensor(-1e4),
        "multiple_choice_head.summary.weight": torch.ones(1, 48),
        "score.weight": torch.ones(2, 48),
    }
    _edit(tmp_path, lambda tensors: tensors.update(extra))
    _assert_reads_as(tmp_path, reference)


def test_a_tied_head_that_is_stored_as_well_stays_tied(tmp_path):
    reference = save_reference(tmp_path)
    _edit(tmp_path, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"].clone()}))
    _assert_reads_as(tmp_path, reference)
    loaded = _load(tmp_path)
    assert loaded.config.tied_head
    assert loaded.model.head.weight.data_ptr() == loaded.model.token_embedding.data_ptr()


def test_a_tied_head_with_values_of_its_own_is_used_as_in_transformers(tmp_path):
    from transformers import GPT2LMHeadModel

    save_reference(tmp_path)
    _edit(tmp_path, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"].flip(0)}))
    _assert_reads_as(tmp_path, GPT2LMHeadModel.from_pretrained(tmp_path).eval())
    assert not _load(tmp_path).config.tied_head


def test_an_embedding_stored_under_the_name_of_the_tied_head(tmp_path):
    reference = save_reference(tmp_path)
    _edit(tmp_path, lambda t: t.update({"lm_head.weight": t.pop("transformer.wte.weight")}))
    _assert_reads_as(tmp_path, reference)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_float_type_are_converted(stored, tmp_path):
    reference = make_reference().to(stored)
    reference.save_pretrained(tmp_path)
    _assert_reads_as(tmp_path, reference.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_are_contiguous_and_of_the_asked_type(dtype, tmp_path):
    save_reference(tmp_path)
    model = _load(tmp_path, dtype).model
    assert model.dtype == dtype
    weight = model.blocks[1].attention.into.weight
    assert weight.is_contiguous()
    stored = load_file(tmp_path / "model.safetensors")[C_ATTN]
    assert torch.equal(weight, stored.t().to(dtype))


def test_weights_outlive_their_files(tmp_path):
    reference = save_reference(tmp_path)
    model = _load(tmp_path).model
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    token_ids = torch.arange(20)
    with torch.no_grad():
        torch.testing.assert_close(
            logits_of(model, token_ids), reference(token_ids[None]).logits[0], rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("shard", ["5GB", "60KB"])
def test_a_wrong_shape_names_tensor_file_and_both_shapes(shard, tmp_path):
    save_reference(tmp_path, shard=shard)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"n_inner": 100}))
    sentence = _refusal(tmp_path)
    assert "h.0.mlp.c_fc.weight in " in sentence
    assert ".safetensors has the shape [48, 192]; config.json asks for [48, 100]." in sentence


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"n_layer": 4}, ["lack the tensor h.3.ln_1.weight and 11 others"]),
        ({"n_layer": 2}, ["The tensor transformer.h.2.", "belongs to no part of the GPT-2"]),
        ({"vocab_size": 300}, ["transformer.wte.weight", "[211, 48]", "[300, 48]"]),
        ({"n_positions": 95}, ["transformer.wpe.weight", "[96, 48]", "[95, 48]"]),
        ({"n_embd": 64, "n_head": 4}, ["transformer.wte.weight", "[211, 48]", "[211, 64]"]),
        ({"tie_word_embeddings": False}, ["lack the tensor lm_head.weight, which"]),
    ],
)
def test_a_config_of_another_model_is_refused(change, parts, tmp_path):
    save_reference(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    sentence = _refusal(tmp_path)
    assert all(part in sentence for part in parts), sentence


def test_a_transposed_matrix_is_refused(tmp_path):
    save_reference(tmp_path)
    _edit(tmp_path, lambda t: t.update({C_ATTN: t[C_ATTN].t().contiguous()}))
    assert f"{C_ATTN} in {tmp_path / 'model.safetensors'} has the shape [144, 48]" in _refusal(
        tmp_path
    )


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda t: t.pop(C_ATTN), ["lack the tensor h.1.attn.c_attn.weight, which"]),
        (
            lambda t: t.update({"transformer.h.0.ln_cross_attn.weight": torch.ones(48)}),
            ["transformer.h.0.ln_cross_attn.weight", "belongs to no part"],
        ),
        (
            lambda t: t.update({C_ATTN: t[C_ATTN].to(torch.int8)}),
            [C_ATTN, "the type I8", "unquantized"],
        ),
        (
            lambda t: t.update({C_ATTN: t[C_ATTN].to(torch.float8_e4m3fn)}),
            [C_ATTN, "the type F8_E4M3", "unquantized"],
        ),
        (lambda t: t[C_ATTN][0, 0].fill_(torch.nan), [C_ATTN, "not finite in torch.float32"]),
        (lambda t: t[C_ATTN][5, 7].fill_(-torch.inf), [C_ATTN, "not finite in torch.float32"]),
    ],
    ids=["missing", "foreign", "int8", "float8", "nan", "infinite"],
)
def test_a_bad_tensor_is_named(change, parts, tmp_path):
    save_reference(tmp_path)
    _edit(tmp_path, change)
    sentence = _refusal(tmp_path)
    assert all(part in sentence for part in parts), sentence
    assert str(tmp_path) in sentence


def test_a_value_too_large_for_float16_is_refused_there_only(tmp_path):
    save_reference(tmp_path)
    _edit(tmp_path, lambda t: t[C_ATTN][3, 4].fill_(70_000.0))
    _load(tmp_path, torch.float32)
    with pytest.raises(ModelError, match=r"not finite in torch\.float16"):
        _load(tmp_path, torch.float16)


def _header_length(content, length):
    return length.to_bytes(8, "little") + content[8:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:7],
        lambda content: content[:100],
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: _header_length(content, 0),
        lambda content: _header_length(content, 2**62),
        lambda content: content[:8] + b"\xff" * 60 + content[68:],
        lambda content: content.replace(b'"F32"', b'"F99"', 1),
        lambda content: content.replace(b'"data_offsets":[0,', b'"data_offsets":[4,', 1),
    ],
    ids=[
        "empty",
        "no-header",
        "half-a-header",
        "half-a-file",
        "a-byte-short",
        "a-byte-long",
        "header-of-0",
        "header-of-2^62",
        "header-of-garbage",
        "unknown-type",
        "hole",
    ],
)
def test_a_damaged_file_is_named(damage, tmp_path):
    save_reference(tmp_path)
    path = tmp_path / "model.safetensors"
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    assert f"{path} is damaged or is no safetensors file" in _refusal(tmp_path)


def test_no_damage_to_the_header_escapes_as_another_error(tmp_path):
    save_reference(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    header_end = 8 + int.from_bytes(whole[:8], "little")
    choose = random.Random(0)
    refusals = []
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[choose.randrange(header_end)] ^= 1 << choose.randrange(8)
        path.write_bytes(damaged)
        try:
            _load(tmp_path)
        except ModelError as error:
            refusals.append(str(error))
    assert all(str(tmp_path) in refusal for refusal in refusals)
    assert len(refusals) > 270  # a letter in the file's metadata may change unseen


def test_a_damaged_shard_is_named(tmp_path):
    save_reference(tmp_path, shard="60KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[2]
    shard.write_bytes(shard.read_bytes()[:-5])
    assert f"{shard} is damaged" in _refusal(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    save_reference(tmp_path, shard="60KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[2]
    shard.unlink()
    assert f"names the shard {shard.name}, which is not there" in _refusal(tmp_path)


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        (b"{", "is not valid JSON"),
        (b"{}", "must have a weight_map"),
        (b'{"weight_map": {}}', "must have a weight_map"),
        (b'{"weight_map": [1]}', "must have a weight_map"),
        (b'{"weight_map": {"wte.weight": "../model.safetensors"}}', "must be a plain file name"),
        (b'{"weight_map": {"wte.weight": ".."}}', "which is not there"),
        (b'{"weight_map": {"wte.weight": 3}}', "must be a plain file name"),
        (b'{"weight_map": {"wte.weight": ["a"]}}', "must be a plain file name"),
        (b'{"weight_map": {"wte.weight": "%s"}}' % (b"a" * 300), "which is not there"),
        (b'{"weight_map": {"wte.weight": "a\\u0000"}}', "which is not there"),
        (b'{"weight_map": {"nowhere": "SHARD"}}', "the tensor nowhere in model-"),
    ],
)
def test_a_bad_index_is_named(index, sentence, tmp_path):
    save_reference(tmp_path, shard="60KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[0].name
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(index.replace(b"SHARD", shard.encode()))
    refusal = _refusal(tmp_path)
    assert sentence in refusal
    assert str(path) in refusal


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "model.safetensors.index.json",
        "model-00003-of-00010.safetensors",
        "config.json",
        "generation_config.json",
    ],
)
def test_a_git_lfs_pointer_is_named_as_one(name, tmp_path):
    save_reference(tmp_path, shard="5GB" if name == "model.safetensors" else "60KB")
    path = tmp_path / name
    assert path.is_file()
    path.write_text(LFS_POINTER)
    assert _refusal(tmp_path).startswith(f"{path} is a Git LFS pointer, not the file")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("wrap", "beginning"),
    [
        (lambda name: "module." + name, "module."),
        (lambda name: "_orig_mod." + name, "_orig_mod."),
        (lambda name: "module._orig_mod." + name, "module."),
        (lambda name: "_orig_mod.module." + name, "_orig_mod."),
        (lambda name: name.replace("transformer.", "transformer._orig_mod."), "_orig_mod."),
    ],
    ids=["parallel", "compiled", "compiled-parallel", "parallel-compiled", "backbone"],
)
def test_names_that_a_wrapper_gave_are_named_as_such(wrap, beginning, tied, tmp_path):
    save_reference(tmp_path, tie_word_embeddings=tied)
    path = tmp_path / "model.safetensors"
    save_file({wrap(name): tensor for name, tensor in load_file(path).items()}, path)
    refusal = _refusal(tmp_path)
    assert f"{tmp_path} begin with {beginning!r}" in refusal
    assert ("torch.compile" in refusal) == (beginning == "_orig_mod.")


@pytest.mark.parametrize(
    ("claim", "parts"),
    [
        ({"n_layer": 10_000_000}, ["claims 10000000 layers", "hold 40 tensors in all"]),
        ({"n_layer": 2**31 - 1}, ["claims 2147483647 layers", "hold 40 tensors in all"]),
        ({"n_layer": 2**31}, ["num_layers is 2147483648; it must be at most 2147483647"]),
        ({"n_layer": 10**4200}, ["num_layers is a number of"]),
        ({"n_embd": 10**4299 * 9}, ["is a number of"]),
        ({"vocab_size": 10**9}, ["transformer.wte.weight", "[211, 48]", "[1000000000, 48]"]),
        ({"n_positions": 10**9}, ["transformer.wpe.weight", "[96, 48]", "[1000000000, 48]"]),
        ({"n_embd": 2 * 10**9}, ["inner_size is 8000000000; it must be at most"]),
        ({"n_inner": 10**9}, ["mlp.c_fc.weight", "[48, 192]", "[48, 1000000000]"]),
        ({"n_head": 10**9}, ["48 does not divide into 1000000000 heads"]),
        ({"layer_norm_epsilon": 10**400}, ["it must be a positive number"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_claims_are_compared_with_the_file_before_anything_grows_with_them(claim, parts, tmp_path):
    save_reference(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | claim))
    started = time.process_time()
    tracemalloc.start()
    try:
        refusal = _refusal(tmp_path)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(part in refusal for part in parts), refusal
    assert most_bytes < 4_000_000
    assert time.process_time() - started < 3


def test_a_file_without_tensors_is_named(tmp_path):
    save_reference(tmp_path)
    save_file({}, tmp_path / "model.safetensors")
    assert f"The weights in {tmp_path} hold no tensor at all" in _refusal(tmp_path)


def test_a_pickle_is_never_opened(tmp_path):
    save_reference(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    assert "pickle only" in _refusal(tmp_path)
    assert "safe_serialization=True" in _refusal(tmp_path)


def test_no_weights_at_all(tmp_path):
    save_reference(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert f"{tmp_path} has no weights" in _refusal(tmp_path)
