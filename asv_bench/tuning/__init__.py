"""Choosing the configurations of a fused decode step by measuring the whole step."""
