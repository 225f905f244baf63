"""Measuring the working tree's engine on a workload: flags, settings, runs, rows."""
