"""Rows on the device: staged changes arrive whole, once, and only where staged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.requests.params import SamplingParams
from engine.transport.device_rows import KNOWN_TAIL, NO_TOKENS, DecodeState, RowStarts
from engine.transport.token_ring import NUM_SLOTS, TokenRing

CPU = torch.device("cpu")


@pytest.fixture
def state() -> DecodeState:
    return DecodeState(5, 7, CPU)


def _starts(rows: list[dict]) -> RowStarts:
    """Rows as columns."""
    columns = {name: [row[name] for row in rows] for name in RowStarts._fields}
    return RowStarts(**(columns | {"rows": np.array(columns["rows"], np.intp)}))


def _take(state: DecodeState, row: int, **changes) -> None:
    values = {
        "rows": row,
        "positions": 10,
        "remaining": 3,
        "seeds": -(2**62) - 5,
        "params": SamplingParams(temperature=0.7, top_k=4, top_p=0.9),
        "block_ids": [8, 6],
        "known_len": 10,
        "uncomputed": NO_TOKENS,
    }
    state.stage_rows(_starts([values | changes]))


def test_a_staged_row_arrives_field_by_field(state):
    _take(state, 3)
    rows = state.device_rows
    assert not rows.position.any()
    state.flush()
    assert rows.position.tolist() == [0, 0, 0, 10, 0]
    assert rows.remaining.tolist() == [0, 0, 0, 3, 0]
    assert rows.seed.tolist() == [0, 0, 0, -(2**62) - 5, 0]
    assert rows.top_k.tolist() == [0, 0, 0, 4, 0]
    assert rows.top_p.tolist() == pytest.approx([0, 0, 0, 0.9, 0])
    assert rows.temperature.tolist() == pytest.approx([0, 0, 0, 0.7, 0])
    assert rows.block_table[3].tolist() == [8, 6, 0, 0, 0, 0, 0]
    assert not rows.block_table[[0, 1, 2, 4]].any()


def test_a_row_can_be_given_tokens_to_feed(state):
    _take(state, 3, known_len=13, uncomputed=np.array([50, 51, 52], np.int32))
    state.flush()
    rows = state.device_rows
    assert rows.known_len.tolist() == [0, 0, 0, 13, 0]
    assert rows.last_token.tolist() == [0, 0, 0, 50, 0]
    assert rows.known_tail[3].tolist() == [0] * (KNOWN_TAIL - 3) + [50, 51, 52]
    assert not rows.known_tail[[0, 1, 2, 4]].any()


def test_rows_taken_together_are_as_if_taken_one_by_one(state):
    """With tables and known tokens of every length, none among them."""
    starts = [
        {
            "rows": row,
            "positions": 7 * row,
            "remaining": row,
            "seeds": (-1) ** row * (2**40 + row),
            "params": SamplingParams(temperature=row / 8, top_k=row, top_p=1 - row / 8),
            "block_ids": list(range(40 + row, 40 + 2 * row)),
            "known_len": 7 * row + tail,
            "uncomputed": np.arange(100 * row, 100 * row + tail, dtype=np.int32),
        }
        for row, tail in ((4, 1), (0, 0), (3, KNOWN_TAIL), (1, 3))
    ]
    state.stage_rows(_starts(starts))
    state.stage_rows(_starts([]))
    state.flush()
    alone = DecodeState(5, 7, CPU)
    for start in starts:
        alone.stage_rows(_starts([start]))
    alone.flush()
    for name in ("seed", "position", "remaining", "known_len", "top_k", "top_p", "temperature",
                 "last_token", "known_tail", "block_table"):  # fmt: skip
        together = getattr(state.device_rows, name)
        assert torch.equal(together, getattr(alone.device_rows, name)), name
        assert together[2].any() == 0, name
    rows = state.device_rows
    assert rows.known_tail[3].tolist() == list(range(300, 308))
    assert rows.last_token.tolist() == [0, 100, 0, 300, 400]
    assert rows.block_table[4].tolist() == [44, 45, 46, 47, 0, 0, 0]
    assert rows.seed.tolist() == [2**40, -(2**40) - 1, 0, -(2**40) - 3, 2**40 + 4]


def test_blocks_go_to_their_rows_and_columns(state):
    state.stage_blocks(np.array([0, 4]), np.array([2, 6], np.int32), np.array([31, 32], np.int32))
    state.flush()
    expected = torch.zeros(5, 7, dtype=torch.int32)
    expected[0, 2], expected[4, 6] = 31, 32
    assert torch.equal(state.device_rows.block_table, expected)
    assert np.array_equal(state.block_table, expected.numpy())


def test_what_is_not_staged_is_left_to_the_device(state):
    _take(state, 1)
    state.flush()
    rows = state.device_rows
    rows.position[1] += 5
    rows.last_token[1] = 99
    state.stage_blocks(np.array([1]), np.array([2], np.int32), np.array([3], np.int32))
    state.flush()
    assert rows.position[1] == 15
    assert rows.last_token[1] == 99


def test_the_newest_of_two_changes_wins(state):
    _take(state, 2, remaining=9)
    state.stage_stops(np.array([2]))
    state.flush()
    assert state.device_rows.remaining[2] == 0
    _take(state, 2, remaining=4)
    state.flush()
    assert state.device_rows.remaining[2] == 4


def test_nothing_is_copied_when_nothing_changed(state):
    _take(state, 0)
    assert state.flush() > 0
    assert state.flush() == 0


def test_ring_returns_each_rows_token_by_its_position():
    ring = TokenRing(4, CPU)
    rows = np.array([3, 0])
    for step in range(3 * NUM_SLOTS):
        positions = torch.tensor([step, step + 5, 7 * step], dtype=torch.int32)
        ring.write(positions, torch.tensor([step, -step, 9], dtype=torch.int32))
        first = ring.send()
        further = positions[:2] + 1
        ring.write_rows(
            torch.from_numpy(rows),
            further,
            torch.tensor([step + 100, 100 - step], dtype=torch.int32),
        )
        second = ring.send()
        assert ring.has_arrived(second)
        got = ring.receive(first, np.arange(3), positions.numpy())
        assert got.tolist() == [step, -step, 9]
        got = ring.receive(second, rows, further.numpy())
        assert got.tolist() == [step + 100, 100 - step]


def test_ring_keeps_as_many_tokens_of_a_row_as_it_has_slots():
    ring = TokenRing(2, CPU)
    for position in range(40, 40 + NUM_SLOTS):
        ring.write(
            torch.tensor([position], dtype=torch.int32),
            torch.tensor([-position], dtype=torch.int32),
        )
        ticket = ring.send()
    positions = np.arange(40, 40 + NUM_SLOTS)
    got = ring.receive(ticket, np.zeros(NUM_SLOTS, np.intp), positions)
    assert got.tolist() == (-positions).tolist()
