"""Problems for attention with the append fused in: a cache before and after the new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from paged_cases import NAN, UNUSED_BLOCK, PagedProblem, paged_problem, side_by_side

Six = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(slots=True)
class FusedProblem:
    """New tokens' queries, keys and values, and the cache they go to.

    `after` is the same problem once appended, which the references and torch's yardstick take.
    """

    qkv: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    positions: torch.Tensor
    is_running: torch.Tensor
    after: PagedProblem

    @property
    def arguments(self) -> Six:
        return (
            self.qkv,
            self.k_cache,
            self.v_cache,
            self.block_tables,
            self.positions,
            self.is_running,
        )

    @property
    def num_columns(self) -> int:
        """Columns of the output."""
        return self.after.query.shape[1] * self.after.query.shape[2]

    @property
    def scale(self) -> float:
        return float(self.after.query.shape[2]) ** -0.5

    def on(self, device: torch.device) -> FusedProblem:
        """The same problem on `device`, its tensors copied."""
        moved = (tensor.clone().to(device) for tensor in self.arguments)
        return FusedProblem(*moved, after=self.after)

    def side_by_side(self) -> FusedProblem:
        """The same problem with every key's value behind it in memory, both copied."""
        keys, values = side_by_side(self.k_cache, self.v_cache)
        return replace(self, k_cache=keys, v_cache=values)

    def alone(self, row: int) -> FusedProblem:
        """One row of the problem, with a table of its own size."""
        one = slice(row, row + 1)
        columns = int(self.positions[row]) // self.k_cache.shape[2] + 1
        return replace(
            self,
            qkv=self.qkv[one].clone(),
            k_cache=self.k_cache.clone(),
            v_cache=self.v_cache.clone(),
            block_tables=self.block_tables[one, :columns].clone(),
            positions=self.positions[one].clone(),
            is_running=self.is_running[one].clone(),
        )


def fused_problem(
    cached: Sequence[int | None],
    *,
    heads: tuple[int, int] = (2, 2),
    head_dim: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    integers: bool = False,
    sign: int = 0,
) -> FusedProblem:
    """Rows with that many tokens in the cache already; None is a row that does not run.

    Such a row's query, key and value are NaN and its table entries name no block.
    """
    after = paged_problem(
        [0 if count is None else count + 1 for count in cached],
        heads=heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
        seed=seed,
        integers=integers,
        sign=sign,
    )
    query_heads, kv_heads = heads
    k_cache, v_cache = after.k_cache.clone(), after.v_cache.clone()
    qkv = torch.full((len(cached), query_heads + 2 * kv_heads, head_dim), NAN, dtype=dtype)
    for row, count in enumerate(cached):
        if count is None:
            continue
        block, slot = int(after.block_tables[row, count // block_size]), count % block_size
        qkv[row, :query_heads] = after.query[row]
        qkv[row, query_heads:-kv_heads] = after.k_cache[block, :, slot]
        qkv[row, -kv_heads:] = after.v_cache[block, :, slot]
        k_cache[block, :, slot] = NAN
        v_cache[block, :, slot] = NAN
    return FusedProblem(
        qkv=qkv.flatten(1),
        k_cache=k_cache,
        v_cache=v_cache,
        block_tables=after.block_tables,
        positions=torch.tensor(
            [UNUSED_BLOCK if count is None else count for count in cached], dtype=torch.int32
        ),
        is_running=torch.tensor([count is not None for count in cached]),
        after=after,
    )
