"""Options that several commands share, as one argument of each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(body: Callable[..., None], *beside: type[Any]) -> Callable[..., None]:
    """Make a command of a function: typer sees the fields of its dataclasses as options.

    An argument that is annotated with a dataclass is given one made of these options; the classes
    `beside` are made of options, too, and given to nobody.
    """
    own = inspect.signature(body, eval_str=True).parameters.values()
    more = [
        inspect.Parameter(f"beside_{number}", inspect.Parameter.KEYWORD_ONLY, annotation=kind)
        for number, kind in enumerate(beside)
    ]
    kinds = {one.name: one.annotation for one in (*more, *own)}
    groups = {
        name: kind for name, kind in kinds.items() if isinstance(kind, type) and is_dataclass(kind)
    }
    options: list[inspect.Parameter] = []
    for one in (*own, *more):
        options += _options(one) if one.name in groups else [one]

    @functools.wraps(body)
    def command(*given: Any, **named: Any) -> None:
        for name, group in groups.items():
            known = {field.name for field in fields(group)} & named.keys()
            named[name] = group(**{option: named.pop(option) for option in known})
        body(*given, **{name: one for name, one in named.items() if not name.startswith("beside_")})

    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return command


def _options(argument: inspect.Parameter) -> list[inspect.Parameter]:
    kinds = get_type_hints(argument.annotation, include_extras=True)
    return [
        argument.replace(name=field.name, default=field.default, annotation=kinds[field.name])
        for field in fields(argument.annotation)
    ]
