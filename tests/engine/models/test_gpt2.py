"""GPT-2's forward pass against transformers', over full sequences in float32."""

from __future__ import annotations

import pytest
import torch
from gpt2_checkpoints import TINY, greedy_continuation, logits_of, save_reference
from torch.utils._python_dispatch import TorchDispatchMode

from engine.errors import ModelError
from engine.models.activations import ACTIVATIONS, gelu_tanh
from engine.models.decoder import Decoder
from engine.models.gpt2 import gpt2
from engine.models.layers import Linear
from engine.models.random_weights import random_weights
from engine.models.registry import load_model
from engine.models.weights import parameter_shapes

CPU = torch.device("cpu")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _load(directory, dtype=torch.float32, device="cpu"):
    return load_model(str(directory), device=torch.device(device), dtype=dtype).model


def _tokens(count=TINY["n_positions"], seed=0):
    return torch.randint(TINY["vocab_size"], (count,), generator=torch.manual_seed(seed))


def _assert_close(ours, theirs, tolerance=1e-4):
    assert ours.shape == theirs.shape
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error < tolerance, f"relative error {error:.2e}"


def _assert_same_logits(directory, reference, tolerance=1e-4):
    token_ids = _tokens()
    with torch.no_grad():
        theirs = reference(token_ids[None]).logits[0]
    _assert_close(logits_of(_load(directory), token_ids), theirs, tolerance)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_logits_with_every_activation(activation, tmp_path):
    reference = save_reference(tmp_path, activation_function=activation)
    _assert_same_logits(tmp_path, reference)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations_agree_far_from_zero(activation):
    from transformers.activations import ACT2FN

    x = torch.linspace(-40, 40, 4001)
    torch.testing.assert_close(
        ACTIVATIONS[activation](x), ACT2FN[activation](x), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("device", DEVICES)
def test_a_linear_map_is_followed_by_the_gelu_of_the_model(device):
    """torch's fused call means the tanh approximation on CUDA, and 4e-4 from it GELU on a CPU."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(33, 64), torch.randn(48, 64) / 4, torch.randn(48)
    exact = torch.nn.functional.gelu(
        torch.nn.functional.linear(x.double(), weight.double(), bias.double()), approximate="tanh"
    )
    ours = Linear(weight.to(device), bias.to(device)).activated(x.to(device), gelu_tanh)
    torch.testing.assert_close(ours.cpu().double(), exact, rtol=1e-5, atol=2e-5)


def test_no_activation_of_transformers_is_forgotten():
    from transformers.activations import ACT2CLS

    assert set(ACT2CLS) <= {*ACTIVATIONS, "prelu", "xielu"}


@pytest.mark.parametrize("scale_attn_weights", [True, False])
@pytest.mark.parametrize("scale_attn_by_inverse_layer_idx", [True, False])
@pytest.mark.parametrize("reorder_and_upcast_attn", [True, False])
def test_logits_with_every_attention_option(
    scale_attn_weights, scale_attn_by_inverse_layer_idx, reorder_and_upcast_attn, tmp_path
):
    reference = save_reference(
        tmp_path,
        scale_attn_weights=scale_attn_weights,
        scale_attn_by_inverse_layer_idx=scale_attn_by_inverse_layer_idx,
        reorder_and_upcast_attn=reorder_and_upcast_attn,
    )
    _assert_same_logits(tmp_path, reference)


@pytest.mark.parametrize(
    "options",
    [
        {"tie_word_embeddings": False},
        {"n_inner": 100},
        {"layer_norm_epsilon": 0.3},
        {"n_head": 1},
        {"n_head": 48},
        {"n_layer": 1, "n_embd": 20, "n_head": 5},
    ],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
def test_logits_with_every_shape_option(options, tmp_path):
    reference = save_reference(tmp_path, **options)
    _assert_same_logits(tmp_path, reference)


def test_greedy_output_is_that_of_transformers_and_varies(tmp_path):
    reference = save_reference(tmp_path, eos_token_id=None)
    for prompt in ([3], [3, 5, 8], _tokens(20).tolist()):
        with torch.no_grad():
            generated = reference.generate(
                torch.tensor([prompt]), max_new_tokens=40, do_sample=False, pad_token_id=0
            )
        theirs = generated[0, len(prompt) :].tolist()
        assert len(theirs) == 40
        assert len(set(theirs)) > 10
        assert greedy_continuation(_load(tmp_path), prompt, 40) == theirs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_errs_no_more_than_transformers(device, dtype, tmp_path):
    reference = save_reference(tmp_path, n_embd=128, n_layer=6).to(device)
    token_ids = _tokens().to(device)
    with torch.no_grad():
        exact = reference(token_ids[None]).logits[0]
        theirs = reference.to(dtype)(token_ids[None]).logits[0].float()
    ours = logits_of(_load(tmp_path, dtype, device), token_ids).float()
    assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm()


class _Operations(TorchDispatchMode):
    """Collects the names of the operations that reach the device."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.add(operation.overloadpacket._qualified_op_name)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_forward_can_be_captured(activation):
    """No value is read back, no tensor comes from the host, no shape hangs on a value."""
    config = gpt2(
        vocab_size=50,
        max_positions=8,
        num_layers=2,
        num_heads=2,
        hidden_size=16,
        inner_size=64,
        activation=activation,
    )
    model = Decoder(config, random_weights(config, seed=0, device=CPU, dtype=torch.float16))
    token_ids = positions = torch.arange(5)
    with _Operations() as operations:
        model.logits(model.forward(token_ids, positions, lambda layer, q, k, v: v))
    assert "aten::embedding" in operations.names
    uncapturable = ("_local_scalar_dense", "lift_fresh", "_to_copy", "scalar_tensor", "nonzero")
    assert not {f"aten::{name}" for name in uncapturable} & operations.names


def test_attend_gets_each_layer_once_with_rows_per_token():
    config = gpt2(vocab_size=50, max_positions=8, num_layers=3, num_heads=2, hidden_size=16)
    model = Decoder(config, random_weights(config, seed=0, device=CPU, dtype=torch.float32))
    seen = []

    def attend(layer, q, k, v):
        seen.append(layer)
        assert q.shape == k.shape == v.shape == (5, 2, 8)
        assert q.stride()[-1] == 1
        return v

    hidden = model.forward(torch.zeros(5, dtype=torch.int32), torch.arange(5), attend)
    assert seen == [0, 1, 2]
    assert hidden.shape == (5, 16)
    assert model.logits(hidden[-1:]).shape == (1, 50)


def test_a_token_depends_on_others_through_attention_only():
    """Rows of a ragged batch may come in any order, with any neighbours."""
    config = gpt2(vocab_size=50, max_positions=8, num_layers=2, num_heads=2, hidden_size=16)
    model = Decoder(config, random_weights(config, seed=0, device=CPU, dtype=torch.float32))

    def attend(layer, q, k, v):
        return q + k - v

    token_ids, positions = torch.tensor([4, 9, 4, 7]), torch.tensor([0, 3, 1, 7])
    together = model.forward(token_ids, positions, attend)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(
        model.forward(token_ids[order], positions[order], attend), together[order]
    )
    assert not torch.allclose(together[0], together[2])  # same token, other position


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("vocab_size", [50, 64, 65])
def test_a_padded_head_shows_in_speed_only(vocab_size, tied):
    config = gpt2(
        vocab_size=vocab_size,
        max_positions=8,
        num_layers=1,
        num_heads=2,
        hidden_size=16,
        inner_size=64,
        tied_head=tied,
    )
    weights = random_weights(config, seed=0, device=CPU, dtype=torch.float32)
    model = Decoder(config, weights)
    hidden = torch.randn(3, 16, generator=torch.manual_seed(0))
    logits = model.logits(hidden)
    assert logits.shape == (3, vocab_size)
    assert logits.stride(0) % 64 == 0
    head = weights["token_embedding.weight" if tied else "head.weight"]
    torch.testing.assert_close(logits, hidden @ head.T)
    assert torch.equal(model.token_embedding, weights["token_embedding.weight"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda weights: weights.pop("final_norm.bias"), "lack final_norm.bias"),
        (
            lambda weights: weights.update({"position_embedding.weight": torch.zeros(7, 16)}),
            r"position_embedding.weight is \[7, 16\]; the config asks for \[8, 16\]",
        ),
        (
            lambda weights: weights.update(
                {"final_norm.bias": torch.zeros(16, dtype=torch.float16)}
            ),
            "final_norm.bias is torch.float16",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(change, sentence):
    config = gpt2(vocab_size=50, max_positions=8, num_layers=1, num_heads=2, hidden_size=16)
    weights = random_weights(config, seed=0, device=CPU, dtype=torch.float32)
    change(weights)
    with pytest.raises(ModelError, match=sentence):
        Decoder(config, weights)


def test_integer_weights_are_refused():
    config = gpt2(vocab_size=50, max_positions=8, num_layers=1, num_heads=2, hidden_size=16)
    weights = {
        name: torch.zeros(shape, dtype=torch.int8)
        for name, shape in parameter_shapes(config).items()
    }
    with pytest.raises(ModelError, match="must be a float dtype"):
        Decoder(config, weights)
