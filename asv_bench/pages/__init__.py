"""Pages made from stored results: one file with all it needs; nothing is fetched."""
