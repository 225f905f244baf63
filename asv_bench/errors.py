"""What the ruler refuses, and what it could not finish; both are sentences for the user."""

from __future__ import annotations


class BenchError(Exception):
    """Base of the ruler's own errors."""


class Refused(BenchError, ValueError):
    """What was asked for cannot be honoured; nothing was measured and nothing changed."""


class NothingSelected(Refused):
    """No benchmark of today is what was asked for, or none that this machine measures."""


class MeasurementFailed(BenchError, RuntimeError):
    """A measurement began and did not give figures that mean what they say."""


class Interrupted(BenchError):
    """Ctrl-C ended a command; the sentence says what is kept."""


class NothingMeasured(MeasurementFailed):
    """There is nothing here to measure, or nothing stored to look at."""
