"""Turn a tree of 1,023 models into a dictionary, and print the least milliseconds of twenty."""

from __future__ import annotations

import time
from typing import Literal

from pydantic import BaseModel


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"
    value: int


class Parent(BaseModel):
    kind: Literal["parent"] = "parent"
    children: list[Parent | Leaf]


def tree(depth: int) -> Parent | Leaf:
    if depth == 0:
        return Leaf(value=1)
    return Parent(children=[tree(depth - 1), tree(depth - 1)])


root = tree(9)


def once() -> float:
    begun = time.process_time()
    root.model_dump()
    return 1e3 * (time.process_time() - begun)


print("dump took", min(once() for _ in range(20)))
