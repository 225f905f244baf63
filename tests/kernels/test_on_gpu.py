"""What only a GPU can show: graph replay, repeats, bit equality of the two decode launches.

Small on purpose: compute-sanitizer runs these too.
"""

from __future__ import annotations

import pytest
import torch
from paged_cases import PagedProblem, assert_close_to_reference, paged_problem, same_bits

import kernels
from kernels import KernelArgumentError
from kernels.attention.reference import reference_decode, reference_prefill
from kernels.attention.workspace import DecodeWorkspace, own_workspace
from kernels.tiles.launch import SPLIT_TOKENS

HALVES = [torch.float16, torch.bfloat16]
LONG = [3 * SPLIT_TOKENS + 1, 17, 0, SPLIT_TOKENS, 2 * SPLIT_TOKENS - 1]


def _decode(problem: PagedProblem) -> torch.Tensor:
    return kernels.paged_attention_decode(*problem.decode_arguments)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("heads", [(4, 4), (8, 2)], ids=["mha", "gqa"])
def test_model_shapes_against_the_reference(
    gpu: torch.device, dtype: torch.dtype, head_dim: int, heads: tuple[int, int]
) -> None:
    chunks = [65, 17, 0, 100, 1]
    problem = paged_problem(
        LONG, chunks=chunks, heads=heads, head_dim=head_dim, block_size=64, dtype=dtype
    ).on(gpu)
    result = kernels.paged_attention_prefill(*problem.prefill_arguments)
    reference = reference_prefill(*problem.prefill_arguments)
    assert_close_to_reference(result, reference, problem)

    problem = paged_problem(LONG, heads=heads, head_dim=head_dim, block_size=64, dtype=dtype).on(
        gpu
    )
    assert_close_to_reference(
        _decode(problem), reference_decode(*problem.decode_arguments), problem
    )


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("block_size", [16, 64])
def test_serial_and_parallel_launches_agree_bit_for_bit(
    gpu: torch.device, dtype: torch.dtype, head_dim: int, block_size: int
) -> None:
    from kernels.attention.decode import launch_decode

    problem = paged_problem(
        LONG, heads=(8, 2), head_dim=head_dim, block_size=block_size, dtype=dtype
    ).on(gpu)
    results = []
    for serial in (False, True):
        out = torch.full_like(problem.query, float("nan"))
        launch_decode(*problem.decode_arguments, head_dim**-0.5, out, serial=serial)
        results.append(out)
    assert same_bits(*results)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_a_sequence_alone_equals_itself_in_a_batch_that_fills_the_device(
    gpu: torch.device, dtype: torch.dtype
) -> None:
    """Enough rows for the serial launch, against the parallel one of each row alone."""
    rows = 4 * torch.cuda.get_device_properties(gpu).multi_processor_count // 4 + 1
    contexts = [(37 * b) % (2 * SPLIT_TOKENS) for b in range(rows)]
    problem = paged_problem(contexts, heads=(4, 4), block_size=64, dtype=dtype).on(gpu)
    together = _decode(problem)
    for sequence in range(0, rows, 11):
        assert same_bits(_decode(problem.alone(sequence))[0], together[sequence])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", [64, 128], ids=["ring on Hopper", "plain"])
def test_300_repeats_are_bit_equal(gpu: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    problem = paged_problem(LONG, heads=(4, 2), head_dim=head_dim, block_size=64, dtype=dtype).on(
        gpu
    )
    chunked = paged_problem(
        LONG, chunks=[65, 17, 0, 100, 1], heads=(4, 2), head_dim=head_dim, block_size=64,
        dtype=dtype,
    ).on(gpu)  # fmt: skip
    decoded = _decode(problem)
    prefilled = kernels.paged_attention_prefill(*chunked.prefill_arguments)
    differing = torch.zeros((), dtype=torch.int64, device=gpu)
    for _ in range(300):
        differing += (_decode(problem) != decoded).sum()
        again = kernels.paged_attention_prefill(*chunked.prefill_arguments)
        differing += (again != prefilled).sum()
    assert int(differing) == 0


def _step(problem: PagedProblem, key: torch.Tensor, index: dict[str, torch.Tensor]) -> torch.Tensor:
    """What a decode layer does: append each row's key and value, then attend."""
    kernels.kv_append(problem.k_cache, problem.v_cache, key, -key, index["block"], index["pos"])
    kernels.kv_append(problem.k_cache, problem.v_cache, key, key, index["other"], index["common"])
    return _decode(problem)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_a_replayed_graph_follows_lengths_tables_and_positions(
    gpu: torch.device, dtype: torch.dtype
) -> None:
    """Captured once, then replayed for other lengths, other blocks, a skipped row."""
    shapes = {"heads": (4, 2), "head_dim": 64, "block_size": 64}
    longest = 3 * SPLIT_TOKENS
    static = paged_problem([longest] * 4, dtype=dtype, **shapes).on(gpu)  # type: ignore[arg-type]
    num_blocks = static.k_cache.shape[0]
    key = torch.randn(4, 2, 64, dtype=dtype, device=gpu)
    index = {
        name: torch.zeros(size, dtype=torch.int32, device=gpu)
        for name, size in (("block", 4), ("pos", 4), ("other", 4), ("common", 1))
    }
    index["block"].fill_(-1)
    index["other"].fill_(-1)
    _step(static, key, index)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = _step(static, key, index)

    generator = torch.Generator().manual_seed(1)
    for lengths in ([1, 2, 63, 64], [0, longest, 65, 700], [longest - 1, 255, 256, 257]):
        order = torch.randperm(num_blocks, generator=generator).int()
        columns = static.block_tables.shape[1]
        tables = torch.stack([order.roll(7 * b)[:columns] for b in range(4)])
        static.k_cache.copy_(torch.randn(static.k_cache.shape, generator=generator))
        static.v_cache.copy_(torch.randn(static.v_cache.shape, generator=generator))
        static.query.copy_(torch.randn(static.query.shape, generator=generator))
        static.block_tables.copy_(tables)
        static.context_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        free = torch.randperm(num_blocks, generator=generator).int()
        index["block"].copy_(torch.where(torch.arange(4) == 1, -1, free[:4]))
        index["other"].copy_(free[4:8])
        index["pos"].copy_(torch.randint(0, 64, (4,), generator=generator))
        index["common"].copy_(torch.randint(0, 64, (1,), generator=generator))

        eager = PagedProblem(*(tensor.clone() for tensor in static.prefill_arguments))
        expected = _step(eager, key, index)
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(out, expected)
        assert same_bits(static.k_cache, eager.k_cache)
        assert same_bits(static.v_cache, eager.v_cache)


def test_a_replayed_prefill_graph_follows_chunks(gpu: torch.device) -> None:
    static = paged_problem([60, 60], chunks=[40, 24], head_dim=64, dtype=torch.float16).on(gpu)
    kernels.paged_attention_prefill(*static.prefill_arguments)
    graph = torch.cuda.CUDAGraph()
    out = torch.zeros_like(static.query)
    with torch.cuda.graph(graph):
        kernels.paged_attention_prefill(*static.prefill_arguments, out=out)
    for starts, lengths in (([0, 1, 64], [7, 63]), ([0, 60, 60], [60, 0]), ([0, 10, 30], [10, 55])):
        static.starts.copy_(torch.tensor(starts, dtype=torch.int32))
        static.context_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        expected = kernels.paged_attention_prefill(*static.prefill_arguments)
        assert same_bits(out[: starts[-1]], expected[: starts[-1]])


def test_a_graph_outlives_the_growth_of_its_workspace(gpu: torch.device) -> None:
    small = paged_problem([SPLIT_TOKENS + 9], head_dim=64, dtype=torch.float16).on(gpu)
    expected = _decode(small)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = _decode(small)
    large = paged_problem([4 * SPLIT_TOKENS] * 8, head_dim=64, dtype=torch.float16).on(gpu)
    for _ in range(3):
        _decode(large)
        noise = [torch.full((1 << 20,), float("nan"), device=gpu) for _ in range(4)]
        out.zero_()
        graph.replay()
        assert same_bits(out, expected)
        del noise


def test_capture_before_any_call_is_refused(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.attention import workspace

    problem = paged_problem([SPLIT_TOKENS + 1], head_dim=64, dtype=torch.float16).on(gpu)
    expected = _decode(problem)
    monkeypatch.setattr(workspace, "_workspaces", {})
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(KernelArgumentError, match="once outside graph capture"),
        torch.cuda.graph(graph),
    ):
        _decode(problem)
    assert same_bits(_decode(problem), expected)


def test_two_streams_and_two_graphs_at_once(gpu: torch.device) -> None:
    """Eager calls on two streams, and two graphs with workspaces of their own."""
    problems = [
        paged_problem([SPLIT_TOKENS * 3 + b, 40], head_dim=64, dtype=torch.float16, seed=b).on(gpu)
        for b in range(2)
    ]
    expected = [_decode(problem) for problem in problems]
    streams = [torch.cuda.Stream() for _ in problems]
    graphs, outs = [], []
    # Kept for as long as the graphs, which hold nothing but the addresses.
    workspaces = [DecodeWorkspace(problem.query.device) for problem in problems]
    for problem, workspace in zip(problems, workspaces, strict=True):
        with own_workspace(workspace):
            _decode(problem)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outs.append(_decode(problem))
            graphs.append(graph)
    torch.cuda.synchronize()
    for _ in range(50):
        eager = []
        for stream, problem, graph in zip(streams, problems, graphs, strict=True):
            with torch.cuda.stream(stream):
                eager.append(_decode(problem))
                graph.replay()
        torch.cuda.synchronize()
        for wanted, one, other in zip(expected, eager, outs, strict=True):
            assert same_bits(one, wanted)
            assert same_bits(other, wanted)


def test_calls_do_not_synchronise(gpu: torch.device) -> None:
    problem = paged_problem(LONG, head_dim=64, dtype=torch.float16).on(gpu)
    chunked = paged_problem([30, 9], chunks=[20, 9], head_dim=64, dtype=torch.float16).on(gpu)
    key = torch.randn(1, 2, 64, dtype=torch.float16, device=gpu)
    block = torch.zeros(1, dtype=torch.int32, device=gpu)

    def call() -> None:
        kernels.kv_append(problem.k_cache, problem.v_cache, key, key, block, 3)
        kernels.kv_append(problem.k_cache, problem.v_cache, key, key, block, block)
        _decode(problem)
        kernels.paged_attention_prefill(*chunked.prefill_arguments)

    call()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("way", ["full batch", "identity", "generic"])
def test_appends_that_read_what_the_one_before_wrote_await_it(gpu: torch.device, way: str) -> None:
    """They are launched before it has ended, which rows of 16 KB take their time to.

    Each moves all rows of one cache into the other, to blocks and a position that a small append
    between two moves writes, which itself awaits the first. All three fit on the device at once.
    """
    rows, heads, dim, moves = 512, 32, 128, 32
    caches = torch.zeros(2, 2, rows, heads, 2, dim, dtype=torch.float16, device=gpu)
    orders = torch.randn(2, rows, generator=torch.Generator().manual_seed(0)).argsort()
    first = torch.randn(2, rows, heads, dim, dtype=torch.float16, device=gpu)
    every, zero = torch.arange(rows).to(gpu, torch.int32), torch.zeros(1).to(gpu, torch.int32)
    # The blocks and the position of even moves and of odd ones, as the bits of float32 keys and
    # values: only an append lets the kernel after it start before it has written.
    slots = torch.arange(2)[:, None].expand(2, rows)
    indices = torch.stack([orders, slots], dim=1).to(gpu, torch.int32)
    bits = indices.view(torch.float32).view(2, 2, 1, 4, 128)
    written = torch.zeros(2, 1, 4, 1, 128, device=gpu)
    blocks, positions = written.view(torch.int32).flatten(1)
    places = {
        "full batch": (positions[:1],),
        "identity": (positions,),
        "generic": (positions, every),
    }[way]

    def move(step: int) -> None:
        is_odd = step % 2
        kernels.kv_append(*written, *bits[is_odd], zero, zero)
        source, target = caches[is_odd, :, :, :, 1 - is_odd], caches[1 - is_odd]
        kernels.kv_append(*target, *source, blocks, *places)

    move(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in range(moves):
            move(step)
    caches[0, :, :, :, 1] = first
    graph.replay()
    wanted = first.cpu()
    for step in range(moves):
        wanted = torch.empty_like(wanted).index_copy_(1, orders[step % 2], wanted)
    assert same_bits(caches[0, :, :, :, 1].cpu(), wanted)


def test_the_common_position_does_not_recompile(gpu: torch.device) -> None:
    from kernels.attention.append import append_rows

    cache = torch.zeros(2, 2, 64, 64, dtype=torch.float16, device=gpu)
    key = torch.randn(1, 2, 64, dtype=torch.float16, device=gpu)
    block = torch.zeros(1, dtype=torch.int32, device=gpu)
    kernels.kv_append(cache, cache.clone(), key, key, block, 0)

    def compiled() -> int:
        return sum(len(held[0]) for held in append_rows.device_caches.values())

    before = compiled()
    for position in (1, 2, 15, 16, 17, 32, 63):
        kernels.kv_append(cache, cache.clone(), key, key, block, position)
    assert compiled() == before
