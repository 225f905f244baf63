"""Arrays on their way to the device: whole, in order, and not rewritten too early."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.transport.staging import StagingBuffers

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_copy_has_the_arrays_shape_and_dtype_and_is_its_own(device: str, dtype: type) -> None:
    staging = StagingBuffers(torch.device(device))
    # Every other column: what is sent need not be contiguous.
    array = np.arange(24, dtype=dtype).reshape(3, 8)[:, ::2]
    sent = staging.to_device(array)
    expected = array.tolist()
    array[:] = -1
    assert sent.device.type == device
    assert sent.dtype == torch.from_numpy(array).dtype
    assert sent.tolist() == expected


@pytest.mark.parametrize("device", DEVICES)
def test_copies_of_any_size_arrive_whatever_follows_them(device: str) -> None:
    """More than there are buffers, larger and smaller, read by work that was launched in time."""
    staging = StagingBuffers(torch.device(device))
    place = torch.zeros(5000, dtype=torch.int32, device=device)
    sums, expected = [], []
    for number in range(40):
        array = np.full(1 + 997 * number % 5000, number + 1, np.int32)
        sums.append(staging.to_device(array).sum())
        staging.copy(array, place[: len(array)])
        sums.append(place[: len(array)].sum())
        expected += [int(array.sum())] * 2
        array.fill(0)
    assert [int(one) for one in sums] == expected
