"""Measuring on many hosts: what one machine does with lives and pairs, spread over a cluster."""
