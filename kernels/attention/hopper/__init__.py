"""Decode attention for Hopper GPUs, in Gluon."""
