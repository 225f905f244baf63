"""Rows on the device: changes arrive whole, once, and only where they were made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.requests.params import SamplingParams
from engine.transport.device_rows import KNOWN_TAIL, NO_TOKENS, DeviceRows, RowStarts
from engine.transport.token_slots import NUM_SLOTS, TokenSlots

CPU = torch.device("cpu")


@pytest.fixture
def table() -> np.ndarray:
    """The host's block table: row 3 holds 21 to 27, and so on."""
    return np.arange(35, dtype=np.int32).reshape(5, 7)


@pytest.fixture
def rows(table) -> DeviceRows:
    return DeviceRows(table, CPU)


def _starts(rows: list[dict]) -> RowStarts:
    """Rows as columns."""
    columns = {name: [row[name] for row in rows] for name in RowStarts._fields}
    return RowStarts(**(columns | {"rows": np.array(columns["rows"], np.intp)}))


def _take(rows: DeviceRows, row: int, **changes) -> None:
    values = {
        "rows": row,
        "positions": 10,
        "remaining": 3,
        "seeds": -(2**62) - 5,
        "params": SamplingParams(temperature=0.7, top_k=4, top_p=0.9),
        "num_blocks": 2,
        "known_len": 10,
        "uncomputed": NO_TOKENS,
    }
    rows.start(_starts([values | changes]))


def test_a_started_row_arrives_field_by_field(rows):
    _take(rows, 3)
    fields = rows.fields
    assert not fields.position.any()
    rows.send()
    assert fields.position.tolist() == [0, 0, 0, 10, 0]
    assert fields.remaining.tolist() == [0, 0, 0, 3, 0]
    assert fields.seed.tolist() == [0, 0, 0, -(2**62) - 5, 0]
    assert fields.top_k.tolist() == [0, 0, 0, 4, 0]
    assert fields.top_p.tolist() == pytest.approx([0, 0, 0, 0.9, 0])
    assert fields.temperature.tolist() == pytest.approx([0, 0, 0, 0.7, 0])
    assert fields.block_table[3].tolist() == [21, 22, 0, 0, 0, 0, 0]
    assert not fields.block_table[[0, 1, 2, 4]].any()


def test_a_row_can_be_given_tokens_to_feed(rows):
    _take(rows, 3, known_len=13, uncomputed=np.array([50, 51, 52], np.int32))
    rows.send()
    fields = rows.fields
    assert fields.known_len.tolist() == [0, 0, 0, 13, 0]
    assert fields.last_token.tolist() == [0, 0, 0, 50, 0]
    assert fields.known_tail[3].tolist() == [0] * (KNOWN_TAIL - 3) + [50, 51, 52]
    assert not fields.known_tail[[0, 1, 2, 4]].any()


def test_rows_taken_together_are_as_if_taken_one_by_one(rows, table):
    """With tables and known tokens of every length, none among them."""
    starts = [
        {
            "rows": row,
            "positions": 7 * row,
            "remaining": row,
            "seeds": (-1) ** row * (2**40 + row),
            "params": SamplingParams(temperature=row / 8, top_k=row, top_p=1 - row / 8),
            "num_blocks": row,
            "known_len": 7 * row + tail,
            "uncomputed": np.arange(100 * row, 100 * row + tail, dtype=np.int32),
        }
        for row, tail in ((4, 1), (0, 0), (3, KNOWN_TAIL), (1, 3))
    ]
    rows.start(_starts(starts))
    rows.start(_starts([]))
    rows.send()
    alone = DeviceRows(table, CPU)
    for start in starts:
        alone.start(_starts([start]))
    alone.send()
    for name in ("seed", "position", "remaining", "known_len", "top_k", "top_p", "temperature",
                 "last_token", "known_tail", "block_table"):  # fmt: skip
        together = getattr(rows.fields, name)
        assert torch.equal(together, getattr(alone.fields, name)), name
        assert together[2].any() == 0, name
    fields = rows.fields
    assert fields.known_tail[3].tolist() == list(range(300, 308))
    assert fields.last_token.tolist() == [0, 100, 0, 300, 400]
    assert fields.block_table[4].tolist() == [28, 29, 30, 31, 0, 0, 0]
    assert fields.seed.tolist() == [2**40, -(2**40) - 1, 0, -(2**40) - 3, 2**40 + 4]


def test_blocks_go_to_their_rows_and_columns(rows, table):
    rows.note_blocks(np.array([0, 4]), np.array([2, 6], np.int32))
    table[4, 6] = 32
    rows.send()
    expected = torch.zeros(5, 7, dtype=torch.int32)
    expected[0, 2], expected[4, 6] = 2, 32
    assert torch.equal(rows.fields.block_table, expected)


def test_what_is_not_changed_is_left_to_the_device(rows):
    _take(rows, 1)
    rows.send()
    fields = rows.fields
    fields.position[1] += 5
    fields.last_token[1] = 99
    rows.note_blocks(np.array([1]), np.array([2], np.int32))
    rows.send()
    assert fields.position[1] == 15
    assert fields.last_token[1] == 99


def test_the_newest_of_two_changes_wins(rows):
    _take(rows, 2, remaining=9)
    rows.stop(np.array([2]))
    rows.send()
    assert rows.fields.remaining[2] == 0
    _take(rows, 2, remaining=4)
    rows.send()
    assert rows.fields.remaining[2] == 4


def test_nothing_is_copied_when_nothing_changed(rows):
    _take(rows, 0)
    assert rows.send() > 0
    assert rows.send() == 0


def test_token_slots_return_each_rows_token_by_its_position():
    slots = TokenSlots(4, CPU)
    rows = np.array([3, 0])
    for step in range(3 * NUM_SLOTS):
        positions = torch.tensor([step, step + 5, 7 * step], dtype=torch.int32)
        slots.write(positions, torch.tensor([step, -step, 9], dtype=torch.int32))
        first = slots.send()
        further = positions[:2] + 1
        slots.write_rows(
            torch.from_numpy(rows),
            further,
            torch.tensor([step + 100, 100 - step], dtype=torch.int32),
        )
        second = slots.send()
        assert slots.has_arrived(second)
        got = slots.receive(first, np.arange(3), positions.numpy())
        assert got.tolist() == [step, -step, 9]
        got = slots.receive(second, rows, further.numpy())
        assert got.tolist() == [step + 100, 100 - step]


def test_token_slots_keep_as_many_tokens_of_a_row_as_there_are():
    slots = TokenSlots(2, CPU)
    for position in range(40, 40 + NUM_SLOTS):
        slots.write(
            torch.tensor([position], dtype=torch.int32),
            torch.tensor([-position], dtype=torch.int32),
        )
        ticket = slots.send()
    positions = np.arange(40, 40 + NUM_SLOTS)
    got = slots.receive(ticket, np.zeros(NUM_SLOTS, np.intp), positions)
    assert got.tolist() == (-positions).tolist()
