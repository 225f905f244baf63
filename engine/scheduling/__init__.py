"""Who runs in the next step, and with which KV blocks."""
