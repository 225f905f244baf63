"""The command `kvtrail`, which is `python -m asv_bench`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC, EROFS
from signal import SIGINT

try:
    from asv_bench.packages import missing_sentence

    try:
        from rich.text import Text

        from asv_bench.cli.commands import Sessions, app_for, command_of
        from asv_bench.errors import BenchError, Interrupted, NothingMeasured, Refused
        from asv_bench.output.console import make_console
        from asv_bench.output.record import IS_CHECKOUT, WORKPLACE
        from asv_bench.process.checkout_lock import checkout_lock, other_session
        from asv_bench.process.environment import measured_environment
        from asv_bench.session.exit_codes import ExitCode
    except ModuleNotFoundError as error:
        sentence = missing_sentence(error)
        if sentence is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(2)
except KeyboardInterrupt:
    print("interrupted: nothing was measured.", file=sys.stderr)
    sys.exit(128 + SIGINT)

MEASURES_NOTHING = ("--help", "--render")


def main() -> None:
    """Run the command line, and end with one of `ExitCode`; errors are printed as sentences."""
    # Before anything imports torch, for commands that measure in this very process.
    os.environ.update(measured_environment())
    try:
        with session_of(sys.argv[1:]):
            app_for(sys.argv[1:])()
    except KeyboardInterrupt:
        print("interrupted: nothing was measured.", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)
    except Interrupted as error:
        make_console(stderr=True).print(f"interrupted: {error}")
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        message = Text.assemble(("error: ", "red"), sentence)
        make_console(stderr=True).print(message)
        sys.exit(code_of(error))


def code_of(error: Exception) -> ExitCode:
    """The exit code for an error that is a sentence."""
    if isinstance(error, Refused | ValueError | ImportError | re.error):
        return ExitCode.REFUSED
    if isinstance(error, NothingMeasured):
        return ExitCode.NOTHING_MEASURED
    return ExitCode.FAILED


def sentence_of(error: Exception) -> str | None:
    """What to tell the user of an error; None: it is a fault of the ruler, with its traceback.

    Sentences already are the ruler's own errors, and the engine's. Beside them users can cause a
    package that is missing, a regular expression that is none, and a file that the system refuses.
    """
    # Whoever raised one of the engine's errors has imported their module already.
    engine_errors = sys.modules.get("engine.errors")
    if isinstance(error, BenchError) or (
        engine_errors is not None and isinstance(error, engine_errors.KvtrailError)
    ):
        return str(error)
    if isinstance(error, re.error):
        return f"{error.pattern!r} is no regular expression: {error}."
    if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT, EROFS):
        where = error.filename or "a file"
        return f"{where} could not be written: {os.strerror(error.errno)}. Make room and try again."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return missing_sentence(error)


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


if __name__ == "__main__":
    main()
