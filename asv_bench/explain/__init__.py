"""Profilers run over a window of decode steps, and what their traces say."""
