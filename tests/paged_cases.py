"""Problems for the paged-cache kernels, with everything that must not be read set to NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from kernels.attention.reference import gather_context

NAN = float("nan")
UNUSED_BLOCK = 2**30


@dataclass(slots=True)
class PagedProblem:
    """Queries over a paged cache whose unused blocks and slots hold NaN.

    `starts` are query_start_loc for a prefill problem; a decode problem has one query a sequence.
    """

    query: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    starts: torch.Tensor

    @property
    def decode_arguments(self) -> tuple[torch.Tensor, ...]:
        return (self.query, self.k_cache, self.v_cache, self.block_tables, self.context_lens)

    @property
    def prefill_arguments(self) -> tuple[torch.Tensor, ...]:
        return (*self.decode_arguments, self.starts)

    def on(self, device: torch.device) -> PagedProblem:
        """The same problem on `device`."""
        return PagedProblem(*(tensor.to(device) for tensor in self.prefill_arguments))

    def side_by_side(self) -> PagedProblem:
        """The same problem with every key's value behind it in memory."""
        keys, values = side_by_side(self.k_cache, self.v_cache)
        return replace(self, k_cache=keys, v_cache=values)

    def alone(self, sequence: int) -> PagedProblem:
        """One sequence of the problem, with a table of its own size."""
        first, last = int(self.starts[sequence]), int(self.starts[sequence + 1])
        columns = max(1, -(-int(self.context_lens[sequence]) // self.k_cache.shape[2]))
        row = slice(sequence, sequence + 1)
        return PagedProblem(
            query=self.query[first:last].clone(),
            k_cache=self.k_cache,
            v_cache=self.v_cache,
            block_tables=self.block_tables[row, :columns].clone(),
            context_lens=self.context_lens[row].clone(),
            starts=torch.tensor([0, last - first], dtype=torch.int32, device=self.starts.device),
        )


def paged_problem(
    contexts: Sequence[int],
    *,
    chunks: Sequence[int] | None = None,
    heads: tuple[int, int] = (2, 2),
    head_dim: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    integers: bool = False,
    sign: int = 0,
) -> PagedProblem:
    """A problem with permuted blocks, poisoned memory and a table of the exact size.

    `heads` are query heads and KV heads. `chunks` are the queries of each sequence, one by
    default. With `integers` queries and keys are whole numbers, so that large scores are exact;
    with a `sign` every score has it.
    """
    generator = torch.Generator().manual_seed(seed)
    query_heads, kv_heads = heads
    columns = [-(-length // block_size) for length in contexts]
    num_blocks = sum(columns) + 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    shape = (num_blocks, kv_heads, block_size, head_dim)
    k_cache = torch.full(shape, NAN, dtype=dtype)
    v_cache = torch.full(shape, NAN, dtype=dtype)
    tables = torch.full((len(contexts), max(1, *columns)), UNUSED_BLOCK, dtype=torch.int32)

    def vectors(*size: int) -> torch.Tensor:
        if integers:
            whole = torch.randint(-8, 9, size, generator=generator).float()
            return whole.abs().add_(1) if sign else whole
        return torch.randn(*size, generator=generator)

    for b, length in enumerate(contexts):
        for column in range(columns[b]):
            block = order.pop()
            used = min(block_size, length - column * block_size)
            tables[b, column] = block
            k_cache[block, :, :used] = (vectors(kv_heads, used, head_dim) * (sign or 1)).to(dtype)
            v_cache[block, :, :used] = torch.randn(
                kv_heads, used, head_dim, generator=generator
            ).to(dtype)
    counts = [1] * len(contexts) if chunks is None else list(chunks)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    query = vectors(int(starts[-1]), query_heads, head_dim).to(dtype)
    lengths = torch.tensor(list(contexts), dtype=torch.int32)
    return PagedProblem(query, k_cache, v_cache, tables, lengths, starts)


def side_by_side(k_cache: torch.Tensor, v_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of two caches in one run of memory, each key with its value behind it."""
    both = torch.stack([k_cache, v_cache], dim=-2)
    return both[..., 0, :], both[..., 1, :]


def hide_before(problem: PagedProblem, window: int) -> None:
    """Set what no query of a `window` sees to NaN, in place."""
    block_size = problem.k_cache.shape[2]
    counts = problem.starts.diff().tolist()
    for table, length, count in zip(
        problem.block_tables, problem.context_lens.tolist(), counts, strict=True
    ):
        for position in range(max(0, length - count + 1 - window)):
            place = int(table[position // block_size]), slice(None), position % block_size
            problem.k_cache[place] = problem.v_cache[place] = NAN


def torch_attention(problem: PagedProblem, window: int | None = None) -> torch.Tensor:
    """What torch computes in the problem's own dtype: the yardstick for half precision."""
    out = torch.zeros_like(problem.query)
    for b in range(problem.context_lens.shape[0]):
        first, last = int(problem.starts[b]), int(problem.starts[b + 1])
        length = int(problem.context_lens[b])
        if first == last or length == 0:
            continue
        table = problem.block_tables[b]
        keys = gather_context(problem.k_cache, table, length).to(out.dtype)
        values = gather_context(problem.v_cache, table, length).to(out.dtype)
        mask = torch.ones(last - first, length, dtype=torch.bool, device=out.device)
        mask.tril_(length - (last - first))
        if window is not None:
            mask.triu_(length - (last - first) + 1 - window)
            values = values.masked_fill(~mask.any(0)[None, :, None], 0.0)
            keys = keys.masked_fill(~mask.any(0)[None, :, None], 0.0)
        group = out.shape[1] // keys.shape[0]
        attended = F.scaled_dot_product_attention(
            problem.query[first:last].transpose(0, 1),
            keys.repeat_interleave(group, dim=0),
            values.repeat_interleave(group, dim=0),
            attn_mask=mask,
        )
        out[first:last] = attended.transpose(0, 1)
    return out


def assert_close_to_reference(
    result: torch.Tensor,
    reference: torch.Tensor,
    problem: PagedProblem,
    window: int | None = None,
) -> None:
    """float32 within 1e-5; half precision within twice torch's own error, also by norm."""
    assert result.dtype == problem.query.dtype
    assert torch.isfinite(result).all()
    error = (result.double() - reference).abs()
    if result.dtype == torch.float32:
        assert float(error.max()) <= 1e-5
        return
    own_error = (torch_attention(problem, window).double() - reference).abs()
    # One unit in the last place of a value near 1: an exactly rounded result may differ by half.
    unit = torch.finfo(result.dtype).eps
    assert float(error.max()) <= 2 * float(own_error.max()) + unit
    assert float(error.norm()) <= 2 * float(own_error.norm()) + unit * float(reference.norm())


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits, NaN included."""
    as_int = {1: torch.int8, 2: torch.int16, 4: torch.int32}[left.element_size()]
    return left.shape == right.shape and torch.equal(
        left.contiguous().view(as_int), right.contiguous().view(as_int)
    )
