"""The error that a kernel call raises."""

from __future__ import annotations


class KernelArgumentError(ValueError):
    """A kernel was called with an argument it cannot take.

    The message names the argument and says what it must be. Nothing has been written.
    """
