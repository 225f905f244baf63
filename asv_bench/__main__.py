"""`python -m asv_bench COMMAND`: every measuring command of the suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC, EROFS

from asv_bench.packages import missing_sentence

try:
    import typer
    from rich.text import Text

    from asv_bench.cli import (
        bench,
        bisect,
        calibrate,
        changes,
        compare,
        counters,
        history,
        memcheck,
        peers,
        profile,
        report,
        roofline,
        run,
        tune,
    )
    from asv_bench.errors import BenchError, Refused
    from asv_bench.output.console import make_console
    from asv_bench.output.record import REPOSITORY
    from asv_bench.process.checkout_lock import checkout_lock, other_session
    from asv_bench.process.threads import measured_environment
    from asv_bench.studies.ladder import command as ladder
except ModuleNotFoundError as error:
    sentence = missing_sentence(error)
    if sentence is None:
        raise
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)

COMMANDS = (
    bench,
    run,
    peers,
    history,
    compare,
    bisect,
    calibrate,
    changes,
    ladder,
    report,
    profile,
    roofline,
    tune,
    counters,
    memcheck,
)

LOCKING = ("headline", "calibrate", "ladder", "roofline", "tune")
"""Commands that measure and write to reports/ from their beginning to their end. `bench`,
`history`, `compare`, `bisect` and `changes` lock the checkout when they begin to measure."""
WARNING = ("run", "scheduler", "streaming", "peers", "profile")
"""Commands that measure, and write nothing that is another session's."""
MEASURES_NOTHING = ("--help", "--render")

REFUSED = 2
FAILED = 1


def build_app() -> typer.Typer:
    """The application with every command registered."""
    app = typer.Typer(
        name="asv_bench",
        help="Measure kvtrail's engine.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def main_callback() -> None:
        """Measure kvtrail's engine."""

    for command in COMMANDS:
        command.register(app)
    return app


def main() -> None:
    """Run the command line; a refusal is printed as a sentence and exits with 2, a failed
    measurement with 1."""
    # Before anything imports torch, for commands that measure in this very process.
    os.environ.update(measured_environment())
    try:
        with session_of(sys.argv[1:]):
            build_app()()
    except Exception as error:
        missing = missing_sentence(error)
        sentence = str(error) if is_sentence(error) else missing or without_room(error)
        if sentence is None:
            raise
        message = Text.assemble(("error: ", "red"), sentence)
        make_console(stderr=True).print(message, soft_wrap=True)
        sys.exit(REFUSED if missing or isinstance(error, Refused | ValueError) else FAILED)


def without_room(error: Exception) -> str | None:
    """A sentence where the disk was full or read-only in the middle of a run; else None."""
    if not isinstance(error, OSError) or error.errno not in (ENOSPC, EDQUOT, EROFS):
        return None
    where = error.filename or "a file"
    return f"{where} could not be written: {os.strerror(error.errno)}. Make room and try again."


@contextmanager
def session_of(arguments: Sequence[str]) -> Iterator[None]:
    """Keep other sessions away while a command line measures, or say that there is one.

    Raises
    ------
    Refused
        If another session measures in this checkout, and the command would disturb it.
    """
    command = arguments[0] if arguments else ""
    # The second word for `run headline`.
    if set(arguments[:2]) & set(LOCKING) and not set(MEASURES_NOTHING) & set(arguments):
        with checkout_lock(REPOSITORY):
            yield
        return
    other = other_session(REPOSITORY) if command in WARNING else None
    if other is not None:
        make_console(stderr=True).print(f"warning: {other}", style="yellow", soft_wrap=True)
    yield


def is_sentence(error: Exception) -> bool:
    """Whether the error was written for the user: the ruler's own, or the engine's."""
    if isinstance(error, BenchError):
        return True
    # Whoever raised one of the engine's errors has imported their module already.
    engine_errors = sys.modules.get("engine.errors")
    return engine_errors is not None and isinstance(error, engine_errors.KvtrailError)


if __name__ == "__main__":
    main()
