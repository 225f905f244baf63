"""The ruler: workloads, measurements and verdicts.

It touches kvtrail's engine only through its public face.
"""

__version__ = "0.1.0"
"""The release of the whole project; pyproject.toml reads it from here."""
