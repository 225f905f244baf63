"""KV append: every bit of the whole cache, written or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreted_launches import within_bounds
from paged_cases import NAN, same_bits, side_by_side

import kernels
from kernels.attention.reference import reference_append
from kernels.tiles import launch

SHAPES = [
    pytest.param(2, 16, 16, id="2x16-block16"),
    pytest.param(3, 24, 8, id="3x24-block8"),
    pytest.param(12, 64, 64, id="gpt2-block64"),
]
NUM_BLOCKS = 9
ROWS = 5


@pytest.fixture(autouse=True, params=[ROWS, 0], ids=["whole", "shared"])
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program for each row, or for some heads of a few rows."""
    monkeypatch.setattr(launch, "MOST_WHOLE_APPENDS", request.param)


def _caches(heads: int, dim: int, block: int, dtype: torch.dtype, device: torch.device) -> Any:
    shape = (NUM_BLOCKS, heads, block, dim)
    return tuple(torch.full(shape, NAN, dtype=dtype, device=device) for _ in range(2))


def _rows(count: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> Any:
    """Keys and values as slices of larger tensors, of unequal strides."""
    generator = torch.Generator().manual_seed(heads)
    fused = torch.randn(count, 3, heads, dim, generator=generator).to(dtype).to(device)
    padded = torch.randn(count, 2 * heads, dim + 8, generator=generator).to(dtype).to(device)
    return fused[:, 1], padded[:, ::2, :dim]


def _assert_appended(
    implementation: Any, heads: int, dim: int, block: int, dtype: torch.dtype, **index: Any
) -> None:
    device = implementation.device
    index = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in index.items()}
    key, value = _rows(ROWS, heads, dim, dtype, device)
    caches = _caches(heads, dim, block, dtype, device)
    expected = tuple(cache.clone() for cache in caches)
    reference_append(*expected, key, value, **index)
    kernels.kv_append(*caches, key, value, **index)
    for cache, wanted, untouched in zip(
        caches, expected, _caches(heads, dim, block, dtype, device), strict=True
    ):
        assert same_bits(cache, wanted)
        assert not same_bits(wanted, untouched)


@pytest.mark.parametrize("batch_idx", [None, [4, 0, 2]], ids=["identity", "generic"])
def test_values_behind_their_keys(
    implementation: Any, dtype: torch.dtype, batch_idx: list[int] | None
) -> None:
    """One run of memory of both: what is appended to one must not reach the other."""
    device = implementation.device
    key, value = _rows(3 if batch_idx is None else ROWS, 2, 16, dtype, device)
    caches = side_by_side(*_caches(2, 16, 16, dtype, device))
    expected = _caches(2, 16, 16, dtype, device)
    index = [[7, 1, 2], [15, 0, 3], *([] if batch_idx is None else [batch_idx])]
    places = [torch.tensor(one, dtype=torch.int32, device=device) for one in index]
    reference_append(*expected, key, value, *places)
    kernels.kv_append(*caches, key, value, *places)
    for cache, wanted in zip(caches, expected, strict=True):
        assert same_bits(cache, wanted)


@pytest.mark.parametrize(("heads", "dim", "block"), SHAPES)
@pytest.mark.parametrize("position", [0, 1, 7])
def test_full_batch_writes_one_common_position(
    implementation: Any, dtype: torch.dtype, heads: int, dim: int, block: int, position: int
) -> None:
    blocks = torch.tensor([4, 0, 8, 2, 6], dtype=torch.int32)
    _assert_appended(implementation, heads, dim, block, dtype, block_idx=blocks, pos=position)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_full_batch_takes_its_position_from_a_tensor(
    implementation: Any, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    blocks = torch.tensor([4, 0, 8, 2, 6], dtype=torch.int32)
    position = torch.full(shape, 5, dtype=torch.int32)
    _assert_appended(implementation, 2, 16, 16, dtype, block_idx=blocks, pos=position)


@pytest.mark.parametrize(("heads", "dim", "block"), SHAPES)
def test_identity_writes_each_row_at_its_position(
    implementation: Any, dtype: torch.dtype, heads: int, dim: int, block: int
) -> None:
    blocks = torch.tensor([8, 3, 3, 0, 5], dtype=torch.int32)
    positions = torch.tensor([0, 1, block - 1, block // 2, 2], dtype=torch.int32)
    _assert_appended(implementation, heads, dim, block, dtype, block_idx=blocks, pos=positions)


@pytest.mark.parametrize(("heads", "dim", "block"), SHAPES)
def test_generic_writes_the_named_rows(
    implementation: Any, dtype: torch.dtype, heads: int, dim: int, block: int
) -> None:
    _assert_appended(
        implementation,
        heads,
        dim,
        block,
        dtype,
        block_idx=torch.tensor([7, 1, 2], dtype=torch.int32),
        pos=torch.tensor([block - 1, 0, 3], dtype=torch.int32),
        batch_idx=torch.tensor([4, 0, 4], dtype=torch.int32),
    )


def test_one_named_row(implementation: Any, dtype: torch.dtype) -> None:
    one = {"block_idx": 7, "pos": 3, "batch_idx": 2}
    index = {name: torch.tensor([value], dtype=torch.int32) for name, value in one.items()}
    _assert_appended(implementation, 2, 16, 16, dtype, **index)


@pytest.mark.parametrize("batch_idx", [None, [0, 2**30, 3, -9, 4]], ids=["identity", "generic"])
def test_a_negative_block_skips_its_row(
    implementation: Any, dtype: torch.dtype, batch_idx: list[int] | None
) -> None:
    index: dict[str, Any] = {
        "block_idx": torch.tensor([3, -1, 5, -7, 0], dtype=torch.int32),
        # Of a skipped row neither the position nor the row that it names is looked at.
        "pos": torch.tensor([2, 2**30, 0, -5, 15], dtype=torch.int32),
    }
    if batch_idx is not None:
        index["batch_idx"] = torch.tensor(batch_idx, dtype=torch.int32)
    _assert_appended(implementation, 2, 16, 16, dtype, **index)


def test_a_negative_block_skips_its_row_of_a_full_batch(
    implementation: Any, dtype: torch.dtype
) -> None:
    blocks = torch.tensor([-1, 2, 3, -1, 4], dtype=torch.int32)
    _assert_appended(implementation, 2, 16, 16, dtype, block_idx=blocks, pos=9)


def test_no_rows_write_nothing(implementation: Any, dtype: torch.dtype) -> None:
    caches = _caches(2, 16, 16, dtype, implementation.device)
    none = torch.empty(0, dtype=torch.int32, device=implementation.device)
    rows = torch.empty(0, 2, 16, dtype=dtype, device=implementation.device)
    kernels.kv_append(*caches, rows, rows, none, 3)
    assert all(bool(cache.isnan().all()) for cache in caches)


def test_skipped_rows_may_name_rows_where_there_are_none(
    implementation: Any, dtype: torch.dtype
) -> None:
    caches = _caches(2, 16, 16, dtype, implementation.device)
    skipped = torch.full((3,), -1, dtype=torch.int32, device=implementation.device)
    rows = torch.empty(0, 2, 16, dtype=dtype, device=implementation.device)
    kernels.kv_append(*caches, rows, rows, skipped, skipped, skipped)
    assert all(bool(cache.isnan().all()) for cache in caches)


def test_a_layer_of_a_larger_cache_is_written_in_place(
    implementation: Any, dtype: torch.dtype
) -> None:
    device = implementation.device
    whole = torch.full((3, NUM_BLOCKS, 2, 16, 16), NAN, dtype=dtype, device=device)
    other = whole.clone()
    key, value = _rows(2, 2, 16, dtype, device)
    blocks = torch.tensor([8, 1], dtype=torch.int32, device=device)
    positions = torch.tensor([3, 0], dtype=torch.int32, device=device)
    kernels.kv_append(whole[1], other[1], key, value, blocks, positions)
    assert same_bits(whole[1, 8, :, 3], key[0])
    assert same_bits(other[1, 1, :, 0], value[1])
    assert int((~whole.isnan()).sum()) == key.numel()


@pytest.mark.parametrize("batch_idx", [None, [0, 2**30, 4]], ids=["identity", "generic"])
def test_nothing_is_read_or_written_beside_the_tensors(
    triton_device: torch.device, monkeypatch: pytest.MonkeyPatch, batch_idx: list[int] | None
) -> None:
    """A skipped row has neither a slot nor, where it is named, a row."""
    if triton_device.type == "cuda":
        pytest.skip("`nox -s memcheck` watches accesses on the GPU")
    blocks = torch.tensor([3, -1, NUM_BLOCKS - 1], dtype=torch.int32)
    positions = torch.tensor([0, 2**30, 7], dtype=torch.int32)
    named = None if batch_idx is None else torch.tensor(batch_idx, dtype=torch.int32)
    rows = _rows(ROWS if batch_idx else 3, 3, 24, torch.float32, triton_device)
    with within_bounds(monkeypatch):
        caches = _caches(3, 24, 8, torch.float32, triton_device)
        kernels.kv_append(*caches, *rows, blocks, positions, named)


@pytest.mark.parametrize(
    ("kind", "is_common", "is_named"),
    [
        ("int", True, False),
        ("one element", True, False),
        ("each row", False, False),
        ("named rows", False, True),
    ],
)
def test_the_narrowest_kernel_is_chosen(
    triton_device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    is_common: bool,
    is_named: bool,
) -> None:
    from kernels.attention import append

    launched = []

    class Recorder:
        """Stands in for the kernel and remembers how it was launched."""

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def launch(*arguments: Any, **constants: Any) -> None:
                launched.append((constants["COMMON"], arguments[6] is not None))

            return launch

    monkeypatch.setattr(append, "append_rows", Recorder())
    positions = torch.tensor([1, 2], dtype=torch.int32, device=triton_device)
    rows = torch.tensor([1, 0], dtype=torch.int32, device=triton_device)
    pos: Any = {"int": 3, "one element": positions[:1]}.get(kind, positions)
    key, value = _rows(2, 2, 16, torch.float32, triton_device)
    kernels.kv_append(
        *_caches(2, 16, 16, torch.float32, triton_device),
        key,
        value,
        torch.tensor([0, 1], dtype=torch.int32, device=triton_device),
        pos,
        rows if kind == "named rows" else None,
    )
    assert launched == [(is_common, is_named)]


@pytest.mark.xdist_group("most-memory")
def test_offsets_beyond_32_bits(implementation: Any) -> None:
    """The last block of a cache of more than 2**31 elements; only what is written is touched."""
    num_blocks, heads, block, dim = 43_700, 12, 64, 64
    device = implementation.device
    caches = [
        torch.empty(num_blocks, heads, block, dim, dtype=torch.float16, device=device)
        for _ in range(2)
    ]
    key, value = _rows(1, heads, dim, torch.float16, device)
    last = torch.tensor([num_blocks - 1], dtype=torch.int32, device=device)
    position = torch.tensor([block - 1], dtype=torch.int32, device=device)
    kernels.kv_append(*caches, key, value, last, position)
    assert same_bits(caches[0][-1, :, -1], key[0])
    assert same_bits(caches[1][-1, :, -1], value[0])

    # The same slot as a context of one token: its value comes back, with pages as large as a tile
    # and with smaller ones, whose blocks are looked up token by token.
    for size in (block, block // 2):
        pages = [cache.view(-1, heads, size, dim) for cache in caches]
        pages[0][-1, :, 0] = key[0]
        pages[1][-1, :, 0] = value[0]
        one = torch.ones(1, dtype=torch.int32, device=device)
        starts = torch.tensor([0, 1], dtype=torch.int32, device=device)
        table = torch.tensor([[pages[0].shape[0] - 1]], dtype=torch.int32, device=device)
        paged = (key, *pages, table, one)
        assert same_bits(kernels.paged_attention_decode(*paged), value)
        assert same_bits(kernels.paged_attention_prefill(*paged, starts), value)
