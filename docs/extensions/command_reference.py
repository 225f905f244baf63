"""Every command of `kvtrail` with its arguments and options, as Markdown.

It reads the command line itself, so the page says what `--help` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from asv_bench.cli.commands import build_app

PROGRAM = "kvtrail"
MANY = 8
"""Options from which on commands of a group that have the same ones are described together."""


def commands() -> Iterator[tuple[str, Any]]:
    """The full name and the command of all that can be typed, the program and groups first."""
    program = typer.main.get_command(build_app())
    yield PROGRAM, program
    yield from _walk(PROGRAM, program)


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
    """The page: a section a command, and one for commands of a group with the same many options."""
    sections: dict[tuple[str, ...], list[tuple[str, Any]]] = {}
    for name, command in commands():
        spelled = tuple(one.opts[0] for one in command.params)
        group = name.rpartition(" ")[0]
        key = (group, *spelled) if len(spelled) >= MANY else (name,)
        sections.setdefault(key, []).append((name, command))
    return "\n".join(_section(alike) for alike in sections.values())


def _section(alike: list[tuple[str, Any]]) -> str:
    """One command, or several of a group whose options are the same."""
    name, command = alike[0]
    if len(alike) > 1:
        name = f"{name.rpartition(' ')[0]} {'|'.join(one.rpartition(' ')[2] for one, _ in alike)}"
    title = ", ".join(one.removeprefix(f"{PROGRAM} ") for one, _ in alike)
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    # As `--help` does: those without a panel first.
    panels = list(dict.fromkeys([None, *(one.rich_help_panel for one in shown)]))
    shown.sort(key=lambda one: panels.index(one.rich_help_panel))
    usage = [name, *(_name(one) for one in shown if not one.opts[0].startswith("-"))]
    if len(usage) - 1 < len(shown):
        usage.append("[OPTIONS]")
    if getattr(command, "commands", None):
        usage.append("COMMAND")
    lines = [f"## {title}", "", "```text", " ".join(usage), "```", ""]
    for one, its_command in alike:
        help_text = _text(its_command.help or "")
        lines += [help_text if len(alike) == 1 else f"- `{one}`: {help_text}", ""]
    examples = [one for one in (command.epilog or "").split("\n\n") if one.startswith(PROGRAM)]
    if examples:
        lines += ["```sh", *examples, "```", ""]
    panel = None
    for parameter in shown:
        if parameter.rich_help_panel not in (panel, None):
            panel = parameter.rich_help_panel
            lines += [f"**{panel}**", ""]
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
    """Help text as Markdown: options become code, other special characters are escaped."""
    pieces = re.split(r"(`[^`]*`|(?<![\w-])--[a-z][\w-]*)", text.removesuffix("  [required]"))
    return "".join(map(_piece, pieces))


def _piece(text: str) -> str:
    if text.startswith("--"):
        return f"`{text}`"
    return text if text.startswith("`") else re.sub(r"([*_<>\[\]{}|])", r"\\\1", text)
