"""Every refused argument: a sentence that names it, and nothing written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from paged_cases import paged_problem, same_bits

import kernels
from kernels import KernelArgumentError

INT32 = torch.int32


def _append_arguments(device: torch.device) -> dict[str, Any]:
    return {
        "k_cache": torch.zeros(6, 2, 16, 16, device=device),
        "v_cache": torch.zeros(6, 2, 16, 16, device=device),
        "key": torch.ones(3, 2, 16, device=device),
        "value": torch.ones(3, 2, 16, device=device),
        "block_idx": torch.tensor([5, 0, 2], dtype=INT32, device=device),
        "pos": torch.tensor([1, 15, 0], dtype=INT32, device=device),
        "batch_idx": None,
    }


def _strided(tensor: torch.Tensor, *strides: int) -> torch.Tensor:
    """As large as `tensor`, in no memory, its last stride 1."""
    return torch.empty_strided(tensor.shape, (*strides, 1), dtype=tensor.dtype, device="meta")


APPEND_FAULTS: list[Any] = [
    ("k_cache", lambda t: t[0], "k_cache must have shape"),
    ("k_cache", lambda t: t.double(), "k_cache must be a float32, float16 or bfloat16"),
    ("k_cache", lambda t: t.numpy(force=True), "k_cache must be a float32.*but is ndarray"),
    ("k_cache", lambda t: t[:0], "none of them zero"),
    ("k_cache", lambda t: t.transpose(2, 3), "k_cache must be contiguous along a head"),
    ("k_cache", lambda t: _strided(t, 256, 2**31 - 255, 16), "within 2147483647.*spans 2147483649"),
    ("k_cache", lambda t: _strided(t, 256, 256, 2**28), r"strides \(256, 256, 268435456, 1\)"),
    ("v_cache", lambda t: t.half(), "v_cache must be torch.float32, the cache's dtype"),
    ("v_cache", lambda t: t[:5], "v_cache must have k_cache's shape"),
    ("v_cache", lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), "and strides"),
    ("key", lambda t: t[0], "key must have 3 dimensions"),
    ("key", lambda t: t.half(), "key must be torch.float32, the cache's dtype"),
    ("key", lambda t: t[:, :1], r"key must have shape \[B, H_kv, D\], here \[\*, 2, 16\]"),
    ("key", lambda t: t[:, :, :8], "key must have shape"),
    ("key", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), "key must be contiguous"),
    ("key", lambda t: t.tolist(), "key must be a tensor, but is list"),
    ("value", lambda t: t[:2], "value must have as many rows as key, 3, but has 2"),
    ("value", lambda t: t.bfloat16(), "value must be torch.float32"),
    ("block_idx", lambda t: t[:2], "block_idx must have one entry per row of key, 3"),
    ("block_idx", lambda t: t.long(), "block_idx must be torch.int32, but is torch.int64"),
    ("block_idx", lambda t: t[:, None], "block_idx must have 1 dimension"),
    ("block_idx", lambda t: t.repeat(2)[::2], "block_idx must be contiguous"),
    ("pos", lambda t: t[:2], "pos must be one position for all rows, or contiguous"),
    ("pos", lambda t: t.long(), "pos must be an int or an int32 tensor"),
    ("pos", lambda t: 1.0, "pos must be an int or an int32 tensor, but is float"),
    ("pos", lambda t: True, "pos must be an int or an int32 tensor, but is bool"),
    ("pos", lambda t: 16, "pos must lie in a block, 0 to 15, but is 16"),
    ("pos", lambda t: -1, "pos must lie in a block, 0 to 15, but is -1"),
    ("batch_idx", lambda t: torch.zeros(2, dtype=INT32), "batch_idx must have one entry per"),
    ("batch_idx", lambda t: torch.zeros(3), "batch_idx must be torch.int32"),
]


@pytest.mark.parametrize(("name", "spoil", "sentence"), APPEND_FAULTS)
def test_append_refuses(implementation: Any, name: str, spoil: Any, sentence: str) -> None:
    arguments = _append_arguments(implementation.device)
    spoiled = spoil(arguments[name])
    if isinstance(spoiled, torch.Tensor):
        spoiled = spoiled if arguments[name] is not None else spoiled.to(implementation.device)
    with pytest.raises(KernelArgumentError, match=sentence):
        kernels.kv_append(**{**arguments, name: spoiled})
    assert int(arguments["k_cache"].count_nonzero()) == 0
    assert int(arguments["v_cache"].count_nonzero()) == 0


def test_a_common_position_with_named_rows_is_refused(implementation: Any) -> None:
    arguments = _append_arguments(implementation.device)
    arguments["batch_idx"] = torch.arange(3, dtype=INT32, device=implementation.device)
    with pytest.raises(KernelArgumentError, match=r"pos must be an int32 tensor .* batch_idx"):
        kernels.kv_append(**{**arguments, "pos": 3})


@pytest.mark.parametrize("name", ["v_cache", "key", "value", "block_idx", "pos"])
def test_append_refuses_another_device(name: str) -> None:
    arguments = _append_arguments(torch.device("cpu"))
    elsewhere = {**arguments, name: arguments[name].to("meta")}
    with pytest.raises(KernelArgumentError, match=f"{name} must be on k_cache's device, cpu"):
        kernels.kv_append(**elsewhere)


APPEND_VALUE_FAULTS: list[Any] = [
    ({"block_idx": [5, 0, 6]}, "block_idx must be below the cache's 6 blocks, but holds 6"),
    ({"pos": [1, 16, 0]}, "pos must lie in a block, 0 to 15, but holds 16"),
    ({"pos": [1, -1, 0]}, "pos must lie in a block, 0 to 15, but holds -1"),
    (
        {"block_idx": [5, 2, 2], "pos": [1, 7, 7]},
        "two rows append to block 2 position 7",
    ),
    ({"block_idx": [5, 2, 5], "pos": 3}, "two rows append to block 5 position 3"),
    ({"batch_idx": [0, 3, 1]}, "batch_idx must name rows of key, 0 to 2"),
    ({"batch_idx": [0, -1, 1]}, "batch_idx must name rows of key, 0 to 2"),
]


@pytest.mark.parametrize(("spoiled", "sentence"), APPEND_VALUE_FAULTS)
def test_append_refuses_values_where_they_can_be_read(
    implementation: Any, monkeypatch: pytest.MonkeyPatch, spoiled: dict[str, Any], sentence: str
) -> None:
    _read_values_everywhere(monkeypatch)
    device = implementation.device
    arguments = _append_arguments(device)
    for name, entries in spoiled.items():
        arguments[name] = (
            entries
            if isinstance(entries, int)
            else torch.tensor(entries, dtype=INT32, device=device)
        )
    with pytest.raises(KernelArgumentError, match=sentence):
        kernels.kv_append(**arguments)
    assert int(arguments["k_cache"].count_nonzero()) == 0


def test_skipped_rows_may_name_anything(implementation: Any) -> None:
    arguments = _append_arguments(implementation.device)
    device = implementation.device
    arguments["block_idx"] = torch.tensor([-1, -1, 2], dtype=INT32, device=device)
    arguments["pos"] = torch.tensor([99, 99, 0], dtype=INT32, device=device)
    kernels.kv_append(**arguments)
    assert int(arguments["k_cache"].count_nonzero()) == 2 * 16


ATTENTION_FAULTS: list[Any] = [
    ("query", lambda t: t[0], "query must have 3 dimensions"),
    ("query", lambda t: t.half(), "query must be torch.float32, the cache's dtype"),
    ("query", lambda t: t[..., :8], "query must have shape"),
    ("query", lambda t: t[:, :3], "query must have a multiple of the cache's 2 heads, but has 3"),
    ("query", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), "query must be contig"),
    ("k_cache", lambda t: t[:, :, :, ::2], "k_cache must be contiguous along a head"),
    ("v_cache", lambda t: t[:, :1], "v_cache must have k_cache's shape"),
    ("block_tables", lambda t: t.long(), "block_tables must be torch.int32"),
    ("block_tables", lambda t: t[0], "block_tables must have 2 dimensions"),
    ("block_tables", lambda t: t[:2], "block_tables must have one row per entry of context_lens"),
    ("block_tables", lambda t: t.T.contiguous().T, "block_tables must be contiguous along a row"),
    ("context_lens", lambda t: t.long(), "context_lens must be torch.int32"),
    ("context_lens", lambda t: t[:, None], "context_lens must have 1 dimension"),
    ("scale", lambda t: 0.0, "scale must be a finite number above zero"),
    ("scale", lambda t: float("inf"), "scale must be a finite number above zero"),
    ("scale", lambda t: float("nan"), "scale must be a finite number above zero"),
    ("out", lambda t: torch.empty(3, 4, 8), "out must have query's shape"),
    ("out", lambda t: torch.empty(3, 4, 16).half(), "out must be torch.float32"),
    ("out", lambda t: [1.0], "out must have query's shape.*but is list"),
]


@pytest.mark.parametrize("operation", ["paged_attention_decode", "paged_attention_prefill"])
@pytest.mark.parametrize(("name", "spoil", "sentence"), ATTENTION_FAULTS)
def test_attention_refuses(
    implementation: Any, operation: str, name: str, spoil: Any, sentence: str
) -> None:
    problem = paged_problem([20, 3, 17], heads=(4, 2)).on(implementation.device)
    names = ["query", "k_cache", "v_cache", "block_tables", "context_lens"]
    arguments: dict[str, Any] = dict(zip(names, problem.decode_arguments, strict=True))
    if operation == "paged_attention_prefill":
        arguments["query_start_loc"] = problem.starts
    spoiled = spoil(arguments.get(name))
    if name == "out" and isinstance(spoiled, torch.Tensor):
        spoiled = spoiled.to(implementation.device)
    with pytest.raises(KernelArgumentError, match=sentence):
        getattr(kernels, operation)(**{**arguments, name: spoiled})


def test_decode_refuses_rows_that_are_not_sequences(implementation: Any) -> None:
    problem = paged_problem([20, 3]).on(implementation.device)
    problem.query = problem.query[:1]
    with pytest.raises(KernelArgumentError, match="query must have one row per sequence, 2"):
        kernels.paged_attention_decode(*problem.decode_arguments)


def test_prefill_refuses_a_wrong_number_of_starts(implementation: Any) -> None:
    problem = paged_problem([20, 3]).on(implementation.device)
    problem.starts = problem.starts[:2]
    with pytest.raises(KernelArgumentError, match="query_start_loc must have one entry more"):
        kernels.paged_attention_prefill(*problem.prefill_arguments)


def test_attention_refuses_a_head_too_large(implementation: Any) -> None:
    problem = paged_problem([3], head_dim=264).on(implementation.device)
    with pytest.raises(KernelArgumentError, match="head dimension of at most 256, but has 264"):
        kernels.paged_attention_decode(*problem.decode_arguments)


ATTENTION_VALUE_FAULTS: list[Any] = [
    ("context_lens", 1, 33, "context_lens must lie between 0 and 32"),
    ("context_lens", 1, -1, "context_lens must lie between 0 and 32.*but holds -1"),
    ("block_tables", (0, 1), 99, "block_tables must name blocks 0 to 5 wherever.*but holds 99"),
    ("block_tables", (0, 1), 6, "block_tables must name blocks 0 to 5 wherever.*but holds 6"),
    ("block_tables", (0, 1), -3, "block_tables must name blocks 0 to 5 wherever.*but holds -3"),
]


@pytest.mark.parametrize("operation", ["paged_attention_decode", "paged_attention_prefill"])
@pytest.mark.parametrize(("name", "where", "entry", "sentence"), ATTENTION_VALUE_FAULTS)
def test_attention_refuses_values_where_they_can_be_read(
    implementation: Any,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    name: str,
    where: Any,
    entry: int,
    sentence: str,
) -> None:
    _read_values_everywhere(monkeypatch)
    problem = paged_problem([20, 3])
    getattr(problem, name)[where] = entry
    problem = problem.on(implementation.device)
    arguments = problem.decode_arguments
    if operation == "paged_attention_prefill":
        arguments = problem.prefill_arguments
    out = torch.full_like(problem.query, 7.0)
    with pytest.raises(KernelArgumentError, match=sentence):
        getattr(kernels, operation)(*arguments, out=out)
    assert bool((out == 7.0).all())


@pytest.mark.parametrize(
    ("starts", "sentence"),
    [
        ([1, 2, 5], "query_start_loc must rise from 0"),
        ([0, 3, 2], "query_start_loc must rise from 0"),
        ([0, 2, 6], "query_start_loc must rise from 0 to at most query's 5 rows"),
        ([0, 1, 5], "sequence 1 has 4 queries and a context of 3"),
    ],
)
def test_prefill_refuses_chunks_that_do_not_fit(
    implementation: Any, monkeypatch: pytest.MonkeyPatch, starts: list[int], sentence: str
) -> None:
    _read_values_everywhere(monkeypatch)
    problem = paged_problem([20, 3], chunks=[2, 3])
    problem.starts = torch.tensor(starts, dtype=INT32)
    with pytest.raises(KernelArgumentError, match=sentence):
        kernels.paged_attention_prefill(*problem.on(implementation.device).prefill_arguments)


def test_interpreted_bfloat16_attention_is_refused(
    triton_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = paged_problem([20, 3], dtype=torch.bfloat16).on(triton_device)
    if triton_device.type == "cuda":
        assert kernels.paged_attention_decode(*problem.decode_arguments).dtype == torch.bfloat16
        return
    for run in (
        lambda: kernels.paged_attention_decode(*problem.decode_arguments),
        lambda: kernels.paged_attention_prefill(*problem.prefill_arguments),
    ):
        with pytest.raises(KernelArgumentError, match="float32 or float16 under TRITON_INTERPRET"):
            run()


def test_a_call_that_passes_is_not_changed_by_its_checks(implementation: Any) -> None:
    arguments = _append_arguments(implementation.device)
    before = {k: v.clone() for k, v in arguments.items() if isinstance(v, torch.Tensor)}
    kernels.kv_append(**arguments)
    for name in ("key", "value", "block_idx", "pos"):
        assert same_bits(arguments[name], before[name])


def _read_values_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As KVTRAIL_CHECK_VALUES=1 does, which is read once a process."""
    monkeypatch.setattr("kernels.backend.debug_checks", lambda: True)
