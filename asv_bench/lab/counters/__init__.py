"""Exact counts of what decode steps do, compared with what was accepted."""
