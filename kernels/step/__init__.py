"""How a decode step begins and ends: rows are embedded, tokens picked, rows advanced."""
