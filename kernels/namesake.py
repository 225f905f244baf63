"""The Hugging Face package that is also called ``kernels``.

Both may be installed in one environment. transformers reads the version of the *distribution*
named ``kernels``; when it is one that transformers supports, it imports names from the *package*
``kernels``, and whichever of the two comes first on ``sys.path`` answers.
"""

from __future__ import annotations

import warnings
from importlib import metadata

_DISTRIBUTION = "kernels"


def namesake_version() -> str | None:
    """The version of the installed Hugging Face ``kernels`` distribution, or None."""
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def warn_of_namesake() -> None:
    """Warn, in one sentence, when Hugging Face's ``kernels`` is installed beside this package.

    Warns
    -----
    RuntimeWarning
        Says which version was found, what may go wrong and what to do.
    """
    version = namesake_version()
    if version is None:
        return
    warnings.warn(
        f"the Hugging Face package 'kernels' {version} is installed in this environment beside "
        "kvtrail, whose own package of that name hides it, so `import transformers` may fail on "
        "names that only theirs has: run `pip uninstall kernels`, or give kvtrail an environment "
        "of its own",
        RuntimeWarning,
        stacklevel=2,
    )
