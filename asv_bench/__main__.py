"""The command `kvtrail`, which is `python -m asv_bench`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC, EROFS

from asv_bench.packages import missing_sentence

try:
    from rich.text import Text

    from asv_bench.cli.commands import Sessions, build_app, command_of
    from asv_bench.cli.exit_codes import ExitCode
    from asv_bench.errors import BenchError, NothingMeasured, Refused
    from asv_bench.output.console import make_console
    from asv_bench.output.record import IS_CHECKOUT, WORKPLACE
    from asv_bench.process.checkout_lock import checkout_lock, other_session
    from asv_bench.process.threads import measured_environment
except ModuleNotFoundError as error:
    sentence = missing_sentence(error)
    if sentence is None:
        raise
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)

MEASURES_NOTHING = ("--help", "--render")


def main() -> None:
    """Run the command line, and end with one of `ExitCode`; errors are printed as sentences."""
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
        make_console(stderr=True).print(message)
        sys.exit(ExitCode.REFUSED if missing else code_of(error))


def code_of(error: Exception) -> ExitCode:
    """The exit code for an error that is a sentence."""
    if isinstance(error, Refused | ValueError):
        return ExitCode.REFUSED
    if isinstance(error, NothingMeasured):
        return ExitCode.NOTHING_MEASURED
    return ExitCode.FAILED


def without_room(error: Exception) -> str | None:
    """A sentence where the disk was full or read-only in the middle of a run; else None."""
    if not isinstance(error, OSError) or error.errno not in (ENOSPC, EDQUOT, EROFS):
        return None
    where = error.filename or "a file"
    return f"{where} could not be written: {os.strerror(error.errno)}. Make room and try again."


@contextmanager
def session_of(arguments: Sequence[str]) -> Iterator[None]:
    """Keep other sessions away while a command line measures, or say that there is one.

    Raises Refused if another session measures in this checkout, and the command would disturb it,
    or the command works in a checkout of kvtrail only.
    """
    command = command_of(arguments)
    if command is None or set(MEASURES_NOTHING) & set(arguments):
        yield
        return
    if not (IS_CHECKOUT or command.is_for_any):
        raise Refused(
            f"{command.name} works in a checkout of kvtrail, by `python -m asv_bench "
            f"{command.name}`. In a repository of your own, `kvtrail init` begins the file "
            f"that compare, bisect and history measure by."
        )
    if command.sessions is Sessions.LOCK:
        with checkout_lock(WORKPLACE):
            yield
        return
    other = other_session(WORKPLACE) if command.sessions is Sessions.WARN else None
    if other is not None:
        make_console(stderr=True).print(f"warning: {other}", style="yellow")
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
