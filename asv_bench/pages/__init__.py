"""Pages made from stored results: one file, no scripts, nothing fetched."""
