"""Kernel names shortened to a number of columns, so that kernels can still be told apart."""

from __future__ import annotations

import re

_NAMESPACE = re.compile(r"(?:\(anonymous namespace\)|\w+)::")
_ARGUMENTS = re.compile(r"\([^()]*\)")
_LAMBDA = re.compile(r"::\{lambda[^{}]*\}|::operator\b| const\b|\{lambda[^{}]*\}")


def short_kernel_name(name: str, width: int) -> str:
    """The name of a kernel in at most `width` columns.

    A C++ name loses its namespaces, parameter lists and lambdas, then the end of its template
    arguments; any name that is still too long loses its middle.
    """
    if "::" in name or name.startswith("void "):
        name = _plain(name.removeprefix("void "))
    if len(name) <= width:
        return name
    opening = name.find("<")
    if 0 < opening < width - 3:
        return f"{name[: width - 2]}…>"
    tail = width // 3
    return f"{name[: width - tail - 1]}…{name[len(name) - tail :]}"


def _plain(name: str) -> str:
    name = name.replace("(anonymous namespace)::", "")
    # The innermost first: parameter lists hold parameter lists.
    while (without := _ARGUMENTS.sub("", name)) != name:
        name = without
    name = _NAMESPACE.sub("", _LAMBDA.sub("", name))
    return re.sub(r"\s+>", ">", name).strip()
