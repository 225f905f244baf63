"""Other engines on the engine's workloads: one checkpoint, the same prompts, taking turns."""
