"""What the asv environment and the benchmarks that run inside it agree on.

Free of imports from asv, which the measured processes have no need to load.
"""

from __future__ import annotations

ENVIRONMENT_TYPE = "host"
"""The name of the environment in asv.conf.json and in the names of result files."""

MEASURED_PACKAGES = ("engine", "kernels")
"""What an environment holds of a commit: the packages of the wheel and nothing else of it, so that
no benchmark can pick up the ruler of the commit instead of today's."""

COMMIT_MARKER = "COMMIT"
"""A file beside the measured packages that names their commit; the identity guard reads it."""

TRIAL_VARIABLE = "KVTRAIL_TRIAL"
"""Set for the first life of a variant, which shows what it can give; its figures are not kept."""
