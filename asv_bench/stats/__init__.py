"""Statistics of paired and sequential measurements: pure functions."""
