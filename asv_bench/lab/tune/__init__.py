"""Captured decode steps: checked and timed, to choose how they are cut or see what a part costs."""
