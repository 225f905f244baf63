"""Trials of verdicts whose truth is known, and the engine on a GPU that is only pretended."""
