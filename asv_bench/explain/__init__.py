"""What differs between two ends besides time: files, packages, counters, traces."""
