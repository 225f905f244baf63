"""Attention to a window of the last tokens, against the float64 reference.

What no query sees is NaN: it must be neither attended to nor read.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from paged_cases import (
    NAN,
    UNUSED_BLOCK,
    PagedProblem,
    assert_close_to_reference,
    hide_before,
    paged_problem,
    same_bits,
)

import kernels
from kernels import KernelArgumentError
from kernels.attention.eight_bits import rounded, scales_for
from kernels.attention.reference import reference_decode, reference_prefill
from kernels.backend import ring_serves
from kernels.tiles.launch import SPLIT_TOKENS

WINDOWS = (1, 15, 16, 17, 50)


def _check_decode(problem: PagedProblem, implementation: Any, window: int) -> None:
    hide_before(problem, window)
    there = problem.on(implementation.device)
    result = kernels.paged_attention_decode(*there.decode_arguments, window=window).cpu()
    reference = reference_decode(*problem.decode_arguments, window=window)
    assert_close_to_reference(result, reference, problem, window)


def _check_prefill(problem: PagedProblem, implementation: Any, window: int) -> None:
    hide_before(problem, window)
    there = problem.on(implementation.device)
    result = kernels.paged_attention_prefill(*there.prefill_arguments, window=window).cpu()
    reference = reference_prefill(*problem.prefill_arguments, window=window)
    assert_close_to_reference(result, reference, problem, window)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("block_size", [16, 24])
def test_decode_around_the_window(
    implementation: Any, dtype: torch.dtype, window: int, block_size: int
) -> None:
    contexts = [window - 1, window, window + 1, 0, 1, 2 * window + 3, 100]
    problem = paged_problem(contexts, heads=(2, 1), block_size=block_size, dtype=dtype)
    _check_decode(problem, implementation, window)


@pytest.mark.parametrize(
    "window", [1, SPLIT_TOKENS - 1, SPLIT_TOKENS, SPLIT_TOKENS + 1, 2 * SPLIT_TOKENS]
)
def test_decode_over_many_splits(implementation: Any, dtype: torch.dtype, window: int) -> None:
    s = SPLIT_TOKENS
    contexts = [s, s + 1, 2 * s - 1, 2 * s, 3 * s + 7, 700]
    _check_decode(paged_problem(contexts, heads=(1, 1), dtype=dtype), implementation, window)


@pytest.mark.parametrize("window", [40, SPLIT_TOKENS + 9])
def test_both_launches_of_decode_agree_bit_for_bit(
    triton_device: torch.device, window: int
) -> None:
    from kernels.attention.decode import launch_decode

    contexts = [0, 30, 270, 515, 700]
    problem = paged_problem(contexts, heads=(4, 2)).on(triton_device)
    hide_before(problem, window)
    for row, length in zip(problem.block_tables, contexts, strict=True):
        row[: max(0, length - window) // 16] = UNUSED_BLOCK
    outs = []
    for serial in (True, False):
        out = torch.full_like(problem.query, NAN)
        launch_decode(*problem.decode_arguments, 0.25, out, window=window, serial=serial)
        outs.append(out)
    assert same_bits(*outs)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("contexts", "chunks"),
    [
        ([20, 65, 7], [20, 65, 7]),
        ([40, 18, 130], [9, 1, 66]),
        ([5, 30, 0, 12, 65], [5, 0, 0, 1, 64]),
    ],
    ids=["whole-prompts", "later-chunks", "empty-chunks"],
)
def test_prefill(
    implementation: Any,
    dtype: torch.dtype,
    window: int,
    contexts: list[int],
    chunks: list[int],
) -> None:
    problem = paged_problem(contexts, chunks=chunks, heads=(2, 1), dtype=dtype)
    _check_prefill(problem, implementation, window)


def test_heads_of_256(implementation: Any, dtype: torch.dtype) -> None:
    options: dict[str, Any] = {"heads": (4, 1), "head_dim": 256, "dtype": dtype}
    _check_decode(paged_problem([30, 90], **options), implementation, 40)
    _check_prefill(paged_problem([30, 90], chunks=[30, 20], **options), implementation, 40)


@pytest.mark.parametrize("chunk", [1, 7, 16, 50])
def test_a_prompt_in_chunks_is_attended_to_as_at_once(implementation: Any, chunk: int) -> None:
    length, window = 100, 23
    whole = paged_problem([length], chunks=[length], heads=(2, 1)).on(implementation.device)
    at_once = kernels.paged_attention_prefill(*whole.prefill_arguments, window=window)
    for first in range(0, length, chunk):
        last = min(first + chunk, length)
        part = kernels.paged_attention_prefill(
            whole.query[first:last],
            whole.k_cache,
            whole.v_cache,
            whole.block_tables,
            torch.full_like(whole.context_lens, last),
            torch.tensor([0, last - first], dtype=torch.int32, device=implementation.device),
            window=window,
        )
        torch.testing.assert_close(part, at_once[first:last], rtol=0, atol=1e-6)


def test_a_window_as_long_as_the_context_hides_nothing(implementation: Any) -> None:
    problem = paged_problem([70, 12], chunks=[20, 12], heads=(2, 1)).on(implementation.device)
    with_window, without = (
        kernels.paged_attention_prefill(*problem.prefill_arguments, window=window)
        for window in (70, None)
    )
    torch.testing.assert_close(with_window, without, rtol=0, atol=1e-6)
    one_each = paged_problem([70, 12], heads=(2, 1)).on(implementation.device)
    with_window, without = (
        kernels.paged_attention_decode(*one_each.decode_arguments, window=window)
        for window in (70, None)
    )
    assert same_bits(with_window, without)


def test_over_a_cache_of_eight_bits(implementation: Any) -> None:
    window, problem = 20, paged_problem([70, 33], chunks=[25, 1], heads=(4, 2))
    scales = scales_for(torch.tensor([[3.0, 2.0], [1.0, 4.0]]))
    keys, values = (
        rounded(cache.transpose(1, 2).flatten(0, 1), own).unflatten(0, (-1, 16)).transpose(1, 2)
        for cache, own in zip((problem.k_cache, problem.v_cache), scales, strict=True)
    )
    indices = problem.prefill_arguments[3:]
    there = [one.to(implementation.device) for one in (problem.query, keys, values, *indices)]
    options = {"scales": scales.to(implementation.device), "window": window}
    result = kernels.paged_attention_prefill(*there, **options).cpu()
    exact = reference_prefill(problem.query, keys, values, *indices, scales=scales, window=window)
    assert float((result.double() - exact).abs().max()) <= 1e-5
    ends = problem.starts[1:] - 1
    last = kernels.paged_attention_decode(there[0][ends], *there[1:5], **options).cpu()
    assert float((last.double() - exact[ends]).abs().max()) <= 1e-5


@pytest.mark.parametrize("window", [0, -3, 2.0, True])
def test_what_is_no_window_is_refused(window: Any) -> None:
    problem = paged_problem([4], chunks=[4])
    for call in (
        lambda: kernels.paged_attention_decode(*problem.decode_arguments, window=window),
        lambda: kernels.paged_attention_prefill(*problem.prefill_arguments, window=window),
    ):
        with pytest.raises(KernelArgumentError) as caught:
            call()
        assert "window must be a whole number of tokens" in str(caught.value)


def test_the_ring_has_no_window(hopper: torch.device) -> None:
    cache = torch.zeros(4, 2, 64, 64, dtype=torch.float16, device=hopper)
    assert ring_serves(cache, cache, 1, append=False)
    assert not ring_serves(cache, cache, 1, append=False, window=100)
