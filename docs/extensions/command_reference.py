"""Every command of `kvtrail` with its arguments and options, as Markdown.

It reads the command line itself, so the page says what `--help` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from asv_bench.__main__ import build_app

PROGRAM = "kvtrail"


def commands() -> Iterator[tuple[str, Any]]:
    """The full name and the click command of all that can be typed, groups before their own."""
    yield from _walk(PROGRAM, typer.main.get_command(build_app()))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    for child_name, child in getattr(command, "commands", {}).items():
        if child.hidden:
            continue
        yield f"{name} {child_name}", child
        yield from _walk(f"{name} {child_name}", child)


def option_names(command: Any) -> set[str]:
    """Every spelling of every option of a command, `--help` too."""
    spelled = (name for one in command.params for name in (*one.opts, *one.secondary_opts))
    return {name for name in spelled if name.startswith("-")} | {"--help"}


def markdown() -> str:
    """The page: a section a command."""
    return "\n".join(_section(name, command) for name, command in commands())


def _section(name: str, command: Any) -> str:
    heading = "#" * (name.count(" ") + 1)
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    usage = [name, *(_name(one) for one in shown if not one.opts[0].startswith("-"))]
    if len(usage) - 1 < len(shown):
        usage.append("[OPTIONS]")
    lines = [f"{heading} {name}", "", "```text", " ".join(usage), "```", ""]
    lines += [_text(command.help or ""), ""]
    for parameter in shown:
        _, meaning = parameter.get_help_record(typer.Context(command)) or ("", "-")
        lines += [f"`{_term(parameter, command)}`", f": {_text(meaning)}", ""]
    return "\n".join(lines)


def _name(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _term(parameter: Any, command: Any) -> str:
    if not parameter.opts[0].startswith("-"):
        return _name(parameter)
    term, _ = parameter.get_help_record(typer.Context(command))
    return str(term)


def _text(text: str) -> str:
    """Help text as Markdown: outside of code, what is special there is escaped."""
    pieces = re.split(r"(`[^`]*`)", text.removesuffix("  [required]"))
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([*_<>\[\]{}|])", r"\\\1", piece)
        for piece in pieces
    )
