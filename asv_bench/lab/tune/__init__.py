"""Captured decode steps, checked and timed, to choose how they are cut."""
