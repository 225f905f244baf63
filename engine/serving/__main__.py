"""`python -m engine.serving MODEL --port 8000`."""

from __future__ import annotations

import sys

from engine.errors import ConfigError, KvtrailError
from engine.serving.options import read_options

_PACKAGES = ("starlette", "uvicorn", "anyio", "h11", "click")


def main() -> int:
    """Serve; errors that a user can mend are sentences.

    Returns the exit code: 0 after a drain, 1 where the engine failed, 2 where an option is wrong or
    a package is missing.
    """
    options = read_options()
    try:
        from engine.serving.server import serve

        return serve(options)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        print(
            f"error: serving needs the package {error.name}, which is not installed: pip install "
            "'kvtrail[serve]'.",
            file=sys.stderr,
        )
        return 2
    except KvtrailError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


if __name__ == "__main__":
    sys.exit(main())
