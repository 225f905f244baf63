"""How stored histories grow, and when their files are no longer read in time."""
