"""Prompts whose blocks are kept, so that longer prompts that begin alike share them."""

from __future__ import annotations

from collections.abc import Sequence

from asv_bench.studies.ladder.block_tables import LadderSequence
from asv_bench.studies.ladder.host_path import HostPath


class Prefixes:
    """Whole prompts by their tokens; each entry holds its blocks by reference.

    A prompt shares the longest entry that it goes beyond. The entry's last block may be partly
    filled: whoever appends to it first gets a copy.
    """

    def __init__(self, path: HostPath) -> None:
        self._path = path
        self._entries: dict[tuple[int, ...], LadderSequence] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks of a layer that entries hold, counted once for each entry."""
        return sum(len(entry.block_ids[0]) for entry in self._entries.values())

    def attach(self, prompt: Sequence[int]) -> LadderSequence:
        """A sequence that holds what is known of the prompt, or nothing."""
        tokens = tuple(prompt)
        known = [
            entry
            for entry in self._entries
            if len(entry) < len(tokens) and tokens[: len(entry)] == entry
        ]
        if not known:
            return self._path.new_sequence()
        return self._path.share(self._entries[max(known, key=len)])

    def keep(self, prompt: Sequence[int], sequence: LadderSequence) -> None:
        """Keep the blocks of a prompt that has been computed."""
        if tuple(prompt) not in self._entries:
            self._entries[tuple(prompt)] = self._path.share(sequence)

    def clear(self) -> None:
        """Give all entries' blocks back."""
        for entry in self._entries.values():
            self._path.release(entry)
        self._entries.clear()

    def holders(self) -> list[LadderSequence]:
        """All entries."""
        return list(self._entries.values())
