"""Whether pairs of processes that take turns differ less by chance."""
