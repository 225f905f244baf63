"""The KV cache: its blocks, who holds them, and the memory they stand for."""
