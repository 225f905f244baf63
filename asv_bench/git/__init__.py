"""Commits: which there are, in which order, and how their files get to a process."""
