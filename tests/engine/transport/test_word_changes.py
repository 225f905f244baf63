"""Changes of the device's words: all of them, nothing else, and not rewritten too early."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.transport import word_changes
from engine.transport.word_changes import MOST_WORDS, NUM_LISTS, WordChanges

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
NUM_WORDS = 4 * MOST_WORDS


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "count", [0, 1, 63, 64, 65, 1000, MOST_WORDS - 1, MOST_WORDS, MOST_WORDS + 1, 3 * MOST_WORDS]
)
def test_so_many_words_change_and_no_other(device: str, count: int) -> None:
    generator = np.random.default_rng(count)
    expected = generator.integers(-(2**31), 2**31, NUM_WORDS, np.int32)
    target = torch.from_numpy(expected.copy()).to(device)
    offsets = generator.permutation(NUM_WORDS)[:count]
    words = generator.integers(-(2**31), 2**31, count, np.int32)
    WordChanges(target).send(offsets, words)
    expected[offsets] = words
    assert np.array_equal(target.cpu().numpy(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_lists_arrive_whatever_follows_them(device: str) -> None:
    """More than there are lists, longer and shorter, from arrays that are rewritten at once."""
    target = torch.zeros(NUM_WORDS, dtype=torch.int32, device=device)
    changes = WordChanges(target)
    sums, expected = [], []
    mirror = np.zeros(NUM_WORDS, np.int32)
    for number in range(4 * NUM_LISTS):
        offsets = np.arange(number, NUM_WORDS, 1 + 97 * number % 61)
        words = np.full(len(offsets), number + 1, np.int32)
        mirror[offsets] = words
        changes.send(offsets, words)
        sums.append(target.sum())
        expected.append(int(mirror.sum()))
        offsets.fill(0)
        words.fill(-1)
    assert [int(one) for one in sums] == expected


@pytest.mark.parametrize("device", DEVICES)
def test_an_offset_may_come_twice_with_one_word(device: str) -> None:
    target = torch.zeros(9, dtype=torch.int32, device=device)
    WordChanges(target).send(np.array([4, 2, 4]), np.array([7, 5, 7], np.int32))
    assert target.tolist() == [0, 0, 5, 0, 7, 0, 0, 0, 0]


class LateDevice:
    """Words of a device that does nothing before somebody waits, and then no more than it must."""

    def __init__(self) -> None:
        self.device = torch.device("cuda")
        self.words = torch.zeros(NUM_WORDS, dtype=torch.int32)
        self._queue: deque[Callable[[], object]] = deque()
        self._num_done = 0

    @property
    def num_asked(self) -> int:
        return self._num_done + len(self._queue)

    def scatter_(self, dim: int, offsets: torch.Tensor, words: torch.Tensor) -> None:
        self._queue.append(lambda: self.words.scatter_(dim, offsets, words))

    def run_until(self, num_done: int) -> None:
        while self._num_done < num_done:
            self._queue.popleft()()
            self._num_done += 1


class LateEvent:
    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._num_before = 0

    def record(self) -> None:
        self._num_before = self._device.num_asked

    def synchronize(self) -> None:
        self._device.run_until(self._num_before)


def test_a_list_is_rewritten_only_once_the_device_has_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = LateDevice()
    monkeypatch.setattr(torch.cuda, "Event", lambda: LateEvent(device))
    monkeypatch.setattr(
        word_changes,
        "mapped_memory",
        lambda shape, dtype, device: (torch.zeros(shape, dtype=dtype),) * 2,
    )
    changes = WordChanges(device)  # type: ignore[arg-type]
    for number in range(2 * NUM_LISTS + 1):
        changes.send(np.array([number]), np.array([100 + number], np.int32))
    assert device.words.count_nonzero() == NUM_LISTS + 1, "no wait for lists that are free"
    device.run_until(device.num_asked)
    expected = [100 + number for number in range(2 * NUM_LISTS + 1)]
    assert device.words[: 2 * NUM_LISTS + 1].tolist() == expected
