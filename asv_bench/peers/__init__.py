"""transformers' `generate` on the engine's workloads."""
