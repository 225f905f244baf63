"""Decode attention and append at every batch size."""
