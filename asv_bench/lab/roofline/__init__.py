"""A decode step's kernels against the bandwidth of memory."""
