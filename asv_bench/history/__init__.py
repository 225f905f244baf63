"""Series of figures over commits: measured and stored by asv, read back, judged."""
