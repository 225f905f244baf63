"""Files of JSON as they should not be: cut off, of something else, with values that are none."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

WRONG = (
    *(0, -1, True, None, "x", "", [], {}, [[]], 1e999, float("nan"), 10**400, "²", -(2**70)),
    *(1e-320, 1e300, "5_0", "nan", "\u2028", "\ud800"),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a JSON value holds another."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield (*path, key)
        yield from places(value[key], (*path, key))


def altered(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The same JSON with something else at one place; gone where that is `altered`."""
    content = copy.deepcopy(content)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    if value is altered:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return content


def broken(original: bytes, count: int) -> Iterator[bytes]:
    """Cut off here and there, or of something else."""
    for cut in range(0, len(original), max(1, len(original) // count)):
        yield original[:cut]
    yield from (b"\xff\xfe\x00", b"[" * 100_000, b"3\n", b"[]\n", b"{}\n", b"null", b"\x00" * 64)
    yield b'{"a":' * 100_000
    yield b"\xef\xbb\xbf" + original


def mutants_of(original: bytes, count: int) -> Iterator[bytes]:
    """Broken, and then whole but for one value that is another or gone."""
    yield from broken(original, count)
    draws = random.Random(0)
    content = json.loads(original)
    every = list(places(content))
    # As often near the root, where there are few places, as at the leaves.
    shallow = [place for place in every if len(place) <= 3]
    for number in range(count):
        place = draws.choice(shallow if number % 2 else every)
        yield json.dumps(altered(content, place, draws.choice((*WRONG, altered)))).encode()
