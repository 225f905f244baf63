"""Every command: where it stands in the help, and where it works."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

from asv_bench import __version__
from asv_bench.errors import Interrupted, Refused
from asv_bench.output.console import Verbosity, set_verbosity
from asv_bench.output.record import IS_CHECKOUT
from asv_bench.session.exit_codes import ExitCode

BETWEEN = "\0--"
"""What judge finds between its two sides, as options may stand behind them; and compare between
ends and command."""
COMMITS = "Compare commits"
RESULTS = "Keep a history"
ENGINE = "Measure kvtrail's engine"
SERVING = "Use kvtrail's engine"
LAB = "Develop kvtrail"

_EXAMPLES = Path(__file__).with_name("examples.toml").read_bytes()
EXAMPLES = msgspec.toml.decode(_EXAMPLES, type=dict[str, tuple[str, ...]])


@dataclass(frozen=True)
class _Saying:
    """How much is said: options of every command."""

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show each pair as it is measured.")
    ] = False

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise typer.BadParameter("--quiet and --verbose exclude each other.")
        set_verbosity(Verbosity(Verbosity.NORMAL + self.verbose - self.quiet))


def _as_command(body: Callable[..., None]) -> Callable[..., None]:
    """A function as typer takes it: the fields of its dataclasses are options, as `_Saying`'s are.

    An argument that is annotated with a dataclass is given one made of these options.
    """
    saying = inspect.Parameter("saying", inspect.Parameter.KEYWORD_ONLY, annotation=_Saying)
    taken = [*inspect.signature(body, eval_str=True).parameters.values(), saying]
    # How much is said is known first.
    kinds = {one.name: one.annotation for one in (saying, *taken)}
    groups: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
    options: list[inspect.Parameter] = []
    for one in taken:
        if one.name not in groups:
            options.append(one)
            continue
        hints = get_type_hints(one.annotation, include_extras=True)
        options += [
            one.replace(name=field.name, default=field.default, annotation=hints[field.name])
            for field in fields(one.annotation)
        ]

    @functools.wraps(body)
    def command(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        del given["saying"]
        body(**given)

    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return command


def examples_text(command: str, name: str | None = None) -> str:
    """The examples of a command as the end of its help; `name` is that of one of a group."""
    lines = [f"kvtrail {line.format(name)}" for line in EXAMPLES[command]]
    return "\n\n".join(["Examples:" if len(lines) > 1 else "Example:", *lines])


class _Verb(TyperCommand):
    """A command as typer runs it; some work in a checkout of kvtrail only."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        works = IS_CHECKOUT or self.name not in _BY_NAME or _BY_NAME[self.name].is_for_any
        if not works and not {"--help", "--render"} & set(args):
            raise Refused(
                f"{self.name} works in a checkout of kvtrail, by `python -m asv_bench "
                f"{self.name}`. In a repository of your own, `kvtrail init` begins the file "
                f"that compare, bisect and history measure by."
            )
        if self.name == "judge":
            args = [BETWEEN if word == "--" else word for word in args]
        elif self.name == "compare" and "--" in args:
            args.insert(args.index("--") + 1, BETWEEN)
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True)
class Command:
    """One command, whose help is its function's docstring.

    Of a group the function gives the application with its commands. A module is imported where its
    command is asked for, so that one command does not wait for what others need.
    """

    name: str
    place: str  # the module below asv_bench, and the function behind a colon
    panel: str
    is_for_any: bool = False  # whether it works outside a checkout of kvtrail
    is_group: bool = False

    def add_to(self, app: typer.Typer, *, hidden: bool = False) -> None:
        """Make it a command of an application."""
        module, _, function = self.place.partition(":")
        body = getattr(import_module(f"asv_bench.{module}"), function)
        if self.is_group:
            group = body()
            for own in group.registered_commands:
                own.callback = _as_command(own.callback)
                own.cls = _Verb
                full = f"{self.name} {own.name}"
                own.epilog = examples_text(full if full in EXAMPLES else self.name, own.name)
            app.add_typer(group, name=self.name, rich_help_panel=self.panel)
        else:
            # A terminal breaks the lines anew.
            text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(body) or "")
            add = app.command(
                self.name,
                cls=_Verb,
                help=text,
                rich_help_panel=self.panel,
                hidden=hidden,
                epilog=examples_text(self.name),
            )
            add(_as_command(body))


COMMANDS = (
    Command("compare", "cli.compare:compare", COMMITS, is_for_any=True),
    Command("bisect", "cli.bisect:bisect", COMMITS, is_for_any=True),
    Command("explain", "cli.explain:explain", COMMITS, is_for_any=True),
    Command("fixed", "cli.fixed:fixed", COMMITS, is_for_any=True),
    Command("swap", "cli.fixed:swap", COMMITS, is_for_any=True),
    Command("judge", "cli.judge:judge", COMMITS, is_for_any=True),
    Command("calibrate", "cli.calibrate:calibrate", COMMITS, is_for_any=True),
    Command("init", "cli.init:init", COMMITS, is_for_any=True),
    Command("history", "cli.history:history", RESULTS, is_for_any=True),
    Command("changes", "cli.history:changes", RESULTS, is_for_any=True),
    Command("bench", "cli.bench:bench", RESULTS),
    Command("report", "cli.report:report", RESULTS, is_for_any=True),
    Command("run", "cli.run:workloads", ENGINE, is_for_any=True, is_group=True),
    Command("scheduler", "cli.run:scheduler", ENGINE, is_for_any=True),
    Command("streaming", "cli.run:streaming", ENGINE, is_for_any=True),
    Command("headline", "cli.run:headline", ENGINE),
    Command("peers", "cli.peers:peers", ENGINE),
    Command("profile", "cli.profile:run", ENGINE),
    Command("serve", "cli.serve:serve", SERVING, is_for_any=True),
    Command("ladder", "studies.ladder.command:run", LAB),
)
"""In the order of the help: users' commands first, and `lab VERB` last."""
_BY_NAME = {command.name: command for command in COMMANDS}


class _Program(TyperGroup):
    """All commands; Ctrl-C ends each of them with a sentence."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort) as error:
            raise Interrupted("the command did not finish.") from error


@functools.cache
def build_app(name: str = "") -> typer.Typer:
    """The application with the command of a name; "": with every command."""
    codes = "; ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in ExitCode)
    app = typer.Typer(
        name="kvtrail",
        cls=_Program,
        help="Tells, with evidence, which commit made a program slower or faster.",
        epilog=f"Exit codes: {codes}.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_global_options)
    of_lab = "What the developers of kvtrail run: its earlier host paths."
    lab = typer.Typer(name="lab", help=of_lab, no_args_is_help=True)
    for command in COMMANDS:
        if name in ("", command.name):
            command.add_to(lab if command.panel == LAB else app)
            if command.name == "calibrate":
                command.add_to(lab, hidden=True)
    app.add_typer(lab, rich_help_panel=LAB)
    return app


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The application with the one command that a command line names, or with all."""
    name = next(iter(arguments[1:] if arguments[:1] == ["lab"] else arguments), "")
    return build_app(name) if name in _BY_NAME else build_app()


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"kvtrail {__version__}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """What stands before a command's name."""
