"""A word has one meaning in the ruler."""

from __future__ import annotations

import ast
from collections import defaultdict

from toy_project import ROOT


def test_every_class_name_stands_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in (ROOT / "asv_bench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert not {name: found for name, found in places.items() if len(found) > 1}
