"""Processes that have exchanged before meet those that have not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch._C._distributed_c10d import FileStore, PrefixStore, ProcessGroup

from engine.parallel.numbered_store import NumberedStore


@pytest.fixture
def stores(tmp_path):
    """Of two ranks, which share a file."""
    path = str(tmp_path / "store")
    return [NumberedStore(PrefixStore("of", FileStore(path, 2))) for _ in range(2)]


@pytest.mark.parametrize("before", [0, 1, 7])
def test_ranks_meet_whatever_each_has_exchanged_before(stores, before):
    for exchange in range(3):
        keys = [f"memory/{exchange}/{{}}", f"memory/{before + exchange}/{{}}"]
        for rank, store in enumerate(stores):
            store.set(keys[rank].format(rank), f"{rank} in {exchange}")
        for key, store in zip(keys, stores, strict=True):
            store.wait([key.format(0), key.format(1)], timedelta(seconds=5))
            found = [store.get(key.format(rank)) for rank in range(2)]
            assert found == [b"0 in %d" % exchange, b"1 in %d" % exchange]


def test_each_prefix_has_numbers_of_its_own(stores):
    first, second = stores
    first.set("memory/4/0", "m")
    first.set("signals/9/0", "s")
    assert [second.get(f"{name}/0/0") for name in ("memory", "signals")] == [b"m", b"s"]


@pytest.mark.parametrize("key", ["plain", "a/b", "1/2", "memory/x/0", "memory/1/x"])
def test_other_keys_stay_as_they_are(stores, key):
    stores[0].set(key, "v")
    assert stores[1].get(key) == b"v"


def test_torch_exchanges_through_it(stores):
    """C++ calls the Python store of a group."""
    store = stores[0]
    group = ProcessGroup(store, 0, 2)
    PrefixStore("memory/3", group.get_group_store()).set("0", "v")
    assert stores[1].get("memory/0/0") == b"v"
