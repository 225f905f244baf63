"""Calls of Python functions: whose are counted, and that counting leaves nothing behind."""

from __future__ import annotations

import gc
import sys
import threading
import time

import numpy as np
import pytest

from asv_bench.lab.counters.python_calls import python_calls


def _twice(value: int) -> int:
    return _once(value) + _once(value)


def _once(value: int) -> int:
    return value


def test_every_call_is_counted_once_and_numpys_own_are_not() -> None:
    array = np.array([3, 1, 2])
    # Its first use imports what it needs.
    np.unique(array)
    with python_calls() as empty:
        pass
    with python_calls() as calls:
        _twice(1)
    assert calls.total - empty.total == 3
    with python_calls() as calls:
        np.unique(array)
        np.array_equal(array, array)
    assert calls.total == empty.total
    assert calls.engine == 0


def test_the_engines_own_calls_are_told_from_others() -> None:
    from engine.running.decode_graphs import bucket_sizes
    from kernels.tiles.launch import padded

    with python_calls() as calls:
        bucket_sizes(8)
        padded(3)
        padded(4)
    assert calls.engine >= 3
    with python_calls() as others:
        _twice(1)
    assert others.engine == 0 < others.total


def test_other_threads_are_not_counted() -> None:
    going, done = threading.Event(), threading.Event()

    def work() -> None:
        while not done.is_set():
            _twice(1)
            going.set()

    with python_calls() as alone:
        _twice(1)
    beside = threading.Thread(target=work)
    beside.start()
    try:
        counts = set()
        for _ in range(20):
            going.wait()
            with python_calls() as calls:
                _twice(1)
                time.sleep(0.001)
            counts.add(calls.total)
    finally:
        done.set()
        beside.join()
    assert counts == {alone.total}


def test_counting_ends_with_its_block_also_when_that_fails() -> None:
    was_collecting = gc.isenabled()
    with pytest.raises(KeyError), python_calls() as calls:
        raise KeyError
    total = calls.total
    _twice(1)
    assert calls.total == total
    assert gc.isenabled() == was_collecting
    assert sys.getprofile() is None
