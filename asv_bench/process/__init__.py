"""Processes that measure a commit: how they start, where they run, what watches them."""
