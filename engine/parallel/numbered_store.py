"""A store in which the ranks of a group agree on the numbers of what they exchange."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store


class NumberedStore(Store):
    """Another store, in which exchanges are numbered from 0 on.

    torch numbers exchanges of symmetric memory by process, `PREFIX/NUMBER/RANK`: a process that has
    had a group before counts on, while its new ranks begin at 0 and would wait for ever.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._first: dict[str, int] = {}

    def set(self, key: str, value: str) -> None:
        """As the other store, under the key's own number."""
        self._store.set(self._numbered(key), value)

    def get(self, key: str) -> bytes:
        """As the other store, under the key's own number."""
        return self._store.get(self._numbered(key))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """As the other store, under the keys' own numbers."""
        numbered = [self._numbered(key) for key in keys]
        if timeout is None:
            self._store.wait(numbered)
        else:
            self._store.wait(numbered, timeout)

    def _numbered(self, key: str) -> str:
        parts = key.rsplit("/", 2)
        if len(parts) < 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
            return key
        prefix, count, rank = parts[0], int(parts[1]), parts[2]
        return f"{prefix}/{count - self._first.setdefault(prefix, count)}/{rank}"
