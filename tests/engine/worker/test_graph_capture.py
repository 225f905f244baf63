"""What captures need of the host around them."""

from __future__ import annotations

import gc
import weakref

import pytest

from engine.worker.graph_capture import _resting_collector


class _Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("was_collecting", [True, False])
def test_garbage_is_collected_before_a_capture_and_not_during_it(was_collecting: bool) -> None:
    enabled = gc.isenabled()
    old = weakref.ref(_Cycle())
    try:
        (gc.enable if was_collecting else gc.disable)()
        with _resting_collector():
            assert old() is None
            assert not gc.isenabled()
        assert gc.isenabled() == was_collecting
    finally:
        (gc.enable if enabled else gc.disable)()
