"""The ruler: workloads, measurements and verdicts.

It touches kvtrail's engine only through its public face.
"""

import time

__version__ = "0.1.0"
"""The release of the whole project; pyproject.toml reads it from here."""
BEGUN = time.monotonic()
"""When this process began to load the ruler, which takes seconds on a busy machine."""
