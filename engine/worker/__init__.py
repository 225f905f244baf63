"""One device's half of the engine: its model, cache, rows, and what runs steps of them."""
