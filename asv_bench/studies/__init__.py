"""Finished studies, each with its own page."""
