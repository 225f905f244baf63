"""Reuse of KV blocks between sequences that begin with the same tokens.

The cache is a tree. A node is one block; its key is the node above it and the tokens of the block
themselves, so what matches is equal and no hash can collide. Only nodes of full blocks have
children; a block known in part is a leaf. Of the children of one node none begins with all of
another: of two such blocks the longer serves every match of the shorter.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from engine.kv.blocks import BlockCopy, KVBlockManager
from engine.kv.integrity import IndexArray, Int32Array

_ROOT = -1
_TOKEN_BYTES = 4


class PrefixMatch(NamedTuple):
    """The cached beginning of a prompt.

    `block_ids` hold its first `num_tokens` tokens once the device has made `copies`. The caller
    holds a reference to each block. Only the last may have room, and may be shared.
    """

    block_ids: list[int]
    num_tokens: int
    copies: list[BlockCopy]


class _Node:
    """One cached block. `keys` are those of `children`, sorted, for the search by prefix."""

    __slots__ = ("block_id", "children", "key", "keys", "parent")

    def __init__(self, parent: _Node | None, key: bytes, block_id: int) -> None:
        self.parent = parent
        self.key = key
        self.block_id = block_id
        self.children: dict[bytes, _Node] = {}
        self.keys: list[bytes] = []

    def add(self, child: _Node) -> None:
        self.children[child.key] = child
        insort(self.keys, child.key)

    def remove(self, child: _Node) -> None:
        del self.children[child.key]
        del self.keys[bisect_left(self.keys, child.key)]

    def child_beginning_with(self, key: bytes) -> _Node | None:
        # What begins with a key sorts at it or right behind it.
        index = bisect_left(self.keys, key)
        if index < len(self.keys) and self.keys[index].startswith(key):
            return self.children[self.keys[index]]
        return None

    def child_that_begins(self, key: bytes) -> _Node | None:
        # Whatever sorts between a key and its beginning has that beginning too, and no child has
        # another's: so it can only be the neighbour before.
        index = bisect_left(self.keys, key)
        if index > 0 and key.startswith(self.keys[index - 1]):
            return self.children[self.keys[index - 1]]
        return None

    def closest_child(self, tokens: Int32Array) -> tuple[_Node | None, int]:
        """Find the child with the longest common beginning, and its length in tokens."""
        # Of a sorted list, one of the two neighbours has it.
        wanted = tokens.tobytes()
        index = bisect_left(self.keys, wanted)
        closest: _Node | None = None
        longest = 0
        for key in self.keys[max(0, index - 1) : index + 1]:
            length = _common_length(wanted, key)
            if length > longest:
                closest, longest = self.children[key], length
        return closest, longest


class PrefixCache:
    """Keeps the blocks of sequences, and lends them to sequences that begin alike.

    The cache holds references as a sequence does; `held_blocks` names them. A block that a
    sequence holds too is never evicted.

    Parameters
    ----------
    blocks : KVBlockManager
        The pool whose blocks are kept.

    Attributes
    ----------
    num_insertions
        Counts up whenever there is more to match.
    """

    def __init__(self, blocks: KVBlockManager) -> None:
        self._blocks = blocks
        self.num_insertions = 0
        self._clock = 0
        self._forget_all()

    @property
    def num_evictable(self) -> int:
        """Blocks that `evict` can free now."""
        return len(self._evictable_blocks())

    def held_blocks(self) -> list[int]:
        """List the blocks to which the cache holds a reference, each once."""
        return list(self._nodes)

    def match(self, token_ids: ArrayLike) -> PrefixMatch:
        """Find the longest cached beginning of a prompt and take references to its blocks.

        At least one token is left to compute. Whole blocks are shared. A block that matches in
        part is shared if it holds nothing else, to be copied when it is appended to; otherwise
        its matching tokens are forked into a new block, unless none is free: then only what is
        shared is returned.

        Parameters
        ----------
        token_ids : int32 array [T]
            The prompt.

        Returns
        -------
        PrefixMatch
            Its copies must be made before the device writes anything of the same step.
        """
        tokens = _checked_tokens(token_ids)[:-1]
        size = self._blocks.block_size
        path = self._cached_path(tokens)
        shared = [node.block_id for node in path]
        num_tokens = len(path) * size
        copies = []
        tail, num_in_tail = self._node_at(path).closest_child(tokens[num_tokens:][:size])
        if tail is not None and self._blocks.fill_levels[tail.block_id] == num_in_tail:
            shared.append(tail.block_id)
            path.append(tail)
            num_tokens += num_in_tail
        elif tail is not None and self._blocks.num_free_blocks:
            copies.append(self._blocks.fork_block(tail.block_id, num_in_tail))
            path.append(tail)
            num_tokens += num_in_tail
        if path:
            # The cache holds them itself.
            self._blocks.incref_held_blocks(shared)
            self._touch(path)
        return PrefixMatch(shared + [copy.destination for copy in copies], num_tokens, copies)

    def insert(self, token_ids: ArrayLike, block_ids: Sequence[int]) -> None:
        """Keep the blocks of a sequence, those of which the cache has no equal yet.

        Call it when the device has been told to write these tokens, not before: a match may copy
        them from then on. A sequence that goes on should give whole blocks only, since a partly
        filled block that is kept must be copied at its next append.

        Parameters
        ----------
        token_ids : int32 array [T]
            The tokens whose keys and values the blocks hold, from the first one.
        block_ids : sequence of int
            The blocks of the sequence, which it holds; those beyond T tokens are ignored.

        Raises
        ------
        ValueError
            If the blocks do not hold that many tokens, or are kept for other tokens already;
            nothing has changed then.
        """
        tokens = _checked_tokens(token_ids)
        size = self._blocks.block_size
        ids = self._checked_blocks(len(tokens), block_ids)
        path = self._cached_path(tokens)
        parent = self._node_at(path)
        content, key_bytes = tokens.tobytes(), size * tokens.itemsize
        keys = [
            content[start : start + key_bytes]
            for start in range(len(path) * key_bytes, len(content), key_bytes)
        ]
        covering = parent.child_beginning_with(keys[0]) if keys else None
        if covering is not None:
            path.append(covering)
            keys = []
        new_ids = ids[len(ids) - len(keys) :]
        outgrown = parent.child_that_begins(keys[0]) if keys else None
        for block in new_ids:
            if block in self._nodes and self._nodes[block] is not outgrown:
                raise ValueError(f"Block {block} is already cached, for other tokens.")
        if new_ids:
            self.num_insertions += 1
            # Checked above: they have tokens, which free blocks have not.
            self._blocks.incref_held_blocks(new_ids)
            self._parent_blocks[new_ids] = [parent.block_id, *new_ids[:-1]]
        if outgrown is not None:
            self._forget(outgrown)
            self._blocks.free_blocks([outgrown.block_id])
        for key, block in zip(keys, new_ids, strict=True):
            node = _Node(parent, key, block)
            parent.add(node)
            self._nodes[block] = node
            path.append(node)
            parent = node
        self._touch(path)

    def evict(self, count: int) -> int:
        """Free blocks that only the cache holds, the least recently used first.

        Parameters
        ----------
        count : int
            Blocks to free, if there are as many.

        Returns
        -------
        int
            Blocks freed, `count` at most.
        """
        if count < 0:
            raise ValueError(f"count must be an integer of 0 or more, not {count!r}.")
        evicted = self._evictable_blocks()
        if count < len(evicted):
            # A parent is always used after its children, so the oldest never include a parent
            # without its children.
            evicted = evicted[np.argpartition(self._last_used[evicted], count)[:count]]
        for block in evicted.tolist():
            self._forget(self._nodes[block])
        return self._blocks.free_blocks(evicted)

    def clear(self) -> None:
        """Give back all references."""
        held = self.held_blocks()
        self._forget_all()
        self._blocks.free_blocks(held)

    def _forget_all(self) -> None:
        self._root = _Node(None, b"", _ROOT)
        self._nodes: dict[int, _Node] = {}
        self._parent_blocks = np.full(self._blocks.num_blocks, _ROOT, dtype=np.intp)
        self._last_used = np.zeros(self._blocks.num_blocks, dtype=np.int64)

    def _forget(self, node: _Node) -> None:
        if node.parent is not None:
            node.parent.remove(node)
        del self._nodes[node.block_id]
        self._last_used[node.block_id] = 0

    def _node_at(self, path: list[_Node]) -> _Node:
        return path[-1] if path else self._root

    def _cached_path(self, tokens: Int32Array) -> list[_Node]:
        """Find the nodes of the whole blocks of `tokens`, down to the first that is missing."""
        size = self._blocks.block_size
        path: list[_Node] = []
        node = self._root
        for start in range(0, len(tokens) - size + 1, size):
            child = node.children.get(tokens[start : start + size].tobytes())
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _touch(self, path: list[_Node]) -> None:
        """Mark a path from the root as just used, each parent later than its child."""
        self._clock += len(path)
        ids = [node.block_id for node in path]
        self._last_used[ids] = range(self._clock, self._clock - len(path), -1)

    def _evictable_blocks(self) -> IndexArray:
        cached = np.flatnonzero(self._last_used)
        refcounts = self._blocks.refcounts
        is_held = refcounts[cached] > 1
        idle = cached[~is_held]
        # A held block keeps those above it. A sequence usually holds them itself, but not if it
        # computed its own before the cache kept another's equal.
        parents = self._parent_blocks[cached[is_held]]
        parents = parents[parents != _ROOT]
        parents = parents[refcounts[parents] == 1]
        if not parents.size:
            return idle
        kept: set[int] = set()
        for block in parents.tolist():
            while block != _ROOT and block not in kept:
                kept.add(block)
                block = int(self._parent_blocks[block])
        return idle[~np.isin(idle, list(kept))]

    def _checked_blocks(self, num_tokens: int, block_ids: Sequence[int]) -> list[int]:
        size = self._blocks.block_size
        num_needed = -(-num_tokens // size)
        ids = list(map(int, block_ids[:num_needed]))
        if len(ids) < num_needed:
            raise ValueError(
                f"{num_tokens} tokens do not fit into {len(ids)} blocks of {size}: give all "
                "blocks of the sequence."
            )
        if ids and not 0 <= min(ids) <= max(ids) < self._blocks.num_blocks:
            raise ValueError(f"Block ids run from 0 to {self._blocks.num_blocks - 1}, not {ids}.")
        if len(set(ids)) < len(ids):
            raise ValueError(f"A sequence holds each of its blocks once, not as in {ids}.")
        left = num_tokens
        for block, written in zip(ids, self._blocks.fill_levels[ids].tolist(), strict=True):
            if written < min(left, size):
                raise ValueError(
                    f"Block {block} holds {written} tokens, but {min(left, size)} are to be "
                    "cached: give only tokens that were appended."
                )
            left -= size
        return ids


def _checked_tokens(token_ids: ArrayLike) -> Int32Array:
    given = np.asarray(token_ids)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(
            f"Token ids must be integers in one dimension, not {given.dtype} of shape "
            f"{given.shape}."
        )
    tokens = given.astype(np.int32, copy=False)
    if tokens is not given and np.any(tokens != given):
        raise ValueError("Token ids must be int32: a larger one would be taken for another token.")
    return tokens


def _common_length(left: bytes, right: bytes) -> int:
    """Tokens with which both keys begin."""
    if left[:_TOKEN_BYTES] != right[:_TOKEN_BYTES]:
        return 0
    length = min(len(left), len(right)) // _TOKEN_BYTES
    tokens = (np.frombuffer(key, np.int32, length) for key in (left, right))
    differing = np.flatnonzero(np.not_equal(*tokens))
    return int(differing[0]) if differing.size else length
