"""The KV side of every rung against a model that stores the tokens themselves.

Keys and values are numbers that name their token and layer. Whatever is shared, copied, freed or
handed out again, every sequence must read back its own tokens, through its blocks and through the
tables of a step; and the bookkeeping must be sound after every move.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ladder_faults import BROKEN, parts_of

from asv_bench.studies.ladder.block_managers import BatchSlots, Slot
from asv_bench.studies.ladder.block_tables import LadderSequence
from asv_bench.studies.ladder.host_path import CacheShape, HostPath, RungStep
from asv_bench.studies.ladder.integrity import check_blocks
from engine import KVBlockManager
from engine.errors import IntegrityError
from engine.kv.memory import KVCache
from engine.transport.staging import StagingBuffers

LAYERS = 2
MAX_BATCH = 5
CPU = torch.device("cpu")


class LadderPath(HostPath):
    """A rung's own host path, and what the tests ask of any."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Layers hand out their blocks in different orders, so that no table serves two of them.
        self.blocks._free[1].reverse()

    def num_free(self) -> int:
        return min(self.blocks.num_free(layer) for layer in range(LAYERS))

    def check(self, holders: list[LadderSequence]) -> None:
        check_blocks(self.blocks, holders)

    def holders_of(self, layer: int, block: int) -> int:
        return self.blocks.refcounts[layer * self.shape.max_blocks + block]

    def blocks_of(self, sequence: LadderSequence, layer: int) -> list[int]:
        first = layer * self.shape.max_blocks
        return [block_id - first for block_id in sequence.block_ids[layer]]


class SharedTablePath:
    """Today's bookkeeping behind the same face: one block table for all layers."""

    def __init__(self, shape: CacheShape, *_: Any) -> None:
        self.shape = shape
        self.manager = KVBlockManager(shape.max_blocks, shape.block_size)
        self.cache = KVCache(
            LAYERS, shape.max_blocks, 1, shape.block_size, 1, device=CPU, dtype=torch.float32
        )
        self.staging = StagingBuffers(CPU)

    def num_free(self) -> int:
        return self.manager.num_free_blocks

    def check(self, holders: list[LadderSequence]) -> None:
        self.manager.check_integrity(
            [one.block_ids[0] for one in holders], [one.length for one in holders]
        )

    def holders_of(self, layer: int, block: int) -> int:
        return int(self.manager.refcounts[block])

    def blocks_of(self, sequence: LadderSequence, layer: int) -> list[int]:
        return sequence.block_ids[0]

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.cache.keys[layer], self.cache.values[layer]

    def new_sequence(self) -> LadderSequence:
        return LadderSequence([[]])

    def share(self, sequence: LadderSequence) -> LadderSequence:
        self.manager.incref_blocks(sequence.block_ids[0])
        return LadderSequence([list(sequence.block_ids[0])], sequence.length)

    def release(self, sequence: LadderSequence) -> None:
        self.manager.free_blocks(sequence.block_ids[0])
        sequence.block_ids = [[]]
        sequence.length = 0

    def extend(self, sequence: LadderSequence, count: int) -> list[list[Slot]]:
        first, size = sequence.length, self.shape.block_size
        self.cache.copy_blocks(self.manager.extend(sequence.block_ids[0], count), self.staging)
        sequence.length += count
        positions = range(first, sequence.length)
        slots = [Slot(sequence.block_ids[0][p // size], p % size) for p in positions]
        return [slots] * LAYERS

    def begin_step(self, sequences: list[LadderSequence]) -> RungStep:
        appended = self.manager.append_token_batch([one.block_ids[0] for one in sequences])
        self.cache.copy_blocks(appended.copies, self.staging)
        table = torch.zeros((len(sequences), self.shape.width), dtype=torch.int32)
        for row, sequence in enumerate(sequences):
            sequence.length += 1
            table[row, : len(sequence.block_ids[0])] = torch.tensor(sequence.block_ids[0])
        pairs = zip(appended.block_index.tolist(), appended.position.tolist(), strict=True)
        return RungStep([[Slot(*pair) for pair in pairs]] * LAYERS, [table] * LAYERS)

    def append(self, step: RungStep, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        for row, slot in enumerate(step.slots[layer]):
            self.cache.keys[layer][slot.block, :, slot.position] = key[row]
            self.cache.values[layer][slot.block, :, slot.position] = value[row]


class PathModel(RuleBasedStateMachine):
    """Sequences of numbered tokens on a host path that a subclass names."""

    path_class: type = LadderPath
    parts: Any = None

    @initialize(
        max_blocks=st.sampled_from([6, 9, 16, 24]), block_size=st.sampled_from([1, 2, 3, 4])
    )
    def start(self, max_blocks: int, block_size: int) -> None:
        shape = CacheShape(LAYERS, max_blocks, 1, block_size, 1, MAX_BATCH, max_blocks)
        self.size = block_size
        self.path = self.path_class(shape, self.parts, CPU, torch.float32)
        self.sequences: list[LadderSequence] = []
        self.tokens: list[list[int]] = []
        self.next_token = 1

    def new_tokens(self, count: int) -> list[int]:
        first, self.next_token = self.next_token, self.next_token + count
        return list(range(first, first + count))

    @staticmethod
    def key_of(token: int, layer: int) -> float:
        return LAYERS * token + layer

    def add(self, sequence: LadderSequence, tokens: list[int]) -> None:
        self.sequences.append(sequence)
        self.tokens.append(tokens)

    @precondition(lambda self: len(self.sequences) < MAX_BATCH)
    @rule(count=st.integers(1, 9))
    def begin(self, count: int) -> None:
        if self.path.num_free() * self.size < count:
            return
        self.add(self.path.new_sequence(), [])
        self.prefill(len(self.sequences) - 1, count)

    @precondition(lambda self: self.sequences and len(self.sequences) < MAX_BATCH)
    @rule(pick=st.integers(0, MAX_BATCH), count=st.integers(0, 5))
    def begin_from_another(self, pick: int, count: int) -> None:
        source = pick % len(self.sequences)
        # One block for the copy of a shared last one.
        if (self.path.num_free() - 1) * self.size < count:
            return
        self.add(self.path.share(self.sequences[source]), list(self.tokens[source]))
        if count:
            self.prefill(len(self.sequences) - 1, count)

    def prefill(self, index: int, count: int) -> None:
        tokens = self.new_tokens(count)
        slots = self.path.extend(self.sequences[index], count)
        for layer in range(LAYERS):
            keys, values = self.path.layer(layer)
            assert len(slots[layer]) == count
            for slot, token in zip(slots[layer], tokens, strict=True):
                keys[slot.block, 0, slot.position] = self.key_of(token, layer)
                values[slot.block, 0, slot.position] = -self.key_of(token, layer)
        self.tokens[index] += tokens

    @precondition(lambda self: self.sequences and self.path.num_free() >= len(self.sequences))
    @rule(order=st.permutations(range(MAX_BATCH)), count=st.integers(1, MAX_BATCH))
    def decode(self, order: list[int], count: int) -> None:
        chosen = [index for index in order if index < len(self.sequences)][:count]
        step = self.path.begin_step([self.sequences[index] for index in chosen])
        tokens = self.new_tokens(len(chosen))
        for index, token in zip(chosen, tokens, strict=True):
            self.tokens[index].append(token)
        for layer in range(LAYERS):
            slots = slots_in_order(step.slots[layer])
            assert len(set(slots)) == len(chosen), "two rows write one slot"
            for slot in slots:
                assert self.path.holders_of(layer, slot.block) == 1, "a shared block is written"
            key = torch.tensor([[[self.key_of(token, layer)]] for token in tokens]).float()
            self.path.append(step, layer, key, -key)
        for layer in range(LAYERS):
            for row, index in enumerate(chosen):
                self.check_content(layer, step.tables[layer][row].tolist(), self.tokens[index])

    @precondition(lambda self: self.sequences)
    @rule(pick=st.integers(0, MAX_BATCH))
    def end(self, pick: int) -> None:
        index = pick % len(self.sequences)
        self.path.release(self.sequences.pop(index))
        del self.tokens[index]

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "path"):
            return
        self.path.check(self.sequences)
        for sequence, tokens in zip(self.sequences, self.tokens, strict=True):
            assert sequence.length == len(tokens)
            for layer in range(LAYERS):
                self.check_content(layer, self.path.blocks_of(sequence, layer), tokens)

    def check_content(self, layer: int, blocks: list[int], tokens: list[int]) -> None:
        places = np.arange(len(tokens))
        rows, columns = np.asarray(blocks)[places // self.size], places % self.size
        expected = [self.key_of(token, layer) for token in tokens]
        keys, values = self.path.layer(layer)
        assert keys[rows, 0, columns, 0].tolist() == expected
        assert values[rows, 0, columns, 0].tolist() == [-entry for entry in expected]


def slots_in_order(slots: Any) -> list[Slot]:
    if isinstance(slots, BatchSlots):
        fast = zip(slots.blocks, slots.positions, strict=True)
        by_row = dict(zip(slots.rows, (Slot(*pair) for pair in fast), strict=True))
        by_row.update(slots.slow)
        assert sorted(by_row) == list(range(len(by_row)))
        return [by_row[row] for row in range(len(by_row))]
    return list(slots)


QUICK = settings(
    max_examples=40,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)

FIND = settings(QUICK, max_examples=300, phases=(Phase.generate,))


def model_of(rung_parts: Any, path: type = LadderPath) -> type[PathModel]:
    return type("Model", (PathModel,), {"parts": rung_parts, "path_class": path})


@pytest.mark.parametrize("number", range(7))
def test_metadata_and_contents_are_sound_whatever_happens(number):
    run_state_machine_as_test(model_of(parts_of(number)), settings=QUICK)


def test_the_engines_own_metadata_passes_the_same_test():
    run_state_machine_as_test(model_of(None, SharedTablePath), settings=QUICK)


def test_tokens_without_a_block_and_blocks_without_a_token_are_found():
    shape = CacheShape(LAYERS, 4, 1, 2, 1, MAX_BATCH, 4)
    path = LadderPath(shape, parts_of(6), CPU, torch.float32)
    sequence = path.new_sequence()
    path.extend(sequence, 2)
    path.check([sequence])
    with pytest.raises(IntegrityError, match="has 3 tokens, but its blocks of layer 0 hold 0"):
        path.check([sequence, LadderSequence([[], []], length=3)])
    for layer in range(LAYERS):
        sequence.block_ids[layer].append(path.blocks._allocate(layer, 2, 0))
    with pytest.raises(IntegrityError, match="of sequence 0 holds no token"):
        path.check([sequence])


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_rung_does_not_pass(fault):
    model = model_of(BROKEN[fault])
    with pytest.raises((AssertionError, IntegrityError)):
        run_state_machine_as_test(model, settings=FIND)
