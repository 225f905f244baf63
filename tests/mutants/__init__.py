"""Mutants of the kernels: small faults, each of which some test must notice."""
