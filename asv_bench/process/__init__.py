"""This machine, and what its processes are told: facts, load, threads, a checkout's lock."""
