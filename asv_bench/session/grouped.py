"""Options that several commands share, as one argument of each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(body: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function: typer sees the fields of its dataclasses as options.

    An argument that is annotated with a dataclass is given one made of these options.
    """
    kinds = get_type_hints(body, include_extras=True)
    groups = {
        name: kind for name, kind in kinds.items() if isinstance(kind, type) and is_dataclass(kind)
    }
    options: list[inspect.Parameter] = []
    for one in inspect.signature(body).parameters.values():
        if one.name in groups:
            options += _options(one, groups[one.name])
        else:
            options.append(one.replace(annotation=kinds[one.name]))

    @functools.wraps(body)
    def command(*given: Any, **named: Any) -> None:
        for name, group in groups.items():
            own = {field.name for field in fields(group)} & named.keys()
            named[name] = group(**{option: named.pop(option) for option in own})
        body(*given, **named)

    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return command


def _options(argument: inspect.Parameter, group: type[Any]) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        argument.replace(name=field.name, default=field.default, annotation=kinds[field.name])
        for field in fields(group)
    ]
