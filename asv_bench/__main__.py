"""The command `kvtrail`, which is `python -m asv_bench`."""

from __future__ import annotations

import os
import re
import sys
import time
from errno import EDQUOT, ENOSPC
from signal import SIGINT

_BEGUN = time.monotonic()
"""Before the ruler is loaded, which takes seconds on a busy machine."""

try:
    from rich.text import Text

    from asv_bench.cli.commands import app_for
    from asv_bench.errors import BenchError, Interrupted, NothingMeasured, Refused, missing_sentence
    from asv_bench.output.console import make_console
    from asv_bench.process.environment import measured_environment
    from asv_bench.session.exit_codes import ExitCode
    from asv_bench.session.time_limit import whole_process
except ModuleNotFoundError as error:
    from asv_bench.errors import missing_sentence

    sentence = missing_sentence(error)
    if sentence is None:
        raise
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)
except KeyboardInterrupt:
    print("interrupted: nothing was measured.", file=sys.stderr)
    sys.exit(128 + SIGINT)


def main() -> None:
    """Run the command line, and end with one of `ExitCode`; errors are printed as sentences."""
    # Before anything imports torch, for commands that measure in this very process.
    os.environ.update(measured_environment())
    try:
        with whole_process(_BEGUN):
            app_for(sys.argv[1:])()
    except (KeyboardInterrupt, Interrupted) as error:
        said = str(error) or "nothing was measured."
        make_console(stderr=True).print(f"interrupted: {said}")
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        make_console(stderr=True).print(Text.assemble(("error: ", "red"), sentence))
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
    # A full disk has no name.
    if isinstance(error, OSError) and (error.filename or error.errno in (ENOSPC, EDQUOT)):
        return f"{error.filename or 'a file'}: {error.strerror}."
    return missing_sentence(error)


if __name__ == "__main__":
    main()
