"""Whether verdicts hold: planted slowdowns, simulated noise, and trials of both."""
